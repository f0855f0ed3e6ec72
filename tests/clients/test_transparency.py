"""Through the gateway, an upstream gets and a client hears what it would without it, but for the
documented fields."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import SECRET, Place
from tests.clients.documented import REQUEST, RESPONSE, boundary_aside, outside
from tests.clients.wish import Client, Heard, Wish
from tests.kit.upstream import Answer, Recorded, raw, respond

UTF_8 = "Zo\u00eb \u2615".encode().decode("latin-1")
"""A field value in UTF-8, one character for each byte."""

JSON = b'{ "amount" : 100,\r\n "note": "caf\xc3\xa9", "amount_text":"1.00" }'
FILE = bytes(range(256)) * 8 + b"\r\n--x--\r\n"

REQUESTS: dict[str, dict[str, Any]] = {
    "json": {"body": JSON, "fields": (("Content-Type", "application/json"),)},
    "no-body": {},
    "no-type": {"body": b"\x00\xff raw"},
    "form": {"form": (("amount", "100"), ("note", "caf\u00e9 & co=1"), ("empty", ""))},
    "parts": {"parts": (("amount", "", b"100"), ("file", "a b.bin", FILE))},
    "chunks": {
        "chunks": (b"abc", b"d" * 70_000, b"e"),
        "fields": (("Content-Type", "application/octet-stream"),),
    },
    "large": {
        "body": b"x" * 2_000_000,  # curl asks for 100 Continue from 1 MiB on
        "fields": (("Content-Type", "application/octet-stream"),),
    },
    "coded": {
        "body": gzip.compress(JSON),
        "fields": (("Content-Type", "application/json"), ("Content-Encoding", "gzip")),
    },
    "fields": {
        "body": JSON,
        "fields": (
            ("Content-Type", "application/json; charset=UTF-8"),
            ("Cookie", "a=1; b=2"),
            ("X-Name", UTF_8),
            ("X-Latin", "Zo\u00eb"),
            ("X-Many", "1"),
            ("X-Many", "2"),
            ("X-Forwarded-For", "192.0.2.1"),
            ("Accept", "application/json, */*;q=0.1"),
            ("Accept-Language", "de"),
            ("If-Match", '"v1"'),
            ("Origin", "https://shop.example"),
            ("Prefer", "wait=5, return=minimal"),
            ("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ),
    },
}


def test_the_list_is_the_documented_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "wire.md").read_text(encoding="utf-8")
    section = page.partition("\n## What is passed up, and what is changed\n")[2].partition("\n## ")[
        0
    ]
    named = {name.lower() for name in re.findall(r"`([^`]+)`", section)}
    assert {*REQUEST, *RESPONSE} <= named


def direct_and_through(
    place: Place, client: Client, wish: Wish
) -> tuple[tuple[Heard, Recorded], tuple[Heard, Recorded]]:
    """The same wish at the upstream itself, and at the gateway."""
    done = []
    for url in (wish.url.replace(place.url, place.upstream.url), wish.url):
        heard = client.send(wish.at(url))
        assert heard.status, heard.error
        done.append((heard, place.upstream.requests[-1]))
    assert place.upstream.count == 2
    return done[0], done[1]


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_arrives_as_it_was_sent(place: Place, client: Client, name: str) -> None:
    about = dict(REQUESTS[name])
    wish = place.wish()
    more = about.pop("fields", ())
    wish = Wish(wish.method, wish.url + "?a=%2F&b=x+y&a=", wish.fields + more, **about)
    (_, sent), (heard, got) = direct_and_through(place, client, wish)
    assert (heard.status, heard.all("gateway-outcome")) == (201, ["applied"])
    assert (got.method, got.target) == (sent.method, sent.target)
    (sent_fields, sent_body), (got_fields, got_body) = boundary_aside(sent), boundary_aside(got)
    assert got_body == sent_body
    assert len(sent_body) >= len(about.get("body") or b"")
    assert outside(got_fields, REQUEST) == outside(sent_fields, REQUEST)
    assert {"x-request-id"} <= {name for name, _ in outside(got_fields, REQUEST)}
    _as_documented(place, got)


def _as_documented(place: Place, got: Recorded) -> None:
    """What becomes of the fields that are on the list."""
    assert got.one("Host") == f"127.0.0.1:{place.upstream.port}".encode()
    assert got.one("Content-Length") == str(len(got.body)).encode()
    assert got.one("Authorization") == SECRET.encode()
    assert (got.one("Via") or b"").startswith(b"1.1 fencegate-")
    gone = set(REQUEST) - {"host", "content-length", "authorization", "via"}
    assert [name for name, _ in got.headers if name.decode().lower() in gone] == []


def test_who_asks_first_is_told_to_go_on(place: Place, client: Client) -> None:
    """``Expect: 100-continue``; fetch refuses to send it. A direct call is no measure: the upstream
    of the tests does not say 100, and curl waits a second for it."""
    wish = place.wish(body=b"x" * 300_000)
    heard = client.send(
        Wish("POST", wish.url, (*wish.fields, ("Expect", "100-continue")), wish.body)
    )
    if client.name == "fetch":
        assert (heard.status, place.upstream.count) == (0, 0)
        return
    assert (heard.status, heard.all("gateway-outcome")) == (201, ["applied"])
    (got,) = place.upstream.requests
    assert (got.body, got.all("Expect")) == (wish.body, [])


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
def test_other_methods_arrive_as_they_are(place: Place, client: Client, method: str) -> None:
    wish = place.wish()
    url = wish.url.removesuffix("/charges")
    wish = Wish(method, url, (*wish.fields, ("Content-Type", "application/json")), JSON)
    (_, sent), (heard, got) = direct_and_through(place, client, wish)
    assert heard.all("gateway-outcome") == ["applied"]
    assert (got.method, got.target, got.body) == (method.encode(), sent.target, JSON)
    assert outside(boundary_aside(got)[0], REQUEST) == outside(boundary_aside(sent)[0], REQUEST)


@pytest.mark.parametrize("method", ["GET", "OPTIONS"])
def test_safe_requests_arrive_as_they_are(place: Place, client: Client, method: str) -> None:
    wish = place.wish()
    fields = (*wish.fields, ("Range", "bytes=0-9"), ("If-None-Match", '"1"'), ("X-Name", UTF_8))
    (_, sent), (heard, got) = direct_and_through(place, client, Wish(method, wish.url, fields))
    assert heard.all("gateway-outcome") == ["unguarded"]
    assert (got.method, got.target, got.body) == (method.encode(), sent.target, b"")
    assert outside(boundary_aside(got)[0], REQUEST) == outside(boundary_aside(sent)[0], REQUEST)


HEADERS = (
    ("Content-Type", "application/json; charset=utf-8"),
    ("Date", "Thu, 01 Jan 2026 00:00:00 GMT"),
    ("Server", "legacy/1"),
    ("Link", "</a>; rel=next"),
    ("Set-Cookie", "a=1; Path=/; Expires=Thu, 01 Jan 2026 00:00:00 GMT"),
    ("X-Name", "Zo\u00eb \u2615"),
    ("Link", "</b>; rel=last"),
    ("Set-Cookie", "b=2"),
    ("ETag", 'W/"7"'),
    ("Location", "https://elsewhere.example/x?y=%41"),
    ("Vary", "Accept-Encoding"),
    ("Retry-After", "0"),
    ("X-Empty", ""),
    ("Cache-Control", "no-store"),
    ("Strict-Transport-Security", "max-age=1"),
    ("Access-Control-Allow-Origin", "*"),
)
TEXT = b'{"id": "ch_1", "note": "caf\xc3\xa9"}'
CODED = gzip.compress(TEXT)

RESPONSES: dict[str, Answer] = {
    "fields": respond(201, TEXT, HEADERS),
    "gzip": respond(200, CODED, [("Content-Encoding", "gzip"), ("Content-Type", "text/plain")]),
    "chunks": raw(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\n\r\n"
    ),
    "until-the-end": raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nabc", then="close"),
    "no-content": respond(204, b"", [("ETag", '"1"')]),
    "empty": respond(200, b"", [("Content-Type", "text/plain")]),
    "not-found": respond(404, b'{"e":1}', [("Content-Type", "application/problem+json")]),
    "conflict": respond(409, b"taken", [("Retry-After", "7")]),
    "see-other": respond(303, b"", [("Location", "/v1/elsewhere")]),
    "temporary": respond(307, b"moved", [("Location", "/v1/elsewhere?a=%2F")]),
    "permanent": respond(308, b"", [("Location", "https://elsewhere.example/")]),
    "large": respond(200, b"y" * 2_000_000, [("Content-Type", "application/octet-stream")]),
}


@pytest.mark.parametrize("name", RESPONSES)
def test_a_response_is_heard_as_it_was_given(place: Place, client: Client, name: str) -> None:
    place.upstream.script = lambda _: RESPONSES[name]
    wish = place.wish(body=JSON)
    (told, _), (heard, _) = direct_and_through(place, client, wish)
    assert (heard.status, heard.body) == (told.status, told.body)
    assert outside(heard.headers, RESPONSE) == outside(told.headers, RESPONSE)
    assert heard.all("gateway-outcome") == ["applied"]
    assert heard.all("idempotent-replayed") == ["false"]


def test_interim_responses_end_at_the_gateway(place: Place, client: Client) -> None:
    """A direct call is no measure here: requests takes a 103 for the answer."""
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    final = b"HTTP/1.1 201 Created\r\nContent-Length: 3\r\n\r\nabc"
    place.upstream.next(raw(hints + final))
    heard = client.send(place.wish(body=JSON))
    assert (heard.status, heard.body, heard.all("link")) == (201, b"abc", [])


@pytest.mark.parametrize("name", ["fields", "gzip", "chunks", "no-content", "temporary"])
def test_a_replay_is_heard_as_the_first_answer(place: Place, client: Client, name: str) -> None:
    """But for what must not be kept: cookies and challenges; and the ``Date`` is its own."""
    place.upstream.script = lambda _: RESPONSES[name]
    wish = place.wish(body=JSON)
    first, again = client.send(wish), client.send(wish)
    assert again.all("idempotent-replayed") == ["true"]
    assert (again.status, again.body) == (first.status, first.body)
    fresh = RESPONSE | dict.fromkeys(("set-cookie", "date"), "not recorded")
    assert outside(again.headers, fresh) == outside(first.headers, fresh)
    assert again.all("set-cookie") == []
    assert place.upstream.count == 1
