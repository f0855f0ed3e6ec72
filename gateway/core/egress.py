"""Which addresses an upstream's name may lead to.

A name is somebody else's data: whoever answers for it could point it at the database, at a
neighbour, or at the metadata service that hands out the machine's credentials. So every address of
every answer is judged, each time a connection is made; a policy lists the networks of its own.

The tables are the IANA special-purpose registries, written down here because Python's differ from
release to release, and because a list of what is public fails closed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

__all__ = ["SEALED", "Egress", "Network", "is_named", "network"]

Network = IPv4Network | IPv6Network
_Address = IPv4Address | IPv6Address

_NOT_PUBLIC_4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # "this network"; Linux takes 0.0.0.0 for itself
            "10.0.0.0/8",
            "100.64.0.0/10",  # carrier-grade NAT, and many overlay networks
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and 255.255.255.255
        ),
    )
)
_PUBLIC_6 = IPv6Network("2000::/3")
"""All that is handed out as global unicast. What is not in it is loopback, link-local, unique
local, multicast, or was given to nobody."""

_NOT_PUBLIC_6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocols: Teredo, benchmarking, ORCHID
            "2001:db8::/32",
            "3fff::/20",
        ),
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")
_SIX_TO_FOUR = IPv6Network("2002::/16")

# Never public, but a wide entry such as ::/0 holds them.
_NAT64_LOCAL = IPv6Network("64:ff9b:1::/48")  # RFC 8215
_TEREDO = IPv6Network("2001::/32")
_LAST_32 = (
    IPv6Network("::/96"),  # IPv4-compatible (RFC 4291 §2.5.5.1)
    IPv6Network("::ffff:0:0:0/96"),  # SIIT (RFC 2765 §2.1)
)

SEALED: tuple[Network, ...] = (
    IPv4Network("169.254.0.0/16"),  # link-local; AWS, Azure, Google, OpenStack, … at .169.254
    IPv6Network("fe80::/10"),
    IPv6Network("fd00:ec2::/32"),  # AWS
    IPv6Network("fd20:ce::/32"),  # Google
    IPv4Network("100.100.100.200/32"),  # Alibaba
    IPv4Network("192.0.0.192/32"),  # Oracle
    IPv4Network("168.63.129.16/32"),  # Azure's agent; public by number only
    IPv4Network("0.0.0.0/8"),
    IPv6Network("::/128"),
    IPv4Network("224.0.0.0/4"),
    IPv4Network("255.255.255.255/32"),
    IPv6Network("ff00::/8"),
)
"""Metadata services, and what no API has. Only an entry that lies wholly inside one of them opens
it: nobody means these with 0.0.0.0/0, 100.64.0.0/10 or fc00::/7, nor by writing one as upstream."""


def network(text: str) -> Network:
    """A network as ``10.0.0.0/8``, or one address. Raises ``ValueError``."""
    made = ip_network(text)
    if isinstance(made, IPv6Network) and made.network_address.ipv4_mapped is not None:
        raise ValueError("is the mapped form of an IPv4 network; write that")
    return made


def is_named(host: str) -> bool:
    """Whether ``host`` is a name that others answer for: no address, and not ``localhost``."""
    return _parsed(host) is None and host != "localhost"


@dataclass(frozen=True, slots=True)
class Egress:
    """The rule for one upstream. ``host``: as the policy writes it, in lower case and without
    brackets; ``networks``: what the policy lists beside public addresses."""

    host: str
    networks: tuple[Network, ...] = ()

    def refused(self, addresses: Iterable[str]) -> str | None:
        """The first of ``addresses`` that the upstream must not have. One is enough to refuse all:
        a name with a good and a bad one is being turned."""
        return next((text for text in addresses if not self.allows(text)), None)

    def allows(self, text: str) -> bool:
        """Whether a connection to this address may be made. What is no address may not."""
        found = _parsed(text)
        if found is None:
            return False
        if any(_sealed(inner) is not None for inner in _hidden(found)):
            return False
        sealed = _sealed(found)
        if sealed is not None:
            return any(_in(found, own) and _inside(own, sealed) for own in self.networks)
        if _is_public(found) or any(_in(found, own) for own in self.networks):
            return True
        return found.is_loopback if self.host == "localhost" else found == _parsed(self.host)


def _parsed(text: str) -> _Address | None:
    """An address, without its zone; an IPv4 address in its mapped form is that IPv4 address."""
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found


def _is_public(address: _Address) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in block for block in _NOT_PUBLIC_4)
    inner = _embedded(address)
    if inner is not None:
        return _is_public(inner)
    return address in _PUBLIC_6 and not any(address in block for block in _NOT_PUBLIC_6)


def _embedded(address: _Address) -> IPv4Address | None:
    """The IPv4 address that a translator takes out of this one: NAT64 (RFC 6052) and 6to4 (RFC
    3056). Its network's 10.0.0.0/8 need not be ours, so only an IPv6 entry opens it."""
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    if address in _SIX_TO_FOUR:
        return IPv4Address(int(address) >> 80 & 0xFFFF_FFFF)
    return None


def _hidden(address: _Address) -> tuple[IPv4Address, ...]:
    """Every IPv4 address that some translator may take out of this one, whether it is public or
    an entry holds it: a metadata service must not be among them."""
    inner = _embedded(address)
    if isinstance(address, IPv4Address) or inner is not None:
        return () if inner is None else (inner,)
    number = int(address)
    found: tuple[int, ...] = ()
    if any(address in block for block in _LAST_32):
        found = (number,)
    elif address in _TEREDO:  # RFC 4380 §4: the server, and the client with its bits turned
        found = (number >> 64, ~number)
    elif address in _NAT64_LOCAL:  # its operator chose one of these lengths (RFC 6052 §2.2)
        found = (
            *(number, number >> 24),  # /96, /64
            (number >> 64 & 0xFF) << 24 | number >> 32 & 0xFF_FFFF,  # /56
            (number >> 64 & 0xFFFF) << 16 | number >> 40 & 0xFFFF,  # /48
        )
    taken = (IPv4Address(each & 0xFFFF_FFFF) for each in found)
    # Small numbers, as ::1 and 64:ff9b:1::1 have, are not meant as addresses, and no translator
    # passes multicast on.
    return tuple(each for each in taken if int(each) >> 24 and not each.is_multicast)


def _sealed(address: _Address) -> Network | None:
    return next((block for block in SEALED if _in(address, block)), None)


def _in(address: _Address, block: Network) -> bool:
    return address.version == block.version and address in block


def _inside(own: Network, block: Network) -> bool:
    if isinstance(own, IPv4Network) and isinstance(block, IPv4Network):
        return own.subnet_of(block)
    if isinstance(own, IPv6Network) and isinstance(block, IPv6Network):
        return own.subnet_of(block)
    return False
