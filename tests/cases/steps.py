"""The words in which further inputs are written: steps, and what is expected of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.cases.driver import Case

Fields = Sequence[tuple[str, str]]
Step = Mapping[str, Any]

CHARGES = "/v1/accounts/acc-1/charges"
HASTY = "/v1/accounts/acc-1/hasty"
LISTS = "/v1/accounts/acc-1/lists"
ACCOUNT = "account:acc-1"
CREATED: Step = {"upstream": {"respond": {"status": 201, "body": '{"id":"ch_1"}'}}}
HANGS: Step = {"upstream": {"fault": "no_response_before_deadline_after_full_request"}}


# -- steps

_HOW = ("client", "wait_for_100", "same_connection", "to_the_end")


def http(
    label: str = "r1",
    *,
    path: str = CHARGES,
    key: str | None = "k-1",
    fence: str | None = "42",
    token: str | None = "Bearer tenant-A",
    media: str = "application/json",
    fields: Fields = (),
    **more: Any,
) -> Step:
    """The default command, or what a case changes of it; ``None`` leaves a field out. ``more``:
    method, body, body_latin1, body_b64, body_generator, chunked; client, wait_for_100,
    same_connection."""
    headers = [["Host", "gw.test"], ["Content-Type", media]]
    for name, value in (
        ("Authorization", token),
        ("Idempotency-Key", key),
        ("X-Execution-Fence", fence),
    ):
        if value is not None:
            headers.append([name, value])
    headers += [list(pair) for pair in fields]
    how = {name: more.pop(name) for name in _HOW if name in more}
    request = {"method": "POST", "path": path, "headers": headers, "body": '{"amount":100}'}
    return {"http": {**request, **more}, "label": label, **how}


def wire(text: str, label: str = "r1") -> Step:
    """Bytes as they are, one for each character, and the end of the connection behind the
    answer. ``CONTROL``: the control fields of the default command."""
    control = "Authorization: Bearer tenant-A\r\nIdempotency-Key: k-1\r\nX-Execution-Fence: 42\r\n"
    return {"raw_latin1": text.replace("CONTROL", control), "label": label, "to_the_end": True}


def answers(status: int, body: str = "", headers: Fields = (), **more: Any) -> Step:
    said = {"status": status, "body": body, "headers": [list(pair) for pair in headers]}
    return {"upstream": {"respond": said}, **more}


def chunks(*pieces: str, headers: Fields = ()) -> Step:
    """201 with a chunked body."""
    said = {"status": 201, "headers": [list(pair) for pair in headers], "body_chunks": pieces}
    return {"upstream": {"respond": said}}


def early(status: int, kib: int) -> Step:
    """A final answer after so much of the body."""
    return {"upstream": {"fault": f"final_{status}_after_{kib}KiB_then_close"}}


def bytes_of(text: str, then: str = "close") -> Step:
    return {"upstream": {"raw_latin1": text, "then": then}}


# -- expectations


def refused(status: int, kind: str, **more: Any) -> dict[str, Any]:
    return {"status": status, "type": kind, "outcome": "rejected", "sent": "no", **more}


def applied(status: int = 201, **more: Any) -> dict[str, Any]:
    return {"status": status, "outcome": "applied", **more}


def replayed(status: int = 201, **more: Any) -> dict[str, Any]:
    return {"status": status, "outcome": "replayed", **more}


def unknown(sent: str) -> dict[str, Any]:
    return {"status": 504, "type": "outcome-unknown", "outcome": "unknown", "sent": sent}


REUSED = refused(422, "key-reused")
STALE = refused(412, "fence-stale")
INCOMPLETE = {"status": 502, "type": "response-incomplete", "outcome": "applied", "sent": "yes"}
NOT_KEPT = {"status": 410, "type": "response-not-retained", "outcome": "rejected", "sent": "yes"}


def case(of: str, name: str, steps: Sequence[Step], calls: int, **expected: Any) -> Case:
    """``expected``: the answers ``r1``, ``r2``, …, and what else must show."""
    responses = {key: expected.pop(key) for key in list(expected) if key[0] == "r" and key[1:]}
    return {
        "id": f"{of}/{name}",
        "input": {"steps": list(steps)},
        "expected": {"responses": responses, "upstream_calls": calls, **expected},
    }


def nothing(of: str, name: str, step: Step, status: int, kind: str) -> Case:
    """One request that is refused and leaves nothing."""
    return case(of, name, [step], 0, r1=refused(status, kind), entities=0, audit=[])


def twice(of: str, name: str, answer: Step, first: Any, second: Any, **more: Any) -> Case:
    """The same request twice, answered once by the upstream."""
    path = more.pop("path", CHARGES)
    steps = [http("r1", path=path), answer, http("r2", path=path)]
    return case(of, name, steps, 1, r1=first, r2=second, **more)
