"""Policies in the form that the hot path works with: frozen, checked, nothing left to parse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gateway.core.egress import Network
from gateway.core.fingerprint import Recipe
from gateway.core.keys import Refusal
from gateway.core.model import Rules
from gateway.core.secret import SecretFields
from gateway.core.value import value
from gateway.policy.errors import PolicyWarning
from gateway.policy.matcher import SAFE_METHODS, Pattern, Table, check_path, split_path
from gateway.policy.probes import Target
from gateway.policy.templates import Placeholder, Template

__all__ = ["CompiledCommand", "Match", "Mount", "NoPolicy", "Policies", "Unguarded", "Upstream"]


@dataclass(frozen=True, slots=True)
class Upstream:
    """One API behind the gateway. ``host`` without the brackets of an IPv6 address; ``authority``
    is what its ``Host`` field says; ``base`` the path before every target, without a last slash.
    ``headers`` are set on every request, over the caller's; they hold credentials.
    ``allow_networks``: where ``host`` may lead beside public addresses."""

    name: str
    mount: str
    url: str
    scheme: Literal["http", "https"]
    host: str
    port: int
    authority: bytes
    base: bytes
    headers: SecretFields
    ca_file: str | None
    client_cert_file: str | None
    client_key_file: str | None
    idle_s: float
    max_connections: int
    allow_networks: tuple[Network, ...]

    def target(self, rest: bytes, raw_query: bytes) -> bytes:
        """The request target for ``rest``, the raw path behind the mount (empty or ``/…``)."""
        path = self.base + rest or b"/"
        return path + b"?" + raw_query if raw_query else path


@dataclass(frozen=True, slots=True)
class CompiledCommand:
    """One kind of command. ``upstream_digest``: 16 bytes over upstream, account, key header
    and the probe's fields.
    ``decisive``: the fields, in lower case, on which anything about the command depends.
    ``send_key``, ``send_fence``: the field that carries it up, as spelled; ``None`` sends none.
    ``probe``: the status query, with the fields that are set on it; they hold credentials."""

    name: str
    rules: Rules
    upstream: Upstream
    pattern: Pattern
    entity: Template
    key: Template
    fence_from: Template
    fence_limit: int
    recipe: Recipe
    decisive: frozenset[bytes]
    send_key: bytes | None
    send_fence: bytes | None
    pass_authorization: bool
    upstream_digest: bytes
    probe: Target | None = None
    probe_headers: SecretFields = ()
    usual_key: bool = field(init=False)
    """Whether the key is what ``Idempotency-Key`` says."""
    usual_fence: bool = field(init=False)
    """Whether a fence stands in ``X-Execution-Fence`` and nowhere else."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "usual_key", _is_field(self.key.alone, "idempotency-key"))
        fence = self.fence_from.placeholders[0] if self.fence_from.placeholders else None
        object.__setattr__(self, "usual_fence", _is_field(fence, "x-execution-fence"))


def _is_field(place: Placeholder | None, name: str) -> bool:
    return place is not None and place.source == "header" and place.name.lower() == name


@value(frozen=True, slots=True)
class Match:
    """A request is this command. ``variables``: raw path segments; ``rest``: the raw path behind
    the mount."""

    command: CompiledCommand
    variables: Mapping[str, bytes]
    rest: bytes

    @property
    def upstream(self) -> Upstream:
        return self.command.upstream

    def target(self, raw_query: bytes) -> bytes:
        """The request target at the upstream: the caller's bytes behind the base path."""
        return self.command.upstream.target(self.rest, raw_query)


@value(frozen=True, slots=True)
class Unguarded:
    """A safe request that no command lists: it streams through, unrecorded."""

    upstream: Upstream
    rest: bytes

    def target(self, raw_query: bytes) -> bytes:
        """As ``Match.target``."""
        return self.upstream.target(self.rest, raw_query)


@dataclass(frozen=True, slots=True)
class NoPolicy:
    """Nothing covers the request: problem ``no-policy``. ``detail`` says so in a sentence."""

    detail: str


@dataclass(frozen=True, slots=True)
class Mount:
    """One policy file: its upstream and its commands in file order."""

    file: str
    upstream: Upstream
    commands: tuple[CompiledCommand, ...]
    table: Table[CompiledCommand] = field(repr=False)
    prefix: bytes


@dataclass(frozen=True, slots=True)
class Policies:
    """All policies. ``mounts``: the longest prefix first."""

    mounts: tuple[Mount, ...]
    warnings: tuple[PolicyWarning, ...] = ()

    def match(self, method: str, raw_path: bytes) -> Match | Unguarded | NoPolicy | Refusal:
        """What the request is. ``raw_path``: as it came, percent-encoded, without the query.

        ``Refusal`` (``request-invalid``) where it cannot be told where the path leads.
        """
        mount = self._mount(raw_path)
        if mount is not None:
            rest = raw_path[len(mount.prefix) :]
            sure = mount.table.at_once(method, rest)
            if sure is not None:  # nearly always; the prefix is plain, so it needs no look
                return Match(sure[0], sure[1], rest)
        refusal = check_path(raw_path)
        if refusal is not None:
            return refusal
        if mount is None:
            return NoPolicy("No policy is mounted at this path; see `fencegate check` for mounts.")
        rest = raw_path[len(mount.prefix) :]
        segments = split_path(rest)
        found = mount.table.find(method, segments)
        if isinstance(found, Refusal):
            return found
        if found is not None:
            pattern, command = found
            return Match(command, pattern.bind(segments), rest)
        if method in SAFE_METHODS:
            return Unguarded(mount.upstream, rest)
        return NoPolicy(
            f"No command of policy {mount.upstream.name} matches this method and path; "
            "add it to the policy, or correct the request."
        )

    def describe(self) -> tuple[str, ...]:
        """One line a mount, for a start-up banner."""
        return tuple(
            f"{mount.upstream.mount} -> {mount.upstream.url} "
            f"(policy {mount.upstream.name}, commands: {len(mount.commands)})"
            for mount in self.mounts
        )

    def commands(self) -> tuple[CompiledCommand, ...]:
        """Every command of every policy."""
        return tuple(command for mount in self.mounts for command in mount.commands)

    def _mount(self, raw_path: bytes) -> Mount | None:
        for mount in self.mounts:
            end = len(mount.prefix)
            if raw_path.startswith(mount.prefix) and raw_path[end : end + 1] in (b"", b"/"):
                return mount
        return None
