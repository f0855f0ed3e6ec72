"""The vocabulary: values that every other module passes around."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from gateway.core.canonical import Pointer
from gateway.core.value import value

__all__ = [
    "Exchange",
    "Fault",
    "FenceMode",
    "Headers",
    "Issuer",
    "ProbeRules",
    "Proof",
    "Response",
    "Rules",
    "Stage",
    "UnknownMode",
]


Headers = tuple[tuple[bytes, bytes], ...]
"""Field lines in the order they arrived, names as they were spelled, repeats kept."""

FenceMode = Literal["required", "optional", "off"]

Issuer = Literal["outside", "here"]
"""Who hands out the fences of an entity: somebody else, or the leases and the issuing of this
database."""


class Stage(IntEnum):
    """How far one attempt got; it only ever rises. Everything below ``SENDING_HEADERS`` proves
    that no byte of the request left."""

    CONNECTING = 0
    CONNECTED = 1
    SENDING_HEADERS = 2
    SENDING_BODY = 3
    SENT = 4
    STATUS_SEEN = 5
    BODY_COMPLETE = 6


Fault = Literal[
    "dns",  # the upstream's name has no address
    "prohibited",  # its name has an address that its policy does not allow
    "refused",  # no connection could be made
    "connect-timeout",  # no connection within its share of the time
    "tls",  # the handshake failed, or the certificate is not trusted
    "pool",  # no connection slot became free in time
    "paused",  # a deadline had passed before the next write, e.g. the process was stopped
    "closed",  # the peer closed the connection
    "reset",  # the connection broke
    "timeout",  # no complete response by the attempt's end
    "protocol",  # what came is not HTTP/1.1, or is a 101 nobody asked for
    "headers-too-large",  # the response's head is over its limit
]
"""Why an exchange ended before its response was complete."""


@value(frozen=True, slots=True)
class Response:
    """A final response: ``status`` 200–599, raw field lines, raw body bytes (coding kept)."""

    status: int
    headers: Headers
    body: bytes


@value(frozen=True, slots=True)
class Exchange:
    """What one attempt saw of the upstream.

    ``response`` is set from ``STATUS_SEEN`` on; its body holds what has arrived, at most the keep
    limit. ``fault`` is set whenever the exchange ended below ``BODY_COMPLETE``, and is ``None``
    while it has not ended (``oversize``). ``oversize``: the body is larger than the keep limit and
    its rest is still to come. ``close_delimited``: the body had no length, the close ended it.
    """

    stage: Stage
    response: Response | None = None
    fault: Fault | None = None
    oversize: bool = False
    close_delimited: bool = False


UnknownMode = Literal["hold", "resend", "probe"]
"""How an unknown outcome is found out: by a person, by sending again, by asking the upstream."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Which answers count: one of ``status``, and, with ``where``, what its JSON body has there.
    ``equals``: canonical forms of values of which it is one; ``None`` where ``items`` says that it
    is a list with or without an element. An absent value equals nothing, and is no list."""

    status: frozenset[int]
    where: Pointer | None = None
    equals: frozenset[bytes] | None = None
    items: Literal["some", "none"] | None = None


@dataclass(frozen=True, slots=True)
class ProbeRules:
    """How a policy reads the answers. ``absent`` is ``None`` where no answer can say it.
    ``interval_s``: between two probes, at least. ``replays``: the answer that proves *applied* is
    recorded as the command's response."""

    applied: Proof
    absent: Proof | None
    interval_s: int
    replays: bool


@dataclass(frozen=True, slots=True)
class Rules:
    """What a policy says about one kind of command, in the form the core works with."""

    policy: str
    """``upstream name/command name``, e.g. ``payments/capture``."""
    fence: FenceMode
    serial: bool
    unknown: UnknownMode
    timeout_s: float
    settle_delay_s: float
    not_executed: frozenset[int]
    ambiguous: frozenset[int]
    request_limit: int
    """Bytes of request body that are read at most."""
    keep_limit: int
    """Bytes of response body that are recorded at most."""
    response_days: int
    key_days: int
    issuer: Issuer
    version: bytes
    """8 bytes: the fingerprint's rule version (fingerprint fields and entity template)."""
    max_in_flight: int = 256
    """Attempts of it in flight in one process."""
    resend_within_s: int | None = None
    """With ``resend``: how long after it was first sent a command may be sent again."""
    resend_conflict: frozenset[int] = frozenset()
    """Statuses by which the upstream says that the key is in use: they prove nothing."""
    probe: ProbeRules | None = None
    cache_s: int = 0
    """How long a replay may come from a cache; 0: never."""
