"""The JSON Schema of a policy file, for editors: published as ``docs/policy.schema.json``.

It is made from the models that the loader uses, so it allows nothing less than they do. It cannot
say everything (templates, what takes two fields or two files): ``fencegate check`` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from gateway.policy.fields import MAX_KEEP
from gateway.policy.schema import (
    MAX_BODY,
    CommandModel,
    FingerprintModel,
    PolicyModel,
    ProbeModel,
    ProofModel,
    RetainModel,
)

__all__ = ["as_text", "json_schema"]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ID = "urn:fencegate:policy-schema"

_MODELS = (PolicyModel, CommandModel, FingerprintModel, RetainModel, ProbeModel, ProofModel)

_SIZE = "^[0-9]{1,12} ?(B|KiB|MiB|GiB)$"
_FIELD_NAME = "^[A-Za-z0-9!#$%&'*+.^`|~-]{1,100}$"

# What the validators of single fields ask for, as far as a pattern can say it.
_PATTERNS = {
    "name": "^[a-z0-9]([a-z0-9_-]{0,62}[a-z0-9])?$",
    "mount": "^(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+$",
    "upstream": "^https?://[^ ?#]+$",
    "match": "^[A-Z][A-Z0-9-]{0,31} /",
    "send_key": _FIELD_NAME,
    "send_fence": _FIELD_NAME,
    "request": "^GET /",
    "where": "^/",
}
_ITEM_PATTERNS = {"ignore": "^/", "headers": _FIELD_NAME}
_SIZES = {"request_limit": MAX_BODY, "keep_limit": MAX_KEEP}


def json_schema() -> dict[str, Any]:
    """The schema (draft 2020-12)."""
    made = PolicyModel.model_json_schema()
    for title, model in _tables(made):
        model["title"] = title
        for name, field in model["properties"].items():
            _tidy(name, field)
    return {"$schema": _DIALECT, "$id": _ID, **made, "title": "Fencegate policy"}


def as_text() -> str:
    """The schema as the file that is published."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _tables(made: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for model in _MODELS:
        name = model.__name__
        yield name.removesuffix("Model").lower(), made["$defs"].get(name, made)


def _tidy(name: str, field: dict[str, Any]) -> None:
    """One field, as an editor can use it."""
    field.pop("title", None)
    field["description"] = " ".join(field["description"].split())
    if "anyOf" in field:  # TOML has no null: what is not wanted is left out
        (wanted,) = (each for each in field.pop("anyOf") if each != {"type": "null"})
        field |= wanted
        del field["default"]
    if name in _SIZES:
        number = {"type": "integer", "minimum": 0, "maximum": _SIZES[name]}
        for key in field.keys() - {"default", "description"}:
            del field[key]  # the number alone, and in words that no validator knows
        field["anyOf"] = [number, {"type": "string", "pattern": _SIZE}]
    if name in _PATTERNS:
        field["pattern"] = _PATTERNS[name]
    if name in _ITEM_PATTERNS and "items" in field:
        field["items"]["pattern"] = _ITEM_PATTERNS[name]
    if name == "upstream_headers" or (name == "headers" and "items" not in field):
        field["propertyNames"] = {"pattern": _FIELD_NAME}
