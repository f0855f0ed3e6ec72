"""``/openapi.json``: the gateway's own routes (OpenAPI 3.1). By hand: there is little of it, and
what it says of the problems is read from their table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gateway import __version__
from gateway.api import openapi_evidence, openapi_jobs
from gateway.api.evidence import PATH as EVIDENCE
from gateway.api.fences import PATH
from gateway.core.fences import ISSUED_LIMIT
from gateway.core.problems import PREFIX, TYPES, ProblemType
from gateway.core.template import VALUE_LIMIT

__all__ = ["ANSWERED", "document"]

ANSWERED: tuple[ProblemType, ...] = (
    "entity-missing",
    "body-unreadable",
    "request-invalid",
    "unauthenticated",
    "local-only",
    "forbidden",
    "method-not-allowed",
    "body-too-large",
    "entity-leased",
    "overloaded",
    "store-unavailable",
    "rows-lost",
)
"""What ``POST /v1/fences`` may refuse with."""


def document() -> dict[str, Any]:
    """The whole document, as JSON values."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Fencegate",
            "version": __version__,
            "description": "The gateway's own routes. Commands go under the policies' mounts.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        # Without any gateway key, on loopback only, nobody is asked for one. Each operation names
        # the scope that a key needs for it.
        "security": [{}, {"gatewayKey": []}],
        "paths": {
            **openapi_jobs.paths(
                {name: _problems(kinds) for name, kinds in openapi_jobs.REFUSALS.items()}
            ),
            EVIDENCE: {
                "post": openapi_evidence.operation(_problems(openapi_evidence.REFUSALS)),
            },
            PATH: {"post": _issue()},
        },
        "components": {
            "securitySchemes": {
                "gatewayKey": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of `fencegate keys add`.",
                }
            },
            "schemas": {
                "Entity": _ENTITY,
                "Issued": _ISSUED,
                "Problem": _PROBLEM,
                **openapi_jobs.SCHEMAS,
                **openapi_evidence.SCHEMAS,
            },
        },
    }


def _issue() -> dict[str, Any]:
    return {
        "operationId": "issueFence",
        "summary": "Issue the next fence of an entity",
        "description": (
            "Raises the entity's high-water mark; from then on the fence is the only one that is "
            "admitted. Not idempotent: repeated, also after a lost answer, it issues a higher one. "
            "An entity's first is over 2^20, so that it is above those of an outside issuer."
        ),
        "security": [{}, {"gatewayKey": ["work"]}],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "properties": {"entity": {"$ref": "#/components/schemas/Entity"}},
                        "required": ["entity"],
                        "additionalProperties": False,
                    },
                    "example": {"entity": "invoice:123"},
                }
            },
        },
        "responses": {
            "201": {
                "description": "The fence",
                "content": {
                    "application/json": {
                        "schema": {"$ref": "#/components/schemas/Issued"},
                        "example": {"entity": "invoice:123", "fence": 1048577},
                    }
                },
            },
            **_problems(ANSWERED),
        },
    }


def _problems(kinds: Iterable[ProblemType]) -> dict[str, Any]:
    by_status: dict[str, list[ProblemType]] = {}
    for name in kinds:
        by_status.setdefault(str(TYPES[name].status), []).append(name)
    return {
        status: {
            "description": "; ".join(f"`{name}`: {TYPES[name].title}" for name in names),
            "content": {
                "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
            },
        }
        for status, names in by_status.items()
    }


_ENTITY: Mapping[str, Any] = {
    "type": "string",
    "minLength": 1,
    "maxLength": VALUE_LIMIT,
    "pattern": "^[!-~]([ -~]*[!-~])?$",
    "description": "Named as the policy names it: printable ASCII, no blank at either end.",
}
_ISSUED: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "entity": {"$ref": "#/components/schemas/Entity"},
        "fence": {"type": "integer", "format": "int64", "minimum": 1, "maximum": ISSUED_LIMIT},
    },
    "required": ["entity", "fence"],
}
_PROBLEM: Mapping[str, Any] = {
    "type": "object",
    "description": "RFC 9457; every type may have members of its own.",
    "properties": {
        "type": {"enum": [PREFIX + name for name in TYPES]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What to do."},
        "sent": {"enum": ["no", "yes", "unknown"]},
        "retry": {"enum": ["same-key", "wait", "never"]},
        "request_id": {"type": "string"},
    },
    "required": ["type", "title", "status", "detail", "sent", "retry", "request_id"],
}
