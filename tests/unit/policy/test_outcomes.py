"""What a policy says of unknown outcomes: what is refused with which mend, and what is compiled."""

from __future__ import annotations

import pytest

from gateway.core.canonical import canonical
from gateway.core.keys import Refusal
from gateway.core.model import ProbeRules, Proof
from gateway.policy import Derived, Match, derive, outcomes
from gateway.policy.probes import TargetError, parse_target
from gateway.policy.schema import RetainModel
from tests.unit.policy.conftest import Errors, Load
from tests.unit.policy.texts import command, policy

PROOF = '{ status = [200], where = "/data", items = "some" }'
LISTED = "fingerprint.headers = ['Stripe-Account']"
NONE = '{ status = [200], where = "/data", items = "none" }'


def probing(
    request: str = "GET /v1/found?key={key}",
    applied: str = PROOF,
    absent: str = NONE,
    more: str = "",
    before: str = "",
) -> str:
    lines = [
        before,
        "unknown = 'probe'",
        "send_key = 'X-Reference'",
        "[commands.probe]",
        f"request = '{request}'",
        f"applied = {applied}",
        *([f"absent = {absent}"] if absent else []),
        more,
    ]
    return policy(command(more="\n".join(lines)))


def test_a_probe_is_compiled(load_text: Load) -> None:
    proof = '{ status = [200, 201], where = "/a/0", equals = ["x", 1, true] }'
    text = probing(applied=proof, absent="{ status = [404], where = '/e', equals = ['gone'] }")
    (compiled,) = load_text(text).commands()
    assert compiled.rules.probe == ProbeRules(
        applied=Proof(
            frozenset({200, 201}), ("a", "0"), equals=frozenset(map(canonical, ["x", 1, True]))
        ),
        absent=Proof(frozenset({404}), ("e",), equals=frozenset({canonical("gone")})),
        interval_s=60,
        replays=False,
    )
    assert compiled.rules.unknown == "probe"


def test_a_resend_is_compiled(load_text: Load) -> None:
    more = "unknown = 'resend'\nsend_key = 'K'\nresend_within_s = 3600"
    (compiled,) = load_text(policy(command(more=more))).commands()
    rules = compiled.rules
    assert (rules.unknown, rules.resend_within_s) == ("resend", 3600)
    assert rules.resend_conflict == {409}


@pytest.mark.parametrize(
    ("text", "path", "says"),
    [
        (policy(command(more="unknown = 'probe'")), "probe", "is missing"),
        (probing().replace("unknown = 'probe'", ""), "probe", "has no use"),
        (policy(command(more="unknown = 'resend'")), "send_key", "is missing"),
        (policy(command(more="unknown = 'resend'")), "resend_within_s", "is missing"),
        (policy(command(more="resend_within_s = 60")), "resend_within_s", "has no use"),
        (policy(command(more="resend_conflict = [409]")), "resend_conflict", "has no use"),
        (policy(command(more="resend_within_s = 9")), "resend_within_s", "at least 10"),
        (probing(before="pass_authorization = true"), "pass_authorization", "asked about with no"),
        (
            policy(
                command(
                    more="unknown = 'resend'\nsend_key = 'K'\nresend_within_s = 60\n"
                    "pass_authorization = true"
                )
            ),
            "pass_authorization",
            "sent again with another caller's",
        ),
        (probing("POST /v1/found"), "probe.request", "must change nothing"),
        (probing("GET v1"), "probe.request", "must change nothing"),
        (probing("GET //v1"), "probe.request", "empty segment"),
        (probing("GET /v1/../x"), "probe.request", "refused in requests"),
        (probing("GET /v1?a={key"), "probe.request", "stray brace"),
        (probing("GET /v1#{key}"), "probe.request", "fragment"),
        (probing("GET /v1?a=%zz"), "probe.request", "must be encoded"),
        (probing("GET /v1?a= {key}"), "probe.request", "must be encoded"),
        (probing("GET /v1?a={keys}"), "probe.request", "{key}, {entity}, {upstream_key}"),
        (probing("GET /v1/{path.other}"), "probe.request", "not a variable of match"),
        (probing("GET /v1?a={header.Cookie}"), "probe.request", "is a credential"),
        (probing("GET /" + "x" * 1001), "probe.request", "longer than 1000"),
        (probing("GET /v1?" + "{key}" * 9), "probe.request", "more than 8 placeholders"),
        (
            probing("GET /v1?r={upstream_key}").replace("send_key = 'X-Reference'", ""),
            "probe.request",
            "and none is sent",
        ),
        (probing(applied="{ status = [] }"), "probe.applied.status", "at least 1"),
        (probing(applied="{ status = [500] }"), "probe.applied.status[0]", "at most 499"),
        (probing(applied="{ status = [301] }"), "probe.applied.status", "nothing is found"),
        (probing(absent="{ status = [429, 404] }"), "probe.absent.status", "did not look"),
        (probing(applied="{ status = [200], where = '/a' }"), "probe.applied", "one of equals"),
        (probing(applied="{ status = [200], items = 'some' }"), "probe.applied", "needs where"),
        (
            probing(applied="{ status = [200], where = '/a', items = 'some', equals = [1] }"),
            "probe.applied",
            "one of equals and items",
        ),
        (probing(applied="{ status = [200], where = 'a', items = 'some' }"), "probe.applied", ""),
        (probing(applied="{ status = [200], where = '/a', items = 'all' }"), "probe.applied", ""),
        (probing(applied="{ status = [200], where = '/a', equals = [1.5] }"), "probe.applied", ""),
        (probing(absent="{ status = [200] }"), "probe.absent", "counts too"),
        (probing(absent=PROOF), "probe.absent", "counts too"),
        (probing(more="interval_s = 0"), "probe.interval_s", "at least 1"),
        (probing(more="headers = { Host = 'x' }"), "probe.headers", "belongs to the connection"),
        (probing(more="headers = { X = '${NOPE}' }"), "probe.headers.X", "NOPE is not set"),
        (probing(more="intervall_s = 3"), "probe.intervall_s", "write interval_s"),
    ],
)
def test_a_mistake_names_its_place(errors_of: Errors, text: str, path: str, says: str) -> None:
    errors = errors_of(text)
    where = f"payments.toml: commands[0].{path}"
    assert any(error.startswith(where) and says in error for error in errors), errors


def test_a_probe_that_is_a_command_of_the_file_is_refused(errors_of: Errors) -> None:
    other = command(name="find", match="GET /v1/{x}", entity="found:{path.x}")
    errors = errors_of(policy(command(more=_lines("GET /V1/found/?k={key}")), other))
    assert [error for error in errors if "asking would do something" in error]


def _lines(request: str) -> str:
    return (
        "unknown = 'probe'\nprobe.request = '" + request + "'\n"
        f"probe.applied = {PROOF}\nprobe.absent = {NONE}"
    )


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (probing("GET /v1/found"), "probe.request"),
        (probing("GET /v1/found?e={entity}"), "probe.request"),
        (probing(absent="{ status = [404] }"), "probe.absent"),
        (probing(before="fingerprint.headers = ['Stripe-Account']"), "probe.request"),
    ],
)
def test_what_is_probably_not_meant_is_a_warning(load_text: Load, text: str, field: str) -> None:
    (warning,) = load_text(text).warnings
    assert f"commands[0].{field}: " in str(warning)


RESENDS = "unknown = 'resend'\nsend_key = 'K'\nresend_within_s = "


@pytest.mark.parametrize(
    ("within_s", "retain", "warned"),
    [
        (86_400, "response_days = 1, key_days = 1", False),
        (86_401, "response_days = 1, key_days = 1", True),
        (31_536_000, "response_days = 1", False),
        (31_536_000, "key_days = 364", True),
    ],
)
def test_a_window_that_outlives_the_memory_of_keys_is_a_warning(
    load_text: Load, within_s: int, retain: str, warned: bool
) -> None:
    text = policy(command(more=f"{RESENDS}{within_s}\nretain = {{ {retain} }}"))
    said = [str(warning) for warning in load_text(text).warnings]
    assert len(said) == warned
    assert all("commands[0].resend_within_s: " in each for each in said)


def test_the_memory_of_keys_is_the_policys_default() -> None:
    assert RetainModel().key_days == outcomes._KEY_DAYS


def test_each_value_is_one_segment_or_one_parameter() -> None:
    target = parse_target("GET /v1/{entity}/x?a={key}&b={upstream_key}")
    rendered = target.render((), "k&=?/#é".replace("é", "%"), "a:b c/d", "fg-1")
    assert rendered == b"/v1/a%3Ab%20c%2Fd/x?a=k%26%3D%3F%2F%23%25&b=fg-1"
    assert target.check(rendered) is not None
    assert target.check(target.render((), "/", "a:b", "fg-1")) is None


def derived(load_text: Load, request: str, body: bytes = b"{}", path: bytes = b"a1") -> object:
    policies = load_text(probing(request))
    raw = b"/pay/v1/accounts/" + path + b"/charges"
    match = policies.match("POST", raw)
    assert isinstance(match, Match)
    headers = (
        (b"idempotency-key", b"k-1"),
        (b"x-execution-fence", b"1"),
        (b"content-type", b"application/json"),
    )
    return derive(match, "POST", raw, b"", headers, body)


def test_the_target_is_made_of_the_request(load_text: Load) -> None:
    found = derived(load_text, "GET /v1/{path.account}?o={body./order}&k={key}", b'{"order":"o 1"}')
    assert isinstance(found, Derived)
    assert found.probe_values == ("a1", "o 1")


@pytest.mark.parametrize(
    ("asks", "body", "path", "says"),
    [
        ("GET /v1?o={body./order}", b"{}", b"a1", "is absent or empty"),
        ("GET /v1?o={body./order}", b'{"order":1}', b"a1", "is not a JSON string"),
        ("GET /v1?o={header.X-Order}", b"{}", b"a1", "is absent or empty"),
        ("GET /v1/{entity}", b"{}", b"a%3F", ""),
    ],
    ids=str,
)
def test_a_command_that_could_not_be_asked_about_is_refused(
    load_text: Load, asks: str, body: bytes, path: bytes, says: str
) -> None:
    found = derived(load_text, asks, body, path)
    if says:
        assert isinstance(found, Refusal)
        assert found.type == "request-invalid"
        assert says in found.detail
    else:
        assert isinstance(found, Derived)


def test_a_stray_target_says_where() -> None:
    with pytest.raises(TargetError, match="must change nothing"):
        parse_target("DELETE /v1")


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        (probing("GET /v1/found?k={key}&a={header.stripe-account}", before=LISTED), False),
        (probing(more="headers = { stripe-account = 'acct_1' }", before=LISTED), False),
        (probing(before=LISTED) + "[upstream_headers]\nStripe-Account = 'acct_1'\n", False),
        (probing("GET /v1/found?k={key}&a={header.X-Other}", before=LISTED), True),
        (policy(command(more="unknown = 'hold'\n" + LISTED)), False),
    ],
)
def test_a_listed_field_that_the_query_does_not_ask_with_is_a_warning(
    load_text: Load, text: str, warned: bool
) -> None:
    found = [str(each) for each in load_text(text).warnings]
    assert [("asks without Stripe-Account" in each) for each in found] == [True] * warned


def test_the_fields_of_a_probe_are_part_of_the_account_that_is_asked(load_text: Load) -> None:
    def of(headers: str, env: str = "one", account: str = "") -> bytes:
        table = f"headers = {{ {headers} }}" if headers else ""
        text = probing(more=table).replace("[[commands]]", f"{account}\n[[commands]]", 1)
        (compiled,) = load_text(text, {"READ": env}).commands()
        return compiled.upstream_digest

    token, named = "Authorization = 'Bearer ${READ}'", "account = 'main'"
    first = of(token)
    assert of(token.replace("Authorization", "authorization")) == first
    others = [
        of(""),
        of(token, env="two"),
        of("Account-Of = 'acct_2'"),
        of("", account=named),
        of(token, account=named),
        of(token + ", Account-Of = 'acct_2'", account=named),
    ]
    assert len({first, *others}) == 7
    assert of(token, env="two", account=named) == others[4]
