"""Whether a request is addressed to this very machine, which is all that counts without keys.

A page in a browser on this machine can reach loopback too. If its own name is made to resolve to
127.0.0.1, the browser takes the gateway for the page's own server; the ``Host`` field then still
has that name. If it sends across sites instead, the browser adds ``Origin`` (RFC 6454 §7), but not
to what an ``<img>`` or a link asks for; there only ``Sec-Fetch-Site`` (W3C Fetch Metadata) tells.
"""

from __future__ import annotations

import ipaddress
import re

from gateway.core.headers import values
from gateway.core.model import Headers

__all__ = ["foreign"]

_NOT_ACROSS = (b"same-origin", b"none")  # "none": somebody typed the address

_AUTHORITY = re.compile(r"(?:\[([^]]*)\]|([^:]*))(?::[0-9]*)?")


def foreign(headers: Headers) -> str | None:
    """Why a request may be meant for another machine or come from a page of another site; ``None``
    where it is from here. One sentence that says what to do."""
    mend = "or make a gateway key (`fencegate keys add`)"
    hosts = values(headers, b"host")
    if not all(map(_is_loopback, hosts)):
        return (
            f"Send a Host of this machine, such as localhost, {mend}: without keys a name that "
            "another site may have pointed here is not served."
        )
    origins = values(headers, b"origin")
    if not all(_is_loopback(origin.partition(b"://")[2]) for origin in origins):
        return f"Leave the Origin out, {mend}: without keys no page of another site is served."
    sites = values(headers, b"sec-fetch-site")
    if not all(site.strip(b" \t").lower() in _NOT_ACROSS for site in sites):
        return (
            f"Leave the Sec-Fetch-Site out, {mend}: without keys no page of another site or port "
            "is served."
        )
    return None


def _is_loopback(authority: bytes) -> bool:
    match = _AUTHORITY.fullmatch(authority.strip(b" \t").decode("latin-1"))
    if match is None:
        return False
    name = (match[1] or match[2] or "").lower().removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):  # RFC 6761 §6.3
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)  # Python 3.13 looks at it by itself
    return bool((mapped or address).is_loopback)
