"""What ``/openapi.json`` says of ``POST /v1/evidence``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.core.keys import KEY_LIMIT
from gateway.core.problems import ProblemType
from gateway.core.reporting import REASON_LIMIT

__all__ = ["REFUSALS", "SCHEMAS", "operation"]

REFUSALS: tuple[ProblemType, ...] = (
    "body-unreadable",
    "request-invalid",
    "unauthenticated",
    "local-only",
    "forbidden",
    "no-command",
    "method-not-allowed",
    "evidence-refused",
    "body-too-large",
    "overloaded",
    "store-unavailable",
    "rows-lost",
)

_EXAMPLE = {"key": "pay-17", "verdict": "executed", "reason": "webhook evt_1"}


def operation(problems: Mapping[str, Any]) -> dict[str, Any]:
    """``problems``: the responses of ``REFUSALS``, by status."""
    return {
        "operationId": "reportEvidence",
        "summary": "Report what became of an unknown command",
        "description": (
            "Decides the command as an operator would, and is audited. May be repeated: what is "
            "settled already stays as it is. Not executed can be said only when settle_delay_s of "
            "its policy has passed since its deadline."
        ),
        "security": [{}, {"gatewayKey": ["operate"]}],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {"$ref": "#/components/schemas/Evidence"},
                    "example": _EXAMPLE,
                }
            },
        },
        "responses": {
            "200": {
                "description": "Decided now, or settled before",
                "content": {
                    "application/json": {
                        "schema": {"$ref": "#/components/schemas/Decided"},
                        "example": {
                            "key": "pay-17",
                            "verdict": "executed",
                            "result": "resolved",
                        },
                    }
                },
            },
            **problems,
        },
    }


_KEY: Mapping[str, Any] = {
    "type": "string",
    "minLength": 1,
    "maxLength": KEY_LIMIT,
    "description": "The idempotency key, without quotes.",
}
_VERDICT: Mapping[str, Any] = {"enum": ["executed", "not-executed"]}

SCHEMAS: Mapping[str, Any] = {
    "Evidence": {
        "type": "object",
        "properties": {
            "key": _KEY,
            "verdict": _VERDICT,
            "reason": {
                "type": "string",
                "minLength": 1,
                "maxLength": REASON_LIMIT,
                "description": "How that is known; kept in the audit.",
            },
            "attempt": {
                "type": "string",
                "format": "uuid",
                "description": "The attempt that is meant; without it, whichever holds the key.",
            },
            "status": {
                "type": "integer",
                "minimum": 200,
                "maximum": 599,
                "description": "Of the upstream's answer, to be replayed; only with executed.",
            },
            "body": {
                "type": "string",
                "description": "Of that answer, none with 204, 205 and 304. Kept up to keep_limit "
                "of the command's policy.",
            },
            "content_type": {
                "type": "string",
                "maxLength": 255,
                "description": "Of that answer; without it, the replay has no Content-Type.",
            },
        },
        "required": ["key", "verdict", "reason"],
        "additionalProperties": False,
    },
    "Decided": {
        "type": "object",
        "properties": {
            "key": _KEY,
            "verdict": _VERDICT,
            "result": {
                "enum": ["resolved", "settled"],
                "description": "resolved: decided by this; settled: it was settled before.",
            },
        },
        "required": ["key", "verdict", "result"],
    },
}
