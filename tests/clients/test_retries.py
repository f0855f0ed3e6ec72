"""Whatever goes wrong, and however a client retries by itself, the upstream acts once.

A client may ask twice, and the number of its tries is counted: no test passes because nothing was
retried.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.clients.conftest import Place
from tests.clients.wish import Client, Heard, Wish
from tests.kit.client import Exchange
from tests.kit.upstream import Answer, Gate, cut, gated, hang, raw, respond

BODY = b'{"amount":100}'

TRIES = 2


def tries(client: Client, status: int) -> int:
    """How often a client asks that may ask twice. curl waits as long as ``Retry-After`` says (30 s
    behind an unknown outcome), or not at all where that is more than it was given."""
    return 1 if client.name == "curl" and status == 504 else TRIES


_CUT_BODY = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"
_CUT_CHUNK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"

# What the upstream does behind its effect; the status of every further answer.
FAULTS: dict[str, tuple[Answer, int]] = {
    "closes": (cut("close"), 504),
    "resets": (cut("reset"), 504),
    "says-500": (respond(500, b"boom", effect=True), 504),
    "says-503": (respond(503, b"later", [("Retry-After", "0")], effect=True), 504),
    "says-504": (respond(504, b"proxy", effect=True), 504),
    "never-answers": (hang(), 504),
    "talks-nonsense": (raw(b"\x00\x01\x02", then="close"), 504),
    "says-409": (respond(409, b"taken", [("Retry-After", "0")], effect=True), 409),
    "cuts-the-body": (raw(_CUT_BODY, then="close"), 410),
    "cuts-a-chunk": (raw(_CUT_CHUNK, then="reset"), 410),
}


def wish_of(place: Place, **about: object) -> Wish:
    wish = place.wish(body=BODY, tries=TRIES, **about)
    return replace(wish, fields=(*wish.fields, ("Content-Type", "application/json")))


def with_field(wish: Wish, name: str, value: str) -> Wish:
    """The same wish with one field set."""
    others = tuple(pair for pair in wish.fields if pair[0] != name)
    return replace(wish, fields=(*others, (name, value)))


def again(client: Client, wish: Wish) -> Heard:
    """The caller itself asks once more, patiently."""
    return client.send(replace(wish, tries=1, timeout_s=20.0))


def effects_on(place: Place, wish: Wish) -> int:
    target = wish.url.removeprefix(place.url).encode()
    return sum(effect.target == target for effect in place.upstream.effects)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_behind_the_effect_has_no_second_effect(
    place: Place, client: Client, fault: str
) -> None:
    answer, status = FAULTS[fault]
    place.upstream.next(answer)
    wish = wish_of(place)
    if fault == "never-answers":
        wish = wish.at(wish.url.replace("/charges", "/hasty"))
    heard = client.send(wish)
    assert (place.upstream.count, effects_on(place, wish)) == (1, 1)
    first = 502 if status == 410 else status
    assert len(place.decisions(wish)) == tries(client, first), heard
    assert heard.status == (status if tries(client, first) > 1 else first)
    assert again(client, wish).status == status
    assert (place.upstream.count, effects_on(place, wish)) == (1, 1)


def test_a_client_that_times_out_finds_its_answer(place: Place, client: Client) -> None:
    gate = Gate()
    place.upstream.next(gated(gate))
    wish = wish_of(place, timeout_s=0.3)
    heard = client.send(wish)
    assert heard.status == 0
    place.upstream.wait_for_effects(1)
    gate.release()
    found = again(client, wish)
    assert (found.status, json.loads(found.body)) == (201, {"effect": 1})
    assert found.all("idempotent-replayed") == ["true"]
    assert again(client, wish).body == found.body
    assert (place.upstream.count, effects_on(place, wish)) == (1, 1)


def test_a_stale_fence_is_never_retried_into_an_effect(place: Place, client: Client) -> None:
    first = wish_of(place)
    assert again(client, first).status == 201
    late = first
    for name, value in (
        ("Idempotency-Key", place.word("key")),
        ("X-Request-Id", place.word("request")),
        ("X-Execution-Fence", "6"),
    ):
        late = with_field(late, name, value)
    client.send(late)
    assert place.decisions(late) == ["fence-stale"] * tries(client, 412)
    assert again(client, late).status == 412
    assert (place.upstream.count, effects_on(place, first)) == (1, 1)


@contextmanager
def held(place: Place, *wishes: Wish) -> Iterator[list[Exchange]]:
    """The wishes are in flight: their effects have happened, their answers are not there yet."""
    gate, caller = Gate(), place.stack.caller()
    place.upstream.next(*(gated(gate) for _ in wishes))
    seen, open_ones = place.upstream.count, []
    for number, wish in enumerate(wishes, start=1):
        target = wish.url.removeprefix(place.stack.gateway.url)
        open_ones.append(caller.open("POST", target, wish.fields, BODY))
        place.upstream.wait_for_requests(seen + number)
    try:
        yield open_ones
    finally:
        gate.release()
    for one in open_ones:
        assert one.reply().status == 201


def test_what_is_in_flight_is_not_sent_again(place: Place, client: Client) -> None:
    wish = with_field(wish_of(place), "Prefer", "wait=0")
    mine = with_field(wish, "X-Request-Id", place.word("request"))
    with held(place, wish):
        client.send(mine)
        assert place.decisions(mine) == ["in-flight"] * tries(client, 409)
    found = again(client, mine)
    assert (found.status, found.all("idempotent-replayed")) == (201, ["true"])
    assert (place.upstream.count, effects_on(place, wish)) == (1, 1)


def test_a_gateway_at_its_limit_sends_once_it_can(place: Place, client: Client) -> None:
    wish = wish_of(place)
    with held(place, wish_of(place), wish_of(place)):
        heard = client.send(wish)
        assert (heard.status, heard.all("retry-after")) == (503, ["1"])
        assert place.decisions(wish) == ["overloaded"] * tries(client, 503)
        assert effects_on(place, wish) == 0
    found = again(client, wish)
    assert (found.status, found.all("gateway-outcome")) == (201, ["applied"])
    assert effects_on(place, wish) == 1


def test_what_was_not_sent_is_sent_when_it_can_be(place: Place, client: Client) -> None:
    wish = wish_of(place)
    place.upstream.refuse()
    place.upstream.drop_connections()
    try:
        client.send(wish)
    finally:
        place.upstream.accept()
    assert place.decisions(wish) == ["not-sent"] * tries(client, 502)
    assert again(client, wish).status == 201
    assert again(client, wish).all("idempotent-replayed") == ["true"]
    assert (place.upstream.count, effects_on(place, wish)) == (1, 1)


FORMS: dict[str, dict[str, Any]] = {
    "form": {"form": (("amount", "100"), ("note", "caf\u00e9 & co"))},
    "parts": {"parts": (("amount", "", b"100"), ("file", "a.bin", bytes(range(256)) * 8))},
}


@pytest.mark.parametrize("kind", FORMS)
def test_a_form_that_is_made_again_is_the_same_command(
    place: Place, client: Client, kind: str
) -> None:
    """Clients choose a new boundary each time."""
    wish = place.wish(**FORMS[kind])
    first, second = client.send(wish), client.send(wish)
    assert (first.status, second.status) == (201, 201)
    assert second.all("idempotent-replayed") == ["true"]
    assert (place.upstream.count, effects_on(place, wish)) == (1, 1)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_that_is_followed_has_no_second_effect(
    place: Place, client: Client, status: int
) -> None:
    """Clients follow by themselves, some with the whole command: it is then another one under the
    same key."""
    wish = replace(wish_of(place), follow=True, tries=1)
    elsewhere = wish.url.replace("/charges", "x/charges")
    place.upstream.next(respond(status, b"", [("Location", elsewhere)], effect=True))
    place.upstream.script = lambda request: (
        respond(200, b"read", effect=False) if request.method == b"GET" else None
    )
    heard = client.send(wish)
    assert len(place.decisions(wish)) == 2, heard
    assert place.decisions(wish)[1] in ("key-reused", "unguarded")
    if status in (307, 308):
        assert place.decisions(wish)[1] == "key-reused"
    assert [effect.target for effect in place.upstream.effects] == [
        wish.url.removeprefix(place.url).encode()
    ]
