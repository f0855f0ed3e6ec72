"""Where an upstream is: scheme, host, port and the path that its API starts at."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

__all__ = ["Origin"]

_DEFAULT_PORT = {"http": 80, "https": 443}
_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
# RFC 3986 §3.3: unreserved, percent-encoded, sub-delims, ":" and "@", between slashes.
_PATH = re.compile(r"(?:/(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*)*")


@dataclass(frozen=True, slots=True)
class Origin:
    """One upstream. Make it with :meth:`parse`.

    ``host`` is lower case and without brackets; ``base_path`` is empty or starts with a slash and
    does not end with one; ``host_header`` is the value of the ``Host`` field, which leaves the
    scheme's own port out (RFC 9110 §7.2).
    """

    scheme: str
    host: str
    port: int
    base_path: bytes
    host_header: bytes

    @property
    def tls(self) -> bool:
        return self.scheme == "https"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host_header.decode()}{self.base_path.decode()}"

    @classmethod
    def parse(cls, url: str) -> Origin:
        """Read ``http(s)://host[:port][/base]``.

        Raises ``ValueError`` with one sentence on what to change. Nothing is repaired silently:
        an address that reads differently in two parsers is a way to another host.
        """
        scheme, mark, rest = url.partition("://")
        scheme = scheme.lower()
        if not mark or scheme not in _DEFAULT_PORT:
            raise ValueError("an upstream starts with http:// or https://")
        if "#" in rest:
            raise ValueError("an upstream has no fragment: remove '#' and what follows")
        if "?" in rest:
            raise ValueError("an upstream has no query: remove '?' and what follows")
        authority, slash, path = rest.partition("/")
        if "@" in authority:
            raise ValueError("an upstream carries no credentials: use [upstream_headers] for them")
        host, port_text = _split_port(authority)
        name = _checked_host(host)
        port = _checked_port(port_text, scheme)
        shown = f"[{name}]" if ":" in name else name
        if port != _DEFAULT_PORT[scheme]:
            shown = f"{shown}:{port}"
        return cls(scheme, name, port, _checked_path(slash + path), shown.encode("ascii"))


def _split_port(authority: str) -> tuple[str, str | None]:
    wrong = "an IPv6 address is written in brackets, e.g. http://[::1]:8080"
    if authority.startswith("["):
        host, bracket, after = authority.partition("]")
        if not bracket or (after and not after.startswith(":")):
            raise ValueError(wrong)
        return host + "]", after[1:] if after else None
    if authority.count(":") > 1:
        raise ValueError(wrong)
    host, colon, port = authority.partition(":")
    return host, port if colon else None


def _checked_host(host: str) -> str:
    if host.startswith("["):
        if "%" in host:
            raise ValueError("an upstream's IPv6 address has no zone: remove '%' and what follows")
        try:
            return str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            raise ValueError(f"{host} is not an IPv6 address") from None
    if not host:
        raise ValueError("an upstream names a host, e.g. https://api.example.com")
    if not host.isascii():
        raise ValueError("write a host that is not ASCII in its xn-- form")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in host.split(".")):
        raise ValueError(f"{host!r} is not a host name or an IPv4 address")
    return host.lower()


def _checked_port(text: str | None, scheme: str) -> int:
    if text is None:
        return _DEFAULT_PORT[scheme]
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 0 < int(text) < 65536:
        raise ValueError(f"{text!r} is not a port number from 1 to 65535")
    return int(text)


def _checked_path(path: str) -> bytes:
    if not _PATH.fullmatch(path):
        raise ValueError("the base path holds a character that must be percent-encoded")
    if any(segment in (".", "..") for segment in path.split("/")):
        raise ValueError("the base path has no '.' or '..' segments")
    return path.rstrip("/").encode("ascii")
