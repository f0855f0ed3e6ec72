"""Evidence from outside about a command: what is sent, and what is said of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from uuid import UUID

from gateway.core.asking import Form, object_in
from gateway.core.keys import Refusal, check_key
from gateway.core.model import Headers, Response

__all__ = ["REASON_LIMIT", "Evidence", "evidence_in"]

REASON_LIMIT = 1_000
"""Characters of a reason: a few sentences and an id."""

_EXAMPLE = '{"key": "pay-17", "verdict": "executed", "reason": "webhook evt_1"}'
_BODY_LIMIT = 16 * 2**20
_EMPTY = frozenset(
    {204, 205, 304}
)  # RFC 9110 §6.4.1, §15.3.6; 1xx are no answers, and out of bounds here
_MEDIA = re.compile(r"[!-~]+(?: [!-~]+)*")


@dataclass(frozen=True, slots=True)
class Evidence:
    """``attempt`` ``None``: whichever holds the key. ``response``: what the upstream answered."""

    key: str
    executed: bool
    reason: str
    attempt: UUID | None
    response: Response | None


def evidence_in(raw: bytes, headers: Headers) -> Evidence | Refusal:
    """The evidence in the body of ``POST /v1/evidence``, or all that is wrong with it."""
    members = object_in(raw, headers, _EXAMPLE)
    if isinstance(members, Refusal):
        return members
    form = Form(members)
    key = form.text("key", 255)
    verdict = form.text("verdict", 16)
    reason = form.text("reason", REASON_LIMIT)
    attempt = form.optional_uuid("attempt")
    response = _response(form, verdict)
    form.close()
    if form.sound:
        wrong = check_key(key)
        if isinstance(wrong, Refusal):
            form.wrong("key", wrong.detail.rstrip("."))
        if verdict not in ("executed", "not-executed"):
            form.wrong("verdict", 'send "executed" or "not-executed"')
    return form.refusal() or Evidence(key, verdict == "executed", reason, attempt, response)


def _response(form: Form, verdict: str) -> Response | None:
    """The upstream's answer, where ``status`` says that there is one."""
    status = form.number("status", 200, 599, default=0)
    body = form.optional_text("body", _BODY_LIMIT, shortest=0)
    media = form.optional_text("content_type", 255)
    if not status:
        for name, value in (("body", body), ("content_type", media)):
            if value is not None:
                form.wrong(name, "has no use without status")
        return None
    if verdict != "executed":
        form.wrong("status", "is the answer to a command that was executed; leave it out")
    if status in _EMPTY and body:
        form.wrong("body", f"an answer {status} has none; leave it out")
    if media is not None and not (_MEDIA.fullmatch(media)):
        form.wrong("content_type", "send a media type, e.g. application/json")
        media = None
    fields = () if media is None else ((b"content-type", media.encode("ascii")),)
    return Response(status, fields, (body or "").encode("utf-8"))
