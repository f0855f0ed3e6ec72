"""Which command a request is, and that what cannot be told is refused."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.core.keys import Refusal
from gateway.policy import Match, NoPolicy, Policies, Unguarded
from gateway.policy.matcher import Table, check_path, parse_pattern, split_path
from tests.unit.policy.conftest import Load
from tests.unit.policy.texts import command, policy


@pytest.fixture
def policies(load_text: Load) -> Policies:
    return load_text(
        outer=policy(
            command("POST /charges/{id}", "c:{path.id}", "charge"),
            command("POST /charges/refund", "refunds", "refund"),
            command("POST /charges/{id}/items/{item}", "c:{path.id}", "item"),
            command("GET /run/{id}", "r:{path.id}", "run"),
            command("POST /slash/", "slash", "slash"),
            command("DELETE /", "root", "root"),
            name="outer",
            mount="/pay",
        ),
        inner=policy(command("POST /charges/{id}", "i:{path.id}"), name="inner", mount="/pay/eu"),
    )


@pytest.mark.parametrize(
    ("method", "path", "policy_name", "variables"),
    [
        ("POST", b"/pay/charges/1", "outer/charge", {"id": b"1"}),
        ("POST", b"/pay/charges/a%2D1", "outer/charge", {"id": b"a%2D1"}),
        ("POST", b"/pay/charges/refund", "outer/refund", {}),
        ("POST", b"/pay/charges/refunds", "outer/charge", {"id": b"refunds"}),
        ("POST", b"/pay/charges/1/items/2", "outer/item", {"id": b"1", "item": b"2"}),
        ("GET", b"/pay/run/1", "outer/run", {"id": b"1"}),
        ("POST", b"/pay/slash/", "outer/slash", {}),
        ("DELETE", b"/pay", "outer/root", {}),
        ("DELETE", b"/pay/", "outer/root", {}),
        ("POST", b"/pay/eu/charges/1", "inner/charge", {"id": b"1"}),
    ],
)
def test_commands(
    policies: Policies, method: str, path: bytes, policy_name: str, variables: dict[str, bytes]
) -> None:
    match = policies.match(method, path)
    assert isinstance(match, Match), match
    assert match.command.rules.policy == policy_name
    assert match.variables == variables
    assert match.upstream.mount.encode() + match.rest == path


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", b"/"), ("POST", b"/payx/charges/1"), ("POST", b"/PAY/charges/1"),
        ("POST", b"/p%61y/charges/1"), ("POST", b"/pay"), ("POST", b"/pay/other"),
        ("PUT", b"/pay/charges/1"), ("post", b"/pay/charges/1"), ("get", b"/pay/x"),
        ("TRACE", b"/pay/charges/1"), ("CONNECT", b"/pay"), ("QUERY", b"/pay/x"), ("", b"/pay"),
        ("POST", b"/pay/charges"), ("POST", b"/pay/charges/1/items"), ("GET", b"/elsewhere"),
        ("POST", b"/pay/eu/charges/1/items/2"),
    ],
)  # fmt: skip
def test_what_nothing_covers(policies: Policies, method: str, path: bytes) -> None:
    assert isinstance(policies.match(method, path), NoPolicy)


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
@pytest.mark.parametrize("path", [b"/pay", b"/pay/charges/1", b"/pay/a/b/", b"/pay/a%20b;c"])
def test_safe_methods_stream_through(policies: Policies, method: str, path: bytes) -> None:
    match = policies.match(method, path)
    assert isinstance(match, Unguarded)
    assert match.upstream.name == "outer"
    assert b"/pay" + match.rest == path


@pytest.mark.parametrize(
    "path",
    [
        b"", b"*", b"pay/charges/1", b"@evil.example/v1", b":81@evil.example/x",
        b"//evil.example/x",
        b"http://169.254.169.254/latest", b"\\\\evil.example\\x", b"/pay//charges/1", b"//",
        b"/pay/charges/..", b"/pay/../admin", b"/pay/./charges/1", b"/pay/%2e%2e/x", b"/pay/.%2E/x",
        b"/pay/..;x/y", b"/pay/%2e;/x", b"/pay/charges/a%2fb", b"/pay/charges/a%2Fb",
        b"/pay/charges/a%5cb", b"/pay/charges/a\\b", b"/pay/charges/a%zz", b"/pay/charges/a%",
        b"/pay/charges/a%0ab", b"/pay/charges/a%00", b"/pay/charges/1#frag", b"/pay/charges/1?x",
        b"/pay/charges/a b", b"/pay/charges/a\x00", b"/pay/charges/caf\xc3\xa9",
        b"/pay/charges/{id}",
        b'/pay/charges/"', b"/pay/charges/a|b",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_paths_that_may_lead_elsewhere_are_refused(
    policies: Policies, method: str, path: bytes
) -> None:
    refusal = policies.match(method, path)
    assert isinstance(refusal, Refusal)
    assert refusal.type == "request-invalid"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        # Another command, under weaker rules, to an upstream that reads loosely.
        ("POST", b"/pay/charges/%72efund"),
        ("POST", b"/pay/charges/Refund"),
        ("POST", b"/pay/charges/refund;v=1"),
        ("POST", b"/pay/charges/refund/"),
        ("POST", b"/pay/charges/1/"),
        ("POST", b"/pay/Charges/1"),
        ("POST", b"/pay/slash"),
        # A listed GET, in a spelling that would else stream through unrecorded.
        ("GET", b"/pay/r%75n/1"),
        ("GET", b"/pay/run/1/"),
        ("GET", b"/pay/RUN/1"),
        ("GET", b"/pay/run;x/1"),
        ("HEAD", b"/pay/run/1"),
        ("HEAD", b"/pay/Run/1/"),
    ],
)
def test_paths_that_may_be_another_command_are_refused(
    policies: Policies, method: str, path: bytes
) -> None:
    refusal = policies.match(method, path)
    assert isinstance(refusal, Refusal)
    assert refusal.type == "request-invalid"


def test_targets_are_the_callers_bytes_behind_the_base_path(load_text: Load) -> None:
    text = policy(command("POST /a/{x}", "e:{path.x}")).replace("api.example", "api.example/v2/")
    policies = load_text(text)
    match = policies.match("POST", b"/pay/a/%61%2D")
    assert isinstance(match, Match)
    assert match.target(b"") == b"/v2/a/%61%2D"
    assert match.target(b"b=%2f&a") == b"/v2/a/%61%2D?b=%2f&a"
    bare = policies.match("GET", b"/pay")
    assert isinstance(bare, Unguarded)
    assert bare.target(b"") == b"/v2"


def test_a_bare_mount_without_base_path_is_the_root(policies: Policies) -> None:
    bare = policies.match("GET", b"/pay")
    assert isinstance(bare, Unguarded)
    assert bare.target(b"q=1") == b"/?q=1"


segments = st.sampled_from(
    [b"charges", b"refund", b"items", b"1", b"%31", b"%2f", b"..", b"", b";", b"x;y", b"%zz", b"R"]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(
    st.sampled_from(["POST", "GET", "HEAD", "DELETE", "X"]),
    st.lists(segments, max_size=5).map(lambda parts: b"/pay/" + b"/".join(parts)) | st.binary(),
)
def test_matching_never_fails(policies: Policies, method: str, path: bytes) -> None:
    result = policies.match(method, path)
    if isinstance(result, Match | Unguarded):
        assert result.target(b"").startswith(b"/")
        assert not result.target(b"").startswith(b"//")


TABLES = [
    ["POST /{a}", "PUT /{a}"],
    ["POST /x/{a}", "POST /x/b/{a}", "POST /{a}/{b}/c"],
    ["POST /x/{a}", "POST /x/run"],
    ["POST /X/{a}/.b", "POST /a%2Db/{a}", "POST /c/{a}/"],
    [f"POST /x{at}/{{a}}" for at in range(9)],
]
PIECES = st.sampled_from([b"x", b"X", b"run", b"Run", b"b", b"a-b", b"a%2Db", b"x;v", b".", b".b"])
PATHS = st.lists(PIECES | st.sampled_from([b"", b"c", b"1", b"x1", b"a b"]), min_size=1, max_size=4)


@given(st.sampled_from(TABLES), st.sampled_from(["POST", "PUT", "HEAD"]), PATHS)
@example(TABLES[1], "POST", [b"x", b"."])
@example(TABLES[1], "POST", [b"x", b".."])
@example(TABLES[1], "POST", [b"x", b""])
@example(TABLES[2], "POST", [b"x", b"RUN"])
@example(TABLES[3], "POST", [b"c", b"1", b""])
def test_what_one_look_tells_is_what_the_whole_way_finds(
    texts: list[str], method: str, segments: list[bytes]
) -> None:
    table = Table([(parse_pattern(text), text) for text in texts])
    path = b"/" + b"/".join(segments)
    told = table.at_once(method, path)
    if told is not None:
        assert check_path(path) is None
        found = table.find(method, split_path(path))
        assert isinstance(found, tuple)
        assert told == (found[1], found[0].bind(split_path(path)))


def test_one_look_tells_what_is_plain_and_alone() -> None:
    near = Table([(parse_pattern(text), text) for text in TABLES[2]])
    alone = Table([(parse_pattern(text), text) for text in TABLES[1]])
    assert near.at_once("POST", b"/x/1") is None
    assert alone.at_once("POST", b"/x/1") == ("POST /x/{a}", {"a": b"1"})
