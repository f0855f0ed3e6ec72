"""One business thing is one entity: what is spelled in two ways is one, what reads alike to some
upstream is one or refused, and what goes up is what was compared."""

from __future__ import annotations

import json
import posixpath
import unicodedata
from collections.abc import Callable
from urllib.parse import unquote, unquote_to_bytes

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from gateway.core.keys import Refusal
from gateway.core.model import Headers
from gateway.policy import Derived, Match, Policies, derive, load
from tests.unit.policy.texts import command, policy

SALT = bytes(16)
JSON = b"application/json"
FORM = b"application/x-www-form-urlencoded"

# One thing, named in five places; each time exactly and, below /any, whatever the case.
PLACES = {
    "path": ("/things/{id}/acts", "thing:{path.id}"),
    "query": ("/by-query", "thing:{query.id}"),
    "json": ("/by-json", "thing:{body./a/id}"),
    "form": ("/by-form", "thing:{body./id}"),
    "header": ("/by-field", "thing:{header.X-Thing}"),
}
COMMANDS = [
    command(f"POST {prefix}{path}", entity, f"{place}-{case}", f'entity_case = "{case}"')
    for prefix, case in (("", "exact"), ("/any", "ignore"))
    for place, (path, entity) in PLACES.items()
]

# What a value may be: printable, no blank at an end, nothing that another hop reads as structure.
TEXT = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0x7E, exclude_characters="/\\%"), min_size=1
).filter(lambda text: text == text.strip() and text not in (".", "..") and len(text) <= 80)

_RAW = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$'()*:@")


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Policies:
    folder = tmp_path_factory.mktemp("policies")
    split = len(COMMANDS) // 2
    for number, commands in enumerate((COMMANDS[:split], COMMANDS[split:])):
        texts = [each.replace("thing:", f"thing{number}:") for each in commands]
        text = policy(*texts, name=f"p{number}", mount=f"/p{number}")
        (folder / f"{number}.toml").write_text(text, encoding="utf-8")
    return load(folder, {})


@st.composite
def spelled(draw: st.DrawFn, text: str) -> bytes:
    """``text`` percent-encoded in one of the many ways."""
    found = b""
    for byte in text.encode("ascii"):
        if byte in _RAW and draw(st.booleans()):
            found += bytes([byte])
        else:
            digits = draw(st.sampled_from([b"%%%02x", b"%%%02X"]))
            found += digits % byte
    return found


@st.composite
def escaped(draw: st.DrawFn, text: str) -> str:
    """``text`` as a JSON string in one of the many ways."""
    found = ""
    for char in text:
        how = draw(st.sampled_from(["plain", "lower", "upper"]))
        code = f"{ord(char):04x}"
        if how == "plain":
            found += json.dumps(char)[1:-1]
        else:
            found += "\\u" + (code if how == "lower" else code.upper())
    return f'"{found}"'


def ask(
    policies: Policies,
    path: bytes,
    *,
    query: bytes = b"",
    media: bytes = JSON,
    body: bytes = b"{}",
    fields: Headers = (),
) -> tuple[Match, Derived] | Refusal:
    match = policies.match("POST", path)
    if isinstance(match, Refusal):
        return match
    assert isinstance(match, Match), (path, match)
    headers: Headers = (
        (b"Content-Type", media),
        (b"Idempotency-Key", b"k-1"),
        (b"X-Execution-Fence", b"42"),
        *fields,
    )
    found = derive(match, "POST", path, query, headers, body)
    return found if isinstance(found, Refusal) else (match, found)


def at(policies: Policies, raw: bytes, mount: bytes = b"/p0") -> tuple[Match, Derived] | Refusal:
    """A request about the thing that a raw path segment names."""
    prefix = b"/any" if mount == b"/p1" else b""
    return ask(policies, mount + prefix + b"/things/" + raw + b"/acts")


@given(st.data(), TEXT)
def test_every_spelling_in_a_path_is_one_thing_and_goes_up_as_it_came(
    policies: Policies, data: st.DataObject, text: str
) -> None:
    first, second = (data.draw(spelled(text)) for _ in range(2))
    found = [at(policies, raw) for raw in (first, second, first)]
    assert not any(isinstance(each, Refusal) for each in found), found
    (one, a), (other, b), (_, again) = found  # type: ignore[misc]
    assert a.entity == b.entity == f"thing0:{text}"
    # What is compared under a key is what the upstream is sent, byte by byte.
    assert (one.target(b""), other.target(b"")) == tuple(
        b"/things/" + raw + b"/acts" for raw in (first, second)
    )
    assert (a.fingerprint(SALT) == b.fingerprint(SALT)) == (first == second)
    assert a.fingerprint(SALT) == again.fingerprint(SALT)


@given(st.data(), TEXT)
def test_one_thing_is_one_entity_wherever_it_stands(
    policies: Policies, data: st.DataObject, text: str
) -> None:
    encoded = data.draw(spelled(text))
    blank = data.draw(st.sampled_from([b"", b" ", b"\t "]))
    body = b'{"a": {"id": ' + data.draw(escaped(text)).encode() + b"}}"
    found = [
        at(policies, encoded),
        ask(policies, b"/p0/by-query", query=b"x=1&id=" + encoded),
        ask(policies, b"/p0/by-json", body=body),
        ask(policies, b"/p0/by-form", media=FORM, body=b"x=1&id=" + encoded),
    ]
    if "," not in text:
        fields = ((b"x-Thing", blank + text.encode() + blank),)
        found.append(ask(policies, b"/p0/by-field", fields=fields))
    entities = {each if isinstance(each, Refusal) else each[1].entity for each in found}
    assert entities == {f"thing0:{text}"}


@given(TEXT, TEXT)
@example("A-1", "a-1")
@example("straSSe", "strasse")
def test_two_things_are_one_entity_only_where_case_is_ignored(
    policies: Policies, one: str, other: str
) -> None:
    def entity(text: str, mount: bytes) -> str:
        raw = b"".join(b"%%%02X" % byte for byte in text.encode())
        found = at(policies, raw, mount)
        assert not isinstance(found, Refusal)
        return found[1].entity

    assert (entity(one, b"/p0") == entity(other, b"/p0")) == (one == other)
    assert (entity(one, b"/p1") == entity(other, b"/p1")) == (one.lower() == other.lower())


# --- how upstreams read a segment -----------------------------------------------------------------


def _decoded(raw: bytes) -> str:
    return unquote_to_bytes(raw).decode("utf-8", "replace")


READERS: dict[str, Callable[[bytes], str]] = {
    "decodes": _decoded,
    "decodes twice": lambda raw: unquote(_decoded(raw)),
    "as latin-1": lambda raw: unquote_to_bytes(raw).decode("latin-1"),
    "composes": lambda raw: unicodedata.normalize("NFC", _decoded(raw)),
    "folds forms": lambda raw: unicodedata.normalize("NFKC", _decoded(raw)),
    "drops parameters": lambda raw: _decoded(raw.partition(b";")[0]),
    "strips": lambda raw: _decoded(raw).strip(),
    "takes the last segment": lambda raw: _decoded(raw).replace("\\", "/").rsplit("/", 1)[-1],
    "resolves dots": lambda raw: posixpath.normpath(_decoded(raw)),
    "ends at NUL": lambda raw: _decoded(raw).partition("\0")[0],
    "ends at a line": lambda raw: (_decoded(raw).splitlines() or [""])[0],
    "drops what is not seen": lambda raw: "".join(
        char for char in _decoded(raw) if unicodedata.category(char) not in ("Cf", "Cc", "Mn")
    ),
}
IGNORING: dict[str, Callable[[bytes], str]] = {
    "lowers": lambda raw: _decoded(raw).lower(),
    "uppers": lambda raw: _decoded(raw).upper(),
    "folds": lambda raw: _decoded(raw).casefold(),
    "folds forms and case": lambda raw: unicodedata.normalize("NFKC", _decoded(raw)).casefold(),
}

_PIECES = st.sampled_from(
    [
        *("a", "A", "b", "1", "01", "-", ".", "..", "%2e", "%2E", "%2F", "%5c", "%5C", "%252e"),
        *("%2561", "%61", "%41", ";", "%3B", "%20", "%09", "%00", "%0a", "%0D", "%7F", "%25"),
        *("%C3%A9", "e%CC%81", "%E9", "%EF%BD%81", "%E2%80%8B", "%E2%80%AE", "%C2%AD", "%C2%A0"),
        *("%C1%A1", "%ED%A0%80", "%D0%B0", "%E2%84%AA", "k", "%C4%B1", "i", "+", "~", "%7e", "="),
    ]
)
RAW = st.lists(_PIECES, min_size=1, max_size=5).map("".join).map(str.encode)


@settings(max_examples=600, suppress_health_check=[HealthCheck.filter_too_much])
@given(RAW, RAW)
@example(b"a", b"%61")
@example(b"a", b"%2561")
@example(b"a", b"a;b")
@example(b"a", b"%EF%BD%81")
@example(b"a", b"a%00b")
@example(b"a", b"x%2Fa")
@example(b"a", b"a%20")
@example(b"k", b"%E2%84%AA")
@example(b"a", b"A")
def test_what_some_upstream_reads_alike_is_one_entity_or_refused(
    policies: Policies, one: bytes, other: bytes
) -> None:
    for mount, readers in ((b"/p0", READERS), (b"/p1", {**READERS, **IGNORING})):
        alike = [name for name, read in readers.items() if read(one) == read(other)]
        found = [at(policies, raw, mount) for raw in (one, other)]
        taken = [each[1].entity for each in found if not isinstance(each, Refusal)]
        if len(taken) == 2 and alike:
            assert taken[0] == taken[1], alike
        for raw, each in zip((one, other), found, strict=True):
            if not isinstance(each, Refusal):
                assert each[1].entity.isascii()
                assert each[1].entity.isprintable()
                assert each[0].target(b"").endswith(b"/things/" + raw + b"/acts")


@given(RAW)
def test_no_spelling_of_a_segment_raises_or_is_half_taken(policies: Policies, raw: bytes) -> None:
    found = at(policies, raw)
    if isinstance(found, Refusal):
        assert found.type == "request-invalid"
    else:
        assert found[1].entity == "thing0:" + unquote_to_bytes(raw).decode("ascii")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
        max_leaves=4,
    )
)
def test_json_names_a_thing_by_text_alone(policies: Policies, value: object) -> None:
    assume(not isinstance(value, str))
    body = json.dumps({"a": {"id": value}}).encode()
    assert isinstance(ask(policies, b"/p0/by-json", body=body), Refusal)


@given(st.text(min_size=1, max_size=300))
def test_a_text_in_json_is_the_entity_as_it_is_or_refused(policies: Policies, text: str) -> None:
    body = json.dumps({"a": {"id": text}}).encode()
    found = ask(policies, b"/p0/by-json", body=body)
    legal = text.isascii() and text.isprintable() and text == text.strip()
    if isinstance(found, Refusal):
        assert not legal or len(text) > 248
    else:
        assert legal
        assert found[1].entity == f"thing0:{text}"


@given(st.binary(min_size=1, max_size=40))
def test_bytes_of_a_field_are_the_entity_as_they_are_or_refused(
    policies: Policies, value: bytes
) -> None:
    found = ask(policies, b"/p0/by-field", fields=((b"X-Thing", value),))
    if not isinstance(found, Refusal):
        assert found[1].entity == "thing0:" + value.strip(b" \t").decode("ascii")


def test_a_value_beside_another_of_its_name_is_never_taken(policies: Policies) -> None:
    for query in (b"id=a&id=a", b"id=a&id=b", b"id=a&%69d=b", b"id=a&ID=b", b"id=a&id[]=b", b"id="):
        assert isinstance(ask(policies, b"/p0/by-query", query=query), Refusal), query
        body = ask(policies, b"/p0/by-form", media=FORM, body=query)
        assert isinstance(body, Refusal), query
    for field in ((b"X-Thing", b"a"), (b"x-thing", b"a"), (b"X_Thing", b"a"), (b"X.Thing", b"a")):
        fields = ((b"X-Thing", b"a"), field)
        assert isinstance(ask(policies, b"/p0/by-field", fields=fields), Refusal), field


# --- entity_case ----------------------------------------------------------------------------------


def test_the_named_entity_is_the_one_that_is_made(policies: Policies) -> None:
    path = b"/p1/any/things/ACC-1/acts"
    for named, fits in ((b"thing1:acc-1", True), (b"thing1:ACC-1", False)):
        found = ask(policies, path, fields=((b"X-Execution-Entity", named),))
        if fits:
            assert not isinstance(found, Refusal)
        else:
            assert isinstance(found, Refusal)
            assert (found.type, dict(found.members)["entity"]) == (
                "entity-mismatch",
                "thing1:acc-1",
            )


def test_case_changes_the_version_of_the_rules_and_the_default_does_not(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    def version(more: str) -> bytes:
        folder = tmp_path_factory.mktemp("one")
        (folder / "p.toml").write_text(policy(command(more=more)), encoding="utf-8")
        (found,) = load(folder, {}).commands()
        return found.rules.version

    unset, exact, ignore = map(version, ("", 'entity_case = "exact"', 'entity_case = "ignore"'))
    assert unset == exact
    assert exact != ignore


def test_a_literal_keeps_its_case_and_ends_a_value_all_the_same(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("two")
    made = command("POST /x/{a}/{b}", "Thing:{path.a}:{path.b}", more='entity_case = "ignore"')
    (folder / "p.toml").write_text(policy(made), encoding="utf-8")
    policies = load(folder, {})
    found = ask(policies, b"/pay/x/ONE/Two")
    assert not isinstance(found, Refusal)
    assert found[1].entity == "Thing:one:two"
    assert isinstance(ask(policies, b"/pay/x/a:b/c"), Refusal)
