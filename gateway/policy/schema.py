"""The policy file, as pydantic models: one file per upstream, unknown fields forbidden.

Only what one field alone can tell is checked here; what takes two fields or two files is in
``crosscheck``. Every mistake becomes a ``PolicyError`` with its field and its mend.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from gateway.policy import fields
from gateway.policy.errors import PolicyError

__all__ = [
    "CommandModel",
    "FingerprintModel",
    "PolicyModel",
    "RetainModel",
    "field_path",
    "json_schema",
    "mistakes",
]

MAX_BODY = 64 * 2**20
"""Bytes. A body is held in memory while its command runs, once for each caller."""

MAX_TIMEOUT_S = 3_600
"""A command holds its entity for so long at worst; longer work belongs into a job."""

MAX_DAYS = 3_650
"""Ten years, the longest that bookkeeping asks for."""

_Size = Annotated[
    int,
    BeforeValidator(fields.size, json_schema_input_type=int | str),
    Field(ge=0, le=MAX_BODY),
]
_KeptSize = Annotated[
    int,
    BeforeValidator(fields.size, json_schema_input_type=int | str),
    Field(ge=0, json_schema_extra={"maximum": fields.MAX_KEEP}),
    AfterValidator(fields.keep),
]
_Days = Annotated[int, Field(ge=1, le=MAX_DAYS)]
_HeaderName = Annotated[str, AfterValidator(fields.header_name)]
_SentName = Annotated[str, AfterValidator(fields.sent_name)]
_Template = Annotated[str, AfterValidator(fields.template)]


class _Model(BaseModel):
    # strict: a quoted number or a yes for true is a mistake, not a spelling.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)


class FingerprintModel(_Model):
    """What must be equal for a key to be the same command, beside method, path, query, entity."""

    body: Annotated[
        Literal["auto", "json", "raw"],
        BeforeValidator(fields.choice("auto", "json", "raw", later=("form", "multipart"))),
    ] = "auto"
    ignore: list[Annotated[str, AfterValidator(fields.pointer)]] = []
    headers: list[_HeaderName] = []


class RetainModel(_Model):
    """How long things are remembered, in days."""

    response_days: _Days = 30
    key_days: _Days = 400


class CommandModel(_Model):
    """One kind of command."""

    name: Annotated[str, AfterValidator(fields.slug)]
    match: Annotated[str, AfterValidator(fields.pattern)]
    entity: _Template
    key: _Template = "{header.Idempotency-Key}"
    fence: Annotated[
        Literal["required", "optional", "off"],
        BeforeValidator(fields.choice("required", "optional", "off")),
    ] = "required"
    fence_from: _Template = "{header.X-Execution-Fence}"
    serial: bool = True
    unknown: Annotated[
        Literal["hold"], BeforeValidator(fields.choice("hold", later=("resend", "probe")))
    ] = "hold"
    timeout_s: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S, allow_inf_nan=False)] = 30
    settle_delay_s: Annotated[int, Field(ge=0, le=86_400)] = 300
    issuer: Annotated[
        Literal["outside"], BeforeValidator(fields.choice("outside", later=("here",)))
    ] = "outside"
    # Never a 2xx or an interim status: those say that it was executed, or nothing yet.
    not_executed: list[Annotated[int, Field(ge=300, le=599)]] = [401, 407, 421, 425, 429]
    ambiguous: list[Annotated[int, Field(ge=200, le=599)]] = [408, 500, 502, 503, 504]
    send_key: _SentName | None = None
    send_fence: _SentName | None = None
    pass_authorization: bool = False
    request_limit: _Size = 8 * 2**20
    keep_limit: _KeptSize = 2**20
    fingerprint: FingerprintModel = FingerprintModel()
    retain: RetainModel = RetainModel()


class PolicyModel(_Model):
    """One upstream, where it is mounted and what may be sent to it."""

    name: Annotated[str, AfterValidator(fields.slug)]
    mount: Annotated[str, AfterValidator(fields.mount)]
    upstream: Annotated[str, AfterValidator(fields.upstream_url)]
    ca_file: Annotated[str, Field(min_length=1)] | None = None
    idle_s: Annotated[float, Field(ge=0, le=300, allow_inf_nan=False)] = 4
    max_connections: Annotated[int, Field(ge=1, le=10_000)] = 256
    upstream_headers: dict[_HeaderName, str] = {}
    commands: list[CommandModel] = []


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a policy file, for editors."""
    return PolicyModel.model_json_schema()


_EXAMPLES: Mapping[str, str] = {
    "name": 'name = "capture"',
    "mount": 'mount = "/payments"',
    "upstream": 'upstream = "https://payments.example"',
    "match": 'match = "POST /v1/invoices/{invoice_id}/capture"',
    "entity": 'entity = "invoice:{path.invoice_id}"',
}

_LATER: Mapping[str, str] = {
    "mode": "shadow policies are not in this release",
    "probe": "probes are not in this release",
    "resend_within_s": "resending is not in this release",
    "resend_conflict": "resending is not in this release",
    "cache_s": "caching is not in this release",
}

_TYPES: Mapping[str, tuple[str, str]] = {
    "bool_type": ("is not true or false", "write true or false, without quotes"),
    "dict_type": ("is not a table", "write it as a TOML table"),
    "finite_number": ("is not a finite number", "write a number"),
    "float_type": ("is not a number", "write a number, without quotes"),
    "int_type": ("is not a whole number", "write a whole number, without quotes"),
    "list_type": ("is not a list", "write it in [brackets]; commands as [[commands]]"),
    "model_type": ("is not a table", "write it as a TOML table"),
    "string_type": ("is not text", "put it in quotes"),
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
    if kind in _TYPES:
        return _TYPES[kind]
    for bound, words in _BOUNDS.items():
        if bound in context:
            return f"is out of range: it must be {words} {context[bound]}", "choose a value there"
    return details["msg"], "correct it"


_BOUNDS: Mapping[str, str] = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}


def _unknown(location: tuple[int | str, ...], name: str) -> tuple[str, str]:
    if name in _LATER:
        return _LATER[name], f"remove {name}"
    known = _fields_at(location[:-1])
    close = difflib.get_close_matches(name, known, n=1)
    return "is not a field", f"write {close[0]}" if close else f"remove it ({', '.join(known)})"


def _fields_at(parents: tuple[int | str, ...]) -> list[str]:
    """The fields that could stand where an unknown one does."""
    tables: Mapping[int | str, type[_Model]] = {
        "commands": CommandModel,
        "fingerprint": FingerprintModel,
        "retain": RetainModel,
    }
    named = [tables[step] for step in parents if step in tables]
    return list((named[-1] if named else PolicyModel).model_fields)
