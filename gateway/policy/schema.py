"""The policy file, as pydantic models: one file per upstream, unknown fields forbidden.

Only what one field alone can tell is checked here; what takes two fields or two files is in
``crosscheck``. Every mistake becomes a ``PolicyError`` with its field and its mend.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from gateway.core.outline import MAX_FIELDS
from gateway.policy import fields
from gateway.policy.errors import PolicyError

__all__ = [
    "CommandModel",
    "FingerprintModel",
    "PolicyModel",
    "ProbeModel",
    "ProofModel",
    "RetainModel",
    "field_path",
    "mistakes",
]

MAX_BODY = 64 * 2**20
"""Bytes. A body is held in memory while its command runs, once for each caller."""

MAX_TIMEOUT_S = 3_600
"""A command holds its entity for so long at worst; longer work belongs into a job."""

MAX_NETWORKS = 64
"""Each connection that is made looks through them."""

MAX_DAYS = 3_650
"""Ten years, the longest that bookkeeping asks for."""

_Size = Annotated[
    int,
    BeforeValidator(fields.size),
    Field(ge=0, le=MAX_BODY),
]
_KeptSize = Annotated[
    int,
    BeforeValidator(fields.size),
    Field(ge=0),
    AfterValidator(fields.keep),
]
_Days = Annotated[int, Field(ge=1, le=MAX_DAYS)]
_File = Annotated[str, Field(min_length=1)]
_HeaderName = Annotated[str, AfterValidator(fields.header_name)]
_ComparedName = Annotated[str, AfterValidator(fields.compared_name)]
_SentName = Annotated[str, AfterValidator(fields.sent_name)]
_Template = Annotated[str, AfterValidator(fields.template)]


class _Model(BaseModel):
    # strict: a quoted number or a yes for true is a mistake, not a spelling. The text below a field
    # is what an editor shows of it (see ``published``).
    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )


class FingerprintModel(_Model):
    """What must be equal for a key to be the same command, beside method, path, query, entity."""

    body: Annotated[
        Literal["auto", "json", "form", "multipart", "raw"],
        BeforeValidator(fields.choice("auto", "json", "form", "multipart", "raw")),
    ] = "auto"
    """How bodies are compared. auto: by their Content-Type; raw: byte by byte."""
    ignore: list[Annotated[str, AfterValidator(fields.pointer)]] = []
    """Members of the body that may differ between retries, as JSON pointers, e.g.
    /metadata/trace_id."""
    headers: Annotated[list[_ComparedName], Field(max_length=MAX_FIELDS)] = []
    """Fields that must be equal too, e.g. Stripe-Version; never the fence."""


class RetainModel(_Model):
    """How long things are remembered, in days."""

    response_days: _Days = 30
    """How long the response is kept at least; not longer than key_days."""
    key_days: _Days = 400
    """How long the key is remembered at least."""


class ProofModel(_Model):
    """Which answers to a probe count."""

    # Not from 500 on: who is in trouble knows nothing for sure.
    status: Annotated[list[Annotated[int, Field(ge=200, le=499)]], Field(min_length=1)]
    """The statuses that count."""
    where: Annotated[str, AfterValidator(fields.pointer)] | None = None
    """A JSON pointer into the answer, e.g. /data/0/status; with it also equals or items."""
    equals: Annotated[list[str | bool | int], Field(min_length=1)] | None = None
    """What stands there is one of these values."""
    items: Annotated[
        Literal["some", "none"] | None, BeforeValidator(fields.choice("some", "none"))
    ] = None
    """What stands there is a list, with an element or without."""


class ProbeModel(_Model):
    """The status query by which an unknown outcome is found out."""

    request: Annotated[str, AfterValidator(fields.probe_target)]
    """GET and a path, with the placeholders of templates, and {key}, {entity} and
    {upstream_key}."""
    headers: dict[_HeaderName, str] = {}
    """Fields of the query, over upstream_headers. ${NAME} is taken from the gateway's
    environment, or from the file that NAME_FILE names there."""
    applied: ProofModel
    """What proves that the command was executed."""
    absent: ProofModel | None = None
    """What says that it was not; it takes two such answers. Without it only a person gives a key
    back."""
    interval_s: Annotated[int, Field(ge=1, le=3_600)] = 60
    """Seconds between two queries about one command at least, and between the two that prove that
    it was not executed."""
    replay: bool = False
    """Records the answer that proves it as the command's response, to be replayed; without it the
    key answers 410."""


class CommandModel(_Model):
    """One kind of command."""

    name: Annotated[str, AfterValidator(fields.slug)]
    """Names the command, e.g. capture; unique in the file. Logs say upstream/command."""
    match: Annotated[str, AfterValidator(fields.pattern)]
    """Which requests: METHOD /path behind the mount. {x} is exactly one segment; a literal
    beats a variable."""
    entity: _Template
    """What the fence protects and what is kept in order, e.g. invoice:{path.invoice_id}. Also
    {header.NAME}, {query.name} and {body./json/pointer}."""
    entity_case: Annotated[
        Literal["exact", "ignore"], BeforeValidator(fields.choice("exact", "ignore"))
    ] = "exact"
    """Whether ACC-1 and acc-1 are two entities. ignore: only for an upstream to which they are one;
    values of the entity are then taken in lower case."""
    key: _Template = "{header.Idempotency-Key}"
    """What names the command. A template such as capture:{path.invoice_id} makes the business
    itself the key."""
    fence: Annotated[
        Literal["required", "optional", "off"],
        BeforeValidator(fields.choice("required", "optional", "off")),
    ] = "required"
    """optional: may be absent, and is then not checked. off: fences are passed over."""
    fence_from: _Template = "{header.X-Execution-Fence}"
    """Where the fence stands: one header or body placeholder."""
    serial: bool = True
    """One command of an entity at a time, and none while an earlier one is unknown."""
    unknown: Annotated[
        Literal["hold", "resend", "probe"],
        BeforeValidator(fields.choice("hold", "resend", "probe")),
    ] = "hold"
    """How an unknown outcome is found out. hold: somebody decides. resend: a caller that asks again
    sends it again, under the key of send_key. probe: the gateway asks the upstream."""
    resend_within_s: Annotated[int, Field(ge=10, le=31_536_000)] | None = None
    """With resend: seconds after its first sending in which a command may be sent again; less than
    the upstream remembers its key."""
    resend_conflict: list[Annotated[int, Field(ge=300, le=499)]] = [409]
    """With resend: statuses by which the upstream says that the key is in use, which prove
    nothing."""
    timeout_s: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S, allow_inf_nan=False)] = 30
    """Seconds from first to last byte. A command may hold its entity for so long."""
    max_in_flight: Annotated[int, Field(ge=1, le=100_000)] = 256
    """Attempts of it in flight in one process; more are refused before they are admitted."""
    settle_delay_s: Annotated[int, Field(ge=0, le=86_400)] = 300
    """Seconds for which the upstream may still act on a request that was given up. Lower it
    only where you know."""
    issuer: Annotated[
        Literal["outside", "here"], BeforeValidator(fields.choice("outside", "here"))
    ] = "outside"
    """Who hands out fences."""
    # Never a 2xx or an interim status: those say that it was executed, or nothing yet.
    not_executed: list[Annotated[int, Field(ge=300, le=599)]] = [401, 407, 421, 425, 429]
    """Statuses that prove that nothing happened: the key is given back."""
    ambiguous: list[Annotated[int, Field(ge=200, le=599)]] = [408, 500, 502, 503, 504]
    """Statuses that prove nothing: the outcome is unknown."""
    send_key: _SentName | None = None
    """Sends a derived key under this name, the same at every attempt. Only for upstreams that
    deduplicate by it, or keep it and can be asked for it."""
    send_fence: _SentName | None = None
    """Sends the fence under this name."""
    pass_authorization: bool = False
    """Passes the caller's Authorization up. Only for a gateway without keys."""
    request_limit: _Size = 8 * 2**20
    """Bytes of request body: a number, or text such as "8 MiB" (B, KiB, MiB, GiB)."""
    keep_limit: _KeptSize = 2**20
    """Bytes of response body that are recorded; a larger one is relayed and not replayed."""
    cache_s: Annotated[int, Field(ge=0, le=86_400)] = 60
    """Seconds after an answer was heard or replayed in which a replay may come from a cache; 0 is
    never."""
    fingerprint: FingerprintModel = FingerprintModel()
    """What must be equal for a key to be the same command."""
    retain: RetainModel = RetainModel()
    """How long things are remembered."""
    probe: ProbeModel | None = None
    """With unknown = "probe": how the upstream is asked."""


class PolicyModel(_Model):
    """One upstream, where it is mounted and what may be sent to it."""

    name: Annotated[str, AfterValidator(fields.slug)]
    """Names the policy in logs and metrics, e.g. payments; unique in the folder."""
    mount: Annotated[str, AfterValidator(fields.mount)]
    """Path at the gateway, e.g. /payments; removed before sending. The longest mount wins."""
    upstream: Annotated[str, AfterValidator(fields.upstream_url)]
    """Where it goes: http or https, host, port and base path. No credentials, query or
    fragment."""
    ca_file: _File | None = None
    """PEM file of the authorities to trust in place of the system's, relative to this file."""
    client_cert_file: _File | None = None
    """PEM file of the gateway's certificate for the upstream, relative to this file."""
    client_key_file: _File | None = None
    """PEM file of its key, relative to this file; not needed where the certificate file holds
    it."""
    idle_s: Annotated[float, Field(ge=0, le=300, allow_inf_nan=False)] = 4
    """Seconds within which an idle connection is used again; 0 is always a fresh one."""
    max_connections: Annotated[int, Field(ge=1, le=10_000)] = 256
    """Connections to this upstream from one process."""
    allow_networks: Annotated[
        list[Annotated[str, AfterValidator(fields.network_text)]], Field(max_length=MAX_NETWORKS)
    ] = []
    """Where the upstream's name may lead beside public addresses, e.g. 10.0.0.0/8."""
    upstream_headers: dict[_HeaderName, str] = {}
    """Fields set on every request, over the caller's. ${NAME} is taken from the gateway's
    environment, or from the file that NAME_FILE names there."""
    account: Annotated[str, AfterValidator(fields.slug)] | None = None
    """Names the account that the credentials belong to. While the name stays, what ${NAME} stands
    for and the client certificate may change, and unknown commands are still asked about and sent
    again."""
    commands: list[CommandModel] = []
    """The commands; without any, every unsafe request is refused."""


_EXAMPLES: Mapping[str, str] = {
    "name": 'name = "capture"',
    "mount": 'mount = "/payments"',
    "upstream": 'upstream = "https://payments.example"',
    "match": 'match = "POST /v1/invoices/{invoice_id}/capture"',
    "entity": 'entity = "invoice:{path.invoice_id}"',
    "request": 'request = "GET /v1/charges?reference={upstream_key}"',
    "applied": 'applied = { status = [200], where = "/data", items = "some" }',
    "status": "status = [200]",
}

_LATER: Mapping[str, str] = {
    "mode": "shadow policies are not in this release",
}

_TYPES: Mapping[str, tuple[str, str]] = {
    "bool_type": ("is not true or false", "write true or false, without quotes"),
    "dict_type": ("is not a table", "write it as a TOML table"),
    "finite_number": ("is not a finite number", "write a number"),
    "float_type": ("is not a number", "write a number, without quotes"),
    "int_type": ("is not a whole number", "write a whole number, without quotes"),
    "list_type": ("is not a list", "write each as [[commands]]"),
    "model_type": ("is not a table", "write it as a TOML table"),
    "string_type": ("is not text", "put it in quotes"),
    "too_long": (f"lists more than {MAX_FIELDS} fields", "keep those that change the effect"),
    "string_too_short": ("is empty", "write a value, or leave the field out"),
}


def mistakes(file: str, error: ValidationError) -> Iterator[PolicyError]:
    """Each mistake that pydantic found in ``file``."""
    for details in error.errors(include_url=False, include_input=False):
        problem, mend = _explained(details)
        yield PolicyError(file, field_path(details["loc"]), problem, mend)


def field_path(location: tuple[int | str, ...]) -> str:
    """``commands[0].retain.key_days``."""
    text = ""
    for step in location:
        if step == "[key]":  # pydantic's mark for the name of a member, which stands before it
            continue
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def _explained(details: ErrorDetails) -> tuple[str, str]:
    kind, context = details["type"], details.get("ctx", {})
    name = str(details["loc"][-1]) if details["loc"] else ""
    if kind == "policy":
        return str(context["problem"]), str(context["mend"])
    if kind == "missing":
        # FENCE-10: there is no fence, and no order, of nothing.
        problem = "is missing, so nothing could be fenced" if name == "entity" else "is missing"
        return problem, f"add it, e.g. {_EXAMPLES.get(name, name)}"
    if kind == "extra_forbidden":
        return _unknown(details["loc"], name)
    if kind == "list_type" and name != "commands":
        return "is not a list", f"write it in [brackets]{_as_list(name)}"
    if kind in _TYPES:
        return _TYPES[kind]
    for bound, words in _BOUNDS.items():
        if bound in context:
            return f"is out of range: it must be {words} {context[bound]}", "choose a value there"
    return details["msg"], "correct it"


def _as_list(name: str) -> str:
    return f", e.g. {_EXAMPLES[name]}" if name in _EXAMPLES else ""


_BOUNDS: Mapping[str, str] = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}


_RESEMBLES = 0.75
"""A slip of a letter or two is above it; other words, such as ``retries`` and ``retain``, below."""


def _unknown(location: tuple[int | str, ...], name: str) -> tuple[str, str]:
    if name in _LATER:
        return _LATER[name], f"remove {name}"
    known = _fields_at(location[:-1])
    if (
        "retry" in name or "retries" in name
    ):  # Nobody must believe that a number here makes the gateway send again.
        return "is not a field: the gateway never sends a command again by itself", f"remove {name}"
    close = difflib.get_close_matches(name, known, n=1, cutoff=_RESEMBLES)
    return "is not a field", f"write {close[0]}" if close else f"remove it ({', '.join(known)})"


def _fields_at(parents: tuple[int | str, ...]) -> list[str]:
    """The fields that could stand where an unknown one does."""
    tables: Mapping[int | str, type[_Model]] = {
        "commands": CommandModel,
        "fingerprint": FingerprintModel,
        "retain": RetainModel,
        "probe": ProbeModel,
        "applied": ProofModel,
        "absent": ProofModel,
    }
    named = [tables[step] for step in parents if step in tables]
    return list((named[-1] if named else PolicyModel).model_fields)
