"""Whose word counts about where a request came from: ``Forwarded`` (RFC 7239), ``X-Forwarded-*``
and ``X-Real-IP``.

Anybody can write them, so they count from trusted proxies only. From anybody else none crosses the
gateway, and from nobody does a twin of one. They say nothing about what is wanted, so they are
never part of a fingerprint, and no template may read them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from gateway.core.headers import by_names, folded, values
from gateway.core.model import Headers

__all__ = ["NOBODY", "Trusted", "caller_of", "is_forwarding", "parse_trusted", "passed_on"]

_NAMES = frozenset({b"forwarded", b"x-forwarded", b"x-real-ip"})
_FAMILY = b"x-forwarded-"
_INITIALS = b"fFxX"  # a look at these first: every field of every request is asked

_LIST, _STANDARD = b"x-forwarded-for", b"forwarded"

# An address as it stands in either field: bare, or with a port, IPv6 then in brackets.
_NODE = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::[0-9]+)?|([0-9.]+)(?::[0-9]+)?|([0-9A-Fa-f:.]+)")

_MOST_HOPS = 100
"""Hops of each form that are read; real chains have fewer than ten."""

_LIMIT = 4096
"""Bytes of ``Forwarded`` that are read: so many hops, and a fraction of a millisecond."""

# One element of Forwarded up to the next comma outside quotes, and its ``for``. Possessive, and a
# quote that is not closed runs into the end, so that no input makes it backtrack.
_ELEMENT = re.compile(r'(?:[^",]++|"(?:[^"\\]++|\\.)*+(?:"|\\?\Z))++', re.DOTALL)
_CLOSED = re.compile(r'(?:[^"]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_FOR = re.compile(r'(?:^|;)[ \t]*for=(?:"([^"\\]*)"|([^";, \t]*))[ \t]*(?=;|$)', re.IGNORECASE)
_UNREADABLE = "?"

_Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Trusted:
    """The networks whose proxies are believed."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    def has(self, address: str) -> bool:
        found = _address(address) if self.networks else None
        return found is not None and any(found in network for network in self.networks)


NOBODY = Trusted()


def parse_trusted(text: str) -> Trusted:
    """Networks and addresses, separated by commas. Raises ``ValueError`` with the mend."""
    networks: list[IPv4Network | IPv6Network] = []
    for part in text.split(","):
        try:
            network = ipaddress.ip_network(part.strip())
        except ValueError as error:
            raise ValueError(
                f"{part.strip()!r} is no network ({error}); write e.g. 10.0.0.0/8, 192.0.2.7"
            ) from None
        if network.prefixlen == 0:
            raise ValueError(f"{network} is everybody; name the proxies' own networks")
        networks.append(network)
    return Trusted(tuple(networks))


def is_forwarding(name: bytes) -> bool:
    """Whether ``name``, or a twin of it, tells where a request came from."""
    if name[:1] not in _INITIALS:
        return False
    plain = folded(name)
    return plain in _NAMES or plain.startswith(_FAMILY)


def passed_on(headers: Headers, peer: str | None, trusted: Trusted) -> Headers:
    """``headers`` as they go up: from a trusted ``peer`` with the fields and its own address
    behind the last in each form that came, from anybody else without them."""
    told = _told(headers, is_forwarding)
    if not told:
        return headers
    if peer is None or not trusted.has(peer):
        return tuple(pair for pair in headers if not is_forwarding(pair[0]))
    last = {headers[index][0].lower(): index for index in sorted(told)}
    shown = _plain(peer)
    quoted = f'"[{shown}]"' if ":" in shown else shown
    added = {last.get(_LIST): shown, last.get(_STANDARD): f"for={quoted}"}
    return tuple(
        (name, _with(value, added.get(index)))
        for index, (name, value) in enumerate(headers)
        if index not in told or name.lower() == folded(name)
    )


@by_names
def _told(sent: tuple[bytes, ...], tells: Callable[[bytes], bool]) -> frozenset[int]:
    return frozenset(index for index, name in enumerate(sent) if tells(name))


def caller_of(headers: Headers, peer: str | None, trusted: Trusted) -> str | None:
    """The address that a request came from, as far as it can be believed: the nearest one that is
    no trusted proxy's. Where the two forms disagree, or cannot be read on, that of the last hop
    that is sure."""
    if peer is None or not trusted.has(peer):
        return peer
    found = {
        _nearest(peer, hops, trusted)
        for hops in (_listed(values(headers, _LIST)), _standard(values(headers, _STANDARD)))
        if hops
    }
    return found.pop() if len(found) == 1 else _plain(peer)


def _nearest(peer: str, hops: list[str], trusted: Trusted) -> str:
    """``hops``: the nearest first."""
    known = _plain(peer)
    for hop in hops:
        match = _NODE.fullmatch(hop)
        address = _address(match[1] or match[2] or match[3]) if match else None
        if address is None:
            break
        known = str(address)
        if not trusted.has(known):
            break
    return known


def _listed(lines: list[bytes]) -> list[str]:
    """The nearest first. What is beyond the most is one piece, which nobody can read."""
    hops = b",".join(lines).decode("latin-1").rsplit(",", _MOST_HOPS)
    return [hop.strip() for hop in reversed(hops)] if lines else []


def _standard(lines: list[bytes]) -> list[str]:
    """The ``for`` of each element, the nearest first; one that has none, or several, is a hop that
    nobody can read, and so is what is beyond the limits. Each line is read for itself, so that a
    quote left open by one hop does not hide what a nearer one adds in a line of its own."""
    hops: list[str] = []
    room = _LIMIT
    for line in reversed(lines):
        room -= len(line)
        elements = _ELEMENT.findall(line.decode("latin-1")) if room >= 0 else [_UNREADABLE]
        for element in reversed(elements):
            if len(hops) == _MOST_HOPS:
                return [*hops, _UNREADABLE]
            found = _FOR.findall(element) if _CLOSED.fullmatch(element) else []
            hops.append("".join(found[0]) if len(found) == 1 else _UNREADABLE)
        if room < 0:
            break
    return hops


def _with(value: bytes, more: str | None) -> bytes:
    if more is None:
        return value
    return b"%b, %b" % (value, more.encode("ascii")) if value.strip(b" \t") else more.encode()


def _plain(peer: str) -> str:
    address = _address(peer)
    return peer if address is None else str(address)


def _address(text: str) -> _Address | None:
    """IPv4 where it is mapped into IPv6, and without a zone, which means something only here."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
