"""Where an upstream's name may lead: public addresses, and what its policy lists."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.core.egress import Egress, is_named, network

PUBLIC = [
    *("1.1.1.1", "93.184.216.34", "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0"),
    *("192.167.255.255", "192.169.0.0", "169.253.255.255", "169.255.0.0", "223.255.255.255"),
    *("2606:4700::1111", "2a00:1450:4001::1", "64:ff9b::1.1.1.1", "2002:101:101::1"),
    "::ffff:1.1.1.1",
]
NOT_PUBLIC = [
    *("10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1"),  # private
    *("127.0.0.1", "127.255.255.255", "::1"),  # loopback
    *("100.64.0.1", "100.127.255.255"),  # carrier-grade NAT
    *("fc00::1", "fdff::1"),  # unique local
    *("192.0.0.1", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "240.0.0.1"),
    *("2001:db8::1", "2001::1", "3fff::1", "100::1", "::2", "5f00::1", "64:ff9b:1::1"),
    *("::ffff:10.0.0.1", "::10.0.0.1", "64:ff9b::10.0.0.1", "2002:a00:1::1"),  # 10.0.0.1, hidden
    *("64:ff9b::127.0.0.1", "2002:7f00:1::", "::ffff:127.0.0.1", "fec0::1"),
]
SEALED = [
    *("169.254.169.254", "169.254.0.1", "fe80::1", "fe80::1%eth0", "fd00:ec2::254"),
    *("fd20:ce::254", "100.100.100.200", "192.0.0.192", "168.63.129.16"),
    *("0.0.0.0", "0.1.2.3", "::", "224.0.0.1", "239.255.255.250", "255.255.255.255", "ff02::1"),
    "::ffff:169.254.169.254",
]
TRANSLATED = tuple(map(network, ("64:ff9b::/96", "2002::/16")))
EVERYTHING = tuple(map(network, ("0.0.0.0/0", "::/0")))


@pytest.mark.parametrize("address", PUBLIC)
def test_a_name_may_lead_to_public_addresses(address: str) -> None:
    assert Egress("api.example").allows(address)


@pytest.mark.parametrize("address", [*NOT_PUBLIC, *SEALED])
def test_a_name_leads_nowhere_else_by_itself(address: str) -> None:
    assert not Egress("api.example").allows(address)
    assert Egress("api.example").refused(["1.1.1.1", address, "8.8.8.8"]) == address


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_a_network_that_the_policy_lists_is_allowed(address: str) -> None:
    parsed = IPv6Address(address) if ":" in address else IPv4Address(address)
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    assert Egress("api.example", (network(str(mapped or parsed)),)).allows(address)
    assert Egress("api.example", EVERYTHING).allows(address)


@pytest.mark.parametrize("address", SEALED)
def test_metadata_services_and_link_local_need_an_entry_of_their_own(address: str) -> None:
    bare = address.partition("%")[0]
    for host in (bare, "api.example", "localhost"):
        assert not Egress(host).allows(address)
        assert not Egress(host, EVERYTHING).allows(address)
        wide = tuple(map(network, ("100.64.0.0/10", "fc00::/7", "168.0.0.0/5", "224.0.0.0/3")))
        assert not Egress(host, wide).allows(address)
    own = (network(str(IPv4Address(address.removeprefix("::ffff:")))),) if "." in address else ()
    own = own or (network(bare),)
    assert Egress("api.example", own).allows(address)


@pytest.mark.parametrize(
    "address",
    [
        *("64:ff9b::169.254.169.254", "2002:a9fe:a9fe::1", "64:ff9b::0.0.0.0"),
        *("64:ff9b:1::a9fe:a9fe", "64:ff9b:1:7::6464:64c8"),
        *("64:ff9b:1:7a9:fe:a9fe::", "64:ff9b:1:a9fe:a9:fe00::", "64:ff9b:1:0:a9:fea9:fe00:0"),
        *("2001::5601:5601", "2001:0:a9fe:a9fe::1", "2001:0:0101:101:0:0:9b9b:9b37"),
        *("::a9fe:a9fe", "::169.254.169.254", "::c000:c0", "::ffff:0:a9fe:a9fe"),
    ],
)
def test_no_entry_opens_a_metadata_service_behind_a_translator(address: str) -> None:
    own = (network(f"{address}/128"), network("64:ff9b::/96"), network("2002::/16"))
    for networks in ((), EVERYTHING, own):
        assert not Egress(address, networks).allows(address)


@pytest.mark.parametrize(
    "address",
    [
        *("64:ff9b:1::1", "64:ff9b:1::1.1.1.1", "64:ff9b:1:e000::8.8.8.8", "2001:0:101:101::1"),
        *("::1.1.1.1", "::2", "::ffff:0:1.1.1.1"),
    ],
)
def test_an_entry_opens_the_other_translated_forms(address: str) -> None:
    assert not Egress("api.example").allows(address)
    assert Egress("api.example", EVERYTHING).allows(address)


def test_behind_a_translator_somebody_elses_private_network_is_not_ours() -> None:
    ours = (network("10.0.0.0/8"),)
    assert Egress("api.example", ours).allows("10.0.0.1")
    assert Egress("api.example", ours).allows("::ffff:10.0.0.1")
    assert not Egress("api.example", ours).allows("64:ff9b::10.0.0.1")
    assert not Egress("api.example", ours).allows("2002:a00:1::1")


def test_what_is_written_as_an_address_is_meant() -> None:
    for address in ("10.0.0.1", "127.0.0.1", "::1", "fd00::1", "192.168.0.1"):
        assert Egress(address).allows(address)
        assert not Egress(address).allows("10.9.9.9")
    assert Egress("::ffff:10.0.0.1").allows("10.0.0.1")


def test_localhost_is_this_machine_and_nothing_else() -> None:
    for address in ("127.0.0.1", "127.0.0.53", "::1"):
        assert Egress("localhost").allows(address)
        for name in ("localhost.example", "api.localhost", "localhost.localdomain"):
            assert not Egress(name).allows(address)
    assert not Egress("localhost").allows("10.0.0.1")


@pytest.mark.parametrize("text", ["", "api.example", "1.2.3", "0x7f.1", "1.1.1.1.", "[::1]", "1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    assert not Egress("api.example", EVERYTHING).allows(text)


def test_a_mapped_network_has_one_spelling() -> None:
    with pytest.raises(ValueError, match="mapped"):
        network("::ffff:10.0.0.0/104")


def test_names_are_what_others_answer_for() -> None:
    assert list(map(is_named, ("api.example", "legacy-api", "127.1"))) == [True] * 3
    assert list(map(is_named, ("localhost", "10.0.0.1", "::1"))) == [False] * 3


@given(st.ip_addresses(v=4))
def test_every_hidden_form_of_an_address_is_judged_as_that_address(address: IPv4Address) -> None:
    number = int(address)
    plain = Egress("api.example").allows(str(address))
    hidden = [
        IPv6Address(0xFFFF << 32 | number),
        IPv6Address(int(IPv6Address("64:ff9b::")) | number),
        IPv6Address(0x2002 << 112 | number << 80 | 1),
    ]
    assert [Egress("api.example").allows(str(each)) for each in hidden] == [plain] * 3


@given(st.ip_addresses())
def test_what_python_calls_not_global_is_never_public(address: IPv4Address | IPv6Address) -> None:
    assume(not any(address in block for block in TRANSLATED if address.version == block.version))
    if not address.is_global or address.is_multicast:
        assert not Egress("api.example").allows(str(address))
