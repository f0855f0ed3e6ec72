"""The Stripe SDK with its own retries on, against a policy like Stripe's API.

It is pointed at the gateway by ``base_addresses``, its API key is the gateway key, and the fence
goes along as one of the fields that it lets a call add. Whether it retries is left to it; its pause
before it does is cut.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import stripe

from tests.clients.conftest import SECRET, Place
from tests.clients.documented import REQUEST, boundary_aside, outside
from tests.kit.upstream import Answer, Gate, Recorded, cut, gated, hang, raw, respond

DONE = b'{"id": "pi_1", "object": "payment_intent", "status": "succeeded", "amount": 1200}'
JSON = [("Content-Type", "application/json"), ("Stripe-Version", "2026-01-28")]
CAPTURED = respond(200, DONE, JSON)
_CUT_BODY = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"


class Impatient(stripe.RequestsClient):
    """The SDK's own client, which does not sleep before it retries."""

    def _sleep_time_seconds(self, num_retries: int) -> float:
        return 0


def sdk(place: Place, base: str | None = None, *, retries: int = 2, timeout_s: float = 20) -> Any:
    url = base or place.stripe_url
    return stripe.StripeClient(
        place.token,
        base_addresses={"api": url, "files": url},
        max_network_retries=retries,
        http_client=Impatient(timeout=timeout_s),
    )


def options(place: Place, fence: int = 7, **more: str) -> dict[str, Any]:
    request = place.word("request")
    fields = {"X-Execution-Fence": str(fence), "X-Request-Id": request}
    return {"headers": fields, "stripe_account": "acct_1", **more}


def tried(place: Place, given: dict[str, Any]) -> list[str]:
    return place.decisions_of(given["headers"]["X-Request-Id"])


def pair(place: Place, call: Callable[[Any], Any]) -> tuple[Recorded, Recorded]:
    """The same call at the upstream itself and at the gateway, as the upstream got them."""
    for base in (place.upstream.url, place.stripe_url):
        call(sdk(place, base))
    direct, through = place.upstream.requests
    return direct, through


def test_a_capture_arrives_as_it_was_sent(place: Place) -> None:
    place.upstream.script = lambda _: CAPTURED
    intent = place.word("pi")
    params = {"amount_to_capture": 1200, "metadata": {"note": "caf\u00e9 & co", "empty": ""}}
    direct, through = pair(
        place, lambda sdk: sdk.v1.payment_intents.capture(intent, params, options(place))
    )
    assert through.target == direct.target == f"/v1/payment_intents/{intent}/capture".encode()
    assert through.body == direct.body
    assert b"metadata[note]=caf%C3%A9" in through.body
    changed = REQUEST | {"x-request-id": "another for each call"}
    left = outside(boundary_aside(through)[0], changed)
    assert left == outside(boundary_aside(direct)[0], changed)
    assert {"stripe-version", "stripe-account", "user-agent"} <= {name for name, _ in left}
    assert through.one("Authorization") == SECRET.encode()
    assert through.all("Idempotency-Key") == []


def test_an_upload_arrives_as_it_was_sent(place: Place) -> None:
    place.upstream.script = lambda _: respond(200, b'{"id":"file_1","object":"file"}', JSON)
    content = bytes(range(256)) * 8

    def upload(sdk: Any) -> None:
        given = options(place)
        given["headers"]["X-Upload"] = place.word("upload")
        sdk.v1.files.create(
            {"purpose": "dispute_evidence", "file": io.BytesIO(content)}, options=given
        )

    direct, through = pair(place, upload)
    changed = REQUEST | dict.fromkeys(("x-request-id", "x-upload"), "another for each call")
    (sent, sent_body), (got, got_body) = boundary_aside(direct), boundary_aside(through)
    assert got_body == sent_body
    assert content in got_body
    assert outside(got, changed) == outside(sent, changed)


def test_an_answer_is_the_sdks_own_object_and_so_is_its_replay(place: Place) -> None:
    place.upstream.script = lambda _: CAPTURED
    client, intent, key = sdk(place), place.word("pi"), place.word("key")
    answers = [
        client.v1.payment_intents.capture(
            intent, {"amount_to_capture": 1200}, options(place, idempotency_key=key)
        )
        for _ in range(2)
    ]
    assert [(each.id, each.amount, each.status) for each in answers] == [
        ("pi_1", 1200, "succeeded")
    ] * 2
    marks = [each.last_response.headers["Idempotent-Replayed"] for each in answers]
    assert marks == ["false", "true"]
    assert len(place.upstream.effects) == 1


# What the upstream does behind its effect; the status of the SDK's last try, and its tries.
FAULTS: dict[str, tuple[Answer, int, int]] = {
    "closes": (cut("close"), 504, 3),
    "resets": (cut("reset"), 504, 3),
    "never-answers": (hang(), 504, 3),
    "says-500": (respond(500, b'{"error":{"type":"api_error"}}', JSON, effect=True), 504, 3),
    "says-503": (respond(503, b"later", effect=True), 504, 3),
    "says-409": (respond(409, b'{"error":{"type":"x"}}', JSON, effect=True), 409, 3),
    "asks-to-retry": (
        respond(400, b'{"error":{}}', [*JSON, ("Stripe-Should-Retry", "true")], effect=True),
        400,
        3,
    ),
    "declines": (respond(402, b'{"error":{"type":"card_error"}}', JSON, effect=True), 402, 1),
    "cuts-the-body": (raw(_CUT_BODY, then="close"), 410, 2),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_its_retries_have_no_second_effect(place: Place, fault: str) -> None:
    """No key is given: the SDK makes one itself, and keeps to it."""
    answer, status, tries = FAULTS[fault]
    place.upstream.next(answer)
    intent, given = place.word("pi"), options(place)
    intents = sdk(place).v1.payment_intents
    # A cancel is given up after a second, so that an answer that never comes is soon missed.
    call = intents.cancel if fault == "never-answers" else intents.capture
    with pytest.raises(stripe.StripeError) as caught:
        call(intent, {"metadata": {"order": "17"}}, given)
    assert caught.value.http_status == status
    assert len(tried(place, given)) == tries
    assert (place.upstream.count, len(place.upstream.effects)) == (1, 1)


def test_its_timeout_finds_the_answer_of_the_first_try(place: Place) -> None:
    gate, intent, key = Gate(), place.word("pi"), place.word("key")
    place.upstream.next(gated(gate, CAPTURED))
    with pytest.raises(stripe.APIConnectionError):
        sdk(place, timeout_s=0.1, retries=1).v1.payment_intents.capture(
            intent, {}, options(place, idempotency_key=key)
        )
    place.upstream.wait_for_effects(1)
    gate.release()
    found = sdk(place).v1.payment_intents.capture(intent, {}, options(place, idempotency_key=key))
    assert (found.id, found.last_response.headers["Idempotent-Replayed"]) == ("pi_1", "true")
    assert (place.upstream.count, len(place.upstream.effects)) == (1, 1)


def test_a_stale_fence_is_not_retried(place: Place) -> None:
    """The SDK retries 409 and everything from 500 on; stale is 412."""
    place.upstream.script = lambda _: CAPTURED
    intent = place.word("pi")
    sdk(place).v1.payment_intents.capture(intent, {}, options(place, fence=7))
    late = options(place, fence=6)
    with pytest.raises(stripe.StripeError) as caught:
        sdk(place).v1.payment_intents.capture(intent, {}, late)
    assert caught.value.http_status == 412
    assert tried(place, late) == ["fence-stale"]
    assert len(place.upstream.effects) == 1


def test_a_key_for_something_else_is_not_retried(place: Place) -> None:
    place.upstream.script = lambda _: CAPTURED
    intent, key = place.word("pi"), place.word("key")
    sdk(place).v1.payment_intents.capture(intent, {}, options(place, idempotency_key=key))
    other = options(place, idempotency_key=key)
    with pytest.raises(stripe.StripeError) as caught:
        sdk(place).v1.payment_intents.capture(intent, {"amount_to_capture": 1}, other)
    assert caught.value.http_status == 422
    assert tried(place, other) == ["key-reused"]
    assert len(place.upstream.effects) == 1


def test_a_delete_carries_no_key_by_itself(place: Place) -> None:
    """For its first API the SDK makes keys for POST only; a policy or the caller has to."""
    place.upstream.script = lambda _: respond(200, b'{"id":"cus_1","deleted":true}', JSON)
    customer = place.word("cus")
    with pytest.raises(stripe.StripeError) as caught:
        sdk(place).v1.customers.delete(customer, options=options(place))
    assert caught.value.http_status == 400
    assert place.upstream.count == 0
    given = options(place, idempotency_key=place.word("key"))
    assert sdk(place).v1.customers.delete(customer, options=given).deleted
    assert len(place.upstream.effects) == 1
