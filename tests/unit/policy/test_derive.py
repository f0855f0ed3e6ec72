"""From a request to entity, key, fence and fingerprint, and every way in which it is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core.canonical import ABSENT
from gateway.core.fences import OUTSIDE_LIMIT
from gateway.core.keys import Refusal
from gateway.core.model import Headers
from gateway.core.outline import Differences
from gateway.policy import Derived, Match, Policies, check_head, check_passage, derive
from gateway.policy.derive import key_and_fence
from tests.unit.policy.conftest import Load
from tests.unit.policy.texts import command, policy

SALT = bytes(16)
BASE: Headers = (
    (b"Content-Type", b"application/json"),
    (b"Idempotency-Key", b"k-1"),
    (b"X-Execution-Fence", b"42"),
)
PATH = b"/pay/v1/accounts/acc-1/charges"
BODY = b'{"amount":100,"ref":"x"}'


def ask(
    policies: Policies,
    headers: Headers = BASE,
    path: bytes = PATH,
    query: bytes = b"",
    body: bytes = BODY,
    method: str = "POST",
) -> Derived | Refusal:
    match = policies.match(method, path)
    assert isinstance(match, Match), match
    return derive(match, method, path, query, headers, body)


def derived(result: Derived | Refusal) -> Derived:
    assert isinstance(result, Derived), result
    return result


def refused(result: Derived | Refusal, kind: str) -> str:
    assert isinstance(result, Refusal), result
    assert result.type == kind
    assert result.detail.endswith(".")
    return result.detail


def known(
    policies: Policies, headers: Headers, body: bytes | None
) -> tuple[str | None, int | None]:
    match = policies.match("POST", PATH)
    assert isinstance(match, Match), match
    return key_and_fence(match, b"", headers, body)


def lacking(name: bytes, headers: Headers = BASE) -> Headers:
    return tuple(pair for pair in headers if pair[0] != name)


def with_fence(*lines: bytes) -> Headers:
    fences = tuple((b"x-execution-fence", line) for line in lines)
    return lacking(b"X-Execution-Fence") + fences


@pytest.fixture
def charges(load_text: Load) -> Policies:
    return load_text(policy())


@pytest.fixture
def cases(load_text: Load) -> Policies:
    return load_text(
        policy(command("POST /v1/cases", "customer:{body./input/customer_id}", "case"))
    )


def test_a_plain_command(charges: Policies) -> None:
    result = derived(ask(charges))
    assert (result.entity, result.key, result.fence) == ("account:acc-1", "k-1", 42)
    assert len(result.fingerprint(SALT)) == 32
    assert result.parts.path == PATH


@pytest.mark.parametrize("segment", [b"acc%2D1", b"acc%2d1", b"%61cc-1"])
def test_one_entity_in_every_encoding(charges: Policies, segment: bytes) -> None:
    path = PATH.replace(b"acc-1", segment)
    assert derived(ask(charges, path=path)).entity == "account:acc-1"


@pytest.mark.parametrize(
    "segment", [b"acc%252D1", b"a;v=1", b"a%ff", b"caf%C3%A9", b"cafe%CC%81", b"a%20", b"a" * 256]
)
def test_a_segment_that_cannot_be_told(charges: Policies, segment: bytes) -> None:
    refused(ask(charges, path=PATH.replace(b"acc-1", segment)), "request-invalid")


def test_keys(charges: Policies) -> None:
    key = (b"Idempotency-Key", b"k-1")
    assert derived(ask(charges, (*lacking(key[0]), (b"idempotency-key", b'"k-1"')))).key == "k-1"
    refused(ask(charges, lacking(key[0])), "key-missing")
    refused(ask(charges, (*lacking(key[0]), (b"Idempotency_Key", b"k-1"))), "key-missing")
    refused(ask(charges, (*BASE, key)), "key-invalid")
    refused(ask(charges, (*lacking(key[0]), (key[0], b"a" * 256))), "key-invalid")


@pytest.mark.parametrize(
    "lines",
    [
        (b"41", b"42"), (b"42", b"42"), (b"41, 42",), (b"42, 42",), (b"",), (b"-1",), (b"042",),
        ("٤٢".encode(),), (b"%d" % (OUTSIDE_LIMIT + 1),),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["required", "optional"])
def test_fences_that_are_none(load_text: Load, mode: str, lines: tuple[bytes, ...]) -> None:
    policies = load_text(policy(command(more=f"fence = '{mode}'")))
    refused(ask(policies, with_fence(*lines)), "fence-invalid")


def test_fence_modes(load_text: Load, charges: Policies) -> None:
    detail = refused(ask(charges, with_fence()), "fence-required")
    assert "in the field X-Execution-Fence;" in detail
    twin = (*with_fence(), (b"X_Execution_Fence", b"42"))
    refused(ask(charges, twin), "fence-required")
    optional = load_text(policy(command(more="fence = 'optional'")))
    assert derived(ask(optional, with_fence())).fence is None
    assert derived(ask(optional)).fence == 42
    off = load_text(policy(command(more="fence = 'off'")))
    for headers in (BASE, with_fence(), with_fence(b"41", b"42"), with_fence(b"nonsense")):
        assert derived(ask(off, headers)).fence is None


def test_a_fence_in_the_body(load_text: Load) -> None:
    policies = load_text(policy(command(more="fence_from = '{body./execution_fence}'")))
    headers = with_fence()
    bodies = [b'{"a":1,"execution_fence":%b}' % text for text in (b"42", b'"42"', b"43")]
    results = [derived(ask(policies, headers, body=body)) for body in bodies]
    assert [result.fence for result in results] == [42, 42, 43]
    # The next owner's retry is the same command.
    assert len({result.fingerprint(SALT) for result in results}) == 1
    detail = refused(ask(policies, headers), "fence-required")
    assert "in the body member /execution_fence;" in detail
    for text in (b"42.0", b"4.2e1", b"true", b"null", b'"042"', b"-1"):
        body = b'{"execution_fence":%b}' % text
        refused(ask(policies, headers, body=body), "fence-invalid")
    # A field that says otherwise, or that the policy would pass over, is not ignored.
    assert derived(ask(policies, with_fence(b"42"), body=bodies[0])).fence == 42
    refused(ask(policies, with_fence(b"41"), body=bodies[0]), "fence-invalid")
    refused(ask(policies, with_fence(b"42")), "fence-invalid")
    plain = (*lacking(b"Content-Type", headers), (b"Content-Type", b"text/plain"))
    refused(ask(policies, plain, body=bodies[0]), "body-unreadable")


def test_a_fence_in_another_field(load_text: Load) -> None:
    policies = load_text(policy(command(more="fence_from = '{header.X-Lease}'")))
    lease = (b"x-lease", b"7")
    assert derived(ask(policies, (*with_fence(), lease))).fence == 7
    refused(ask(policies, (*with_fence(), lease, lease)), "fence-invalid")
    refused(ask(policies, (*with_fence(b"8"), lease)), "fence-invalid")
    refused(ask(policies, with_fence()), "fence-required")


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"null", "entity-missing"),
        (b"[]", "entity-missing"),
        (b'"x"', "entity-missing"),
        (b'{"input":null}', "entity-missing"),
        (b'{"input":{"customer_id":""}}', "entity-missing"),
        (b'{"input":{"customer_id":1048}}', "request-invalid"),
        (b'{"input":{"customer_id":1048.0}}', "request-invalid"),
        (b'{"input":{"customer_id":["c-1"]}}', "request-invalid"),
        (b'{"input":{"customer_id":true}}', "request-invalid"),
        (b'{"input":{"customer_id":"\\ud800"}}', "request-invalid"),
        (b'{"input":{"customer_id":"a","customer_id":"b"}}', "body-unreadable"),
        (b"\xff\xfe{\x00}\x00", "body-unreadable"),
        (b"\xef\xbb\xbf{}", "body-unreadable"),
        (b"{", "body-unreadable"),
        (b"[" * 100_000, "body-unreadable"),
        (b"1e99999999999", "body-unreadable"),
    ],
    ids=lambda item: repr(item[:40]),
)
def test_entities_of_another_type(cases: Policies, body: bytes, kind: str) -> None:
    refused(ask(cases, path=b"/pay/v1/cases", body=body), kind)


def test_an_entity_in_the_body(cases: Policies) -> None:
    body = b'{"input":{"customer_id":"1048","s":"\\ud800"}}'
    result = derived(ask(cases, path=b"/pay/v1/cases", body=body))
    assert result.entity == "customer:1048"
    for headers in (
        lacking(b"Content-Type"),
        (*BASE, (b"Content-Encoding", b"gzip")),
        (*BASE, BASE[0]),
    ):
        refused(ask(cases, headers, b"/pay/v1/cases", body=body), "body-unreadable")


def test_the_entity_field_must_agree(charges: Policies) -> None:
    name = b"X-Execution-Entity"
    assert derived(ask(charges, (*BASE, (name, b" account:acc-1 ")))).entity == "account:acc-1"
    for sent in (b"account:acc-2", b"ACCOUNT:acc-1", b"account:acc%2D1", b"\xff"):
        result = ask(charges, (*BASE, (name, sent)))
        detail = refused(result, "entity-mismatch")
        assert "'account:acc-1'" in detail
        assert isinstance(result, Refusal)
        assert dict(result.members) == {
            "entity": "account:acc-1",
            "entity_sent": sent.decode("latin-1"),
        }
        assert detail.isascii()
        assert known(charges, (*BASE, (name, sent)), BODY) == ("k-1", 42)
    assert known(charges, lacking(b"Idempotency-Key"), BODY) == (None, 42)
    assert known(charges, with_fence(b"x"), None) == ("k-1", None)
    twice = ((name, b"account:acc-1"),) * 2
    refused(ask(charges, BASE + twice), "request-invalid")
    refused(ask(charges, (*BASE, (name, b""))), "request-invalid")


def test_an_entity_from_the_field(load_text: Load) -> None:
    policies = load_text(policy(command(entity="{header.X-Execution-Entity}")))
    field = (b"x-execution-entity", b"job:1")
    assert derived(ask(policies, (*BASE, field))).entity == "job:1"
    refused(ask(policies), "entity-missing")
    refused(ask(policies, (*BASE, (field[0], b" "))), "entity-missing")
    refused(ask(policies, (*BASE, field, field)), "request-invalid")
    refused(ask(policies, (*BASE, (field[0], b"job:1, job:2"))), "request-invalid")


def test_keys_from_templates(load_text: Load) -> None:
    def keyed(template: str) -> Policies:
        return load_text(policy(command(more=f"key = '{template}'")))

    plain = keyed("payment:{path.account}:capture")
    assert derived(ask(plain, lacking(b"Idempotency-Key"))).key == "payment:acc-1:capture"
    refused(ask(plain, path=PATH.replace(b"acc-1", b"a%20b")), "key-invalid")
    scoped = keyed("{path.account}/{header.Idempotency-Key}")
    assert derived(ask(scoped)).key == "acc-1/k-1"
    refused(ask(scoped, lacking(b"Idempotency-Key")), "key-missing")
    refused(ask(keyed("{query.k}")), "key-missing")
    refused(ask(keyed("{query.k}"), query=b"k=1&k=1"), "key-invalid")
    refused(ask(keyed("{body./ref/x}")), "key-missing")


def test_only_what_the_policy_ignores_may_differ(load_text: Load) -> None:
    more = "fingerprint.ignore = ['/trace/id']\nfingerprint.headers = ['Stripe-Version']"
    policies = load_text(policy(command(more=more)))

    def mark(
        headers: Headers = BASE, query: bytes = b"", body: bytes = b'{"a":1,"trace":{"id":1}}'
    ) -> bytes:
        return derived(ask(policies, headers, query=query, body=body)).fingerprint(SALT)

    first = mark()
    assert mark(body=b'{"trace":{},"a":1.0}') == first
    assert mark((*BASE, (b"X-Trace", b"1"))) == first
    assert mark(with_fence(b"43")) == first
    others = {
        mark(body=b'{"a":2,"trace":{}}'),
        mark(body=b'{"a":1}'),
        mark(query=b"x=1"),
        mark((*BASE, (b"stripe-version", b"1"))),
        mark((*BASE, (b"stripe-version", b"2"))),
        mark((*BASE, (b"stripe-version", b"1"), (b"stripe-version", b"1"))),
        mark(lacking(b"Content-Type")),
    }
    assert len(others | {first}) == 8


def test_raw_bodies_need_not_be_readable(load_text: Load) -> None:
    policies = load_text(policy(command(more="fingerprint.body = 'raw'")))
    assert derived(ask(policies, body=b"\xff{")).parts.form == "raw"
    assert ask(policies, body=b"{} ") != ask(policies, body=b"{}")


def test_a_body_in_auto_without_content_is_raw(charges: Policies) -> None:
    assert derived(ask(charges, body=b"")).parts.form == "raw"
    refused(ask(charges, body=b"{"), "body-unreadable")


@pytest.mark.parametrize(
    "query", [b"x=1#frag", b"x=\xc3\xa9", b"x=a b", b"x=\x00", b"x=\r\n", b"<"]
)
def test_queries_that_cannot_be_sent(charges: Policies, query: bytes) -> None:
    refused(ask(charges, query=query), "request-invalid")
    assert check_passage((), query) is not None


def test_method_overrides_do_not_pass(charges: Policies) -> None:
    for name in (b"X-HTTP-Method-Override", b"x-http-method", b"X_Method_Override"):
        refused(ask(charges, (*BASE, (name, b"DELETE"))), "request-invalid")
        assert check_passage(((name, b"POST"),), b"") is not None
    assert check_passage(BASE, b"a=1&b=%20[]{}|^`;+") is None


@pytest.mark.parametrize(
    "name",
    [
        *(b"Host", b"content-length", b"VIA", b"Authorization", b"Idempotency-Key"),
        *(b"X-Execution-Fence", b"X_Execution_Entity", b"Forwarded", b"X-Forwarded-Host"),
        b"x-real-ip",
    ],
)
def test_connection_takes_away_nothing_that_somebody_depends_on(
    charges: Policies, name: bytes
) -> None:
    fields = ((b"Connection", b"close, " + name),)
    passage = check_passage(fields, b"")
    assert passage is not None
    assert "leave the name out" in passage.detail
    assert "leave the name out" in refused(
        ask(charges, headers=(*BASE, *fields)), "request-invalid"
    )


def test_an_offer_to_upgrade_is_no_command(charges: Policies) -> None:
    named, offer = (b"Connection", b"x, Upgrade"), (b"Upgrade", b"h2c")
    detail = refused(ask(charges, headers=(*BASE, named, offer)), "request-invalid")
    assert "Upgrade" in detail
    assert check_passage((named, offer), b"") is None
    for half in (named, offer):
        derived(ask(charges, headers=(*BASE, half)))


def test_path_overrides_do_not_pass(charges: Policies) -> None:
    for name in (b"X-Original-URL", b"x-rewrite-url", b"X_Original_Url", b"X_REWRITE_URL"):
        detail = refused(ask(charges, (*BASE, (name, b"/v1/x"))), "request-invalid")
        assert "path" in detail
        assert check_passage(((name, b"/v1/x"),), b"") is not None


FORM: Headers = (*lacking(b"Content-Type"), (b"Content-Type", b"application/x-www-form-urlencoded"))


def boundaried(boundary: bytes) -> Headers:
    value = b"multipart/form-data; boundary=" + boundary
    return (*lacking(b"Content-Type"), (b"Content-Type", value))


@pytest.fixture
def forms(load_text: Load) -> Policies:
    more = (
        "fence_from = '{body./lease/fence}'\nkey = '{body./metadata/order}'\n"
        "fingerprint.ignore = ['/trace', '/metadata/attempt']"
    )
    return load_text(policy(command(entity="customer:{body./customer}", more=more)))


def test_a_form_names_entity_key_and_fence(forms: Policies) -> None:
    fields = b"metadata%5Border%5D=o-1&amount=5&customer=cus_1"
    headers = lacking(b"X-Execution-Fence", FORM)

    def asked(body: bytes) -> Derived:
        return derived(ask(forms, headers, body=body))

    first = asked(fields + b"&lease[fence]=42&trace=a&metadata[attempt]=1")
    assert (first.entity, first.key, first.fence) == ("customer:cus_1", "o-1", 42)
    assert first.parts.form == "form"
    # Another order of roots, another owner and what is ignored: the same command.
    again = asked(b"trace=b&lease[fence]=43&customer=cus_1&amount=5&metadata[order]=o-1")
    assert again.fence == 43
    assert again.fingerprint(SALT) == first.fingerprint(SALT)
    assert again.outline(SALT) == first.outline(SALT)
    other = asked(fields.replace(b"amount=5", b"amount=6") + b"&lease[fence]=42&tip=1")
    assert other.fingerprint(SALT) != first.fingerprint(SALT)
    assert other.differences(SALT, first.outline(SALT)) == Differences(
        ("body /amount",), ("body /tip",), 0
    )


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"metadata[order]=o&lease[fence]=1", "entity-missing"),
        (b"customer=&metadata[order]=o&lease[fence]=1", "entity-missing"),
        (b"customer=a&Customer=b&metadata[order]=o&lease[fence]=1", "request-invalid"),
        (b"customer=a&lease[fence]=1", "key-missing"),
        (b"customer=a&metadata[order]=o&metadata[order]=o&lease[fence]=1", "key-invalid"),
        (b"customer=a&metadata[order]=o", "fence-required"),
        (b"customer=a&metadata[order]=o&lease[fence]=", "fence-invalid"),
        (b"customer=a&metadata[order]=o&lease[fence]", "fence-invalid"),
        (b"customer=a&metadata[order]=o&lease[fence]=042", "fence-invalid"),
        (b"customer=a&metadata[order]=o&lease[fence]=+42", "fence-invalid"),
        (b"customer=a&metadata[order]=o&lease[fence]=1&lease[fence]=1", "fence-invalid"),
        (b"customer=a&metadata[order]=o&lease[fence]=1&lease=2", "fence-invalid"),
        (b"customer=a&metadata[order]=o&lease[fence]=%", "body-unreadable"),
        (b"customer=a;metadata[order]=o&lease[fence]=1", "body-unreadable"),
        (b"customer=a&metadata[order]=o&lease[fence]=1&_method=delete", "request-invalid"),
        (b"customer=a&metadata[order]=o&lease[fence]=1&_Method=delete", "request-invalid"),
    ],
)
def test_forms_that_are_refused(forms: Policies, body: bytes, kind: str) -> None:
    headers = lacking(b"X-Execution-Fence", FORM)
    refused(ask(forms, headers, body=body), kind)
    refused(ask(forms, (*headers, (b"X-Execution-Fence", b"7")), body=body), "fence-invalid"
            if kind == "fence-required" else kind)  # fmt: skip


def test_a_form_in_another_charset_names_no_entity(forms: Policies) -> None:
    body = b"customer=a&metadata[order]=o&lease[fence]=42"
    headers = (*lacking(b"Content-Type"), (FORM[-1][0], FORM[-1][1] + b"; charset=utf-7"))
    refused(ask(forms, headers, body=body), "body-unreadable")


def test_multipart_boundaries_do_not_count(forms: Policies) -> None:
    part = b'--%b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'

    def asked(boundary: bytes, amount: bytes, fence: bytes) -> Derived:
        fields = ((b"customer", b"c"), (b"metadata[order]", b"o"), (b"a", amount))
        fields += ((b"lease[fence]", fence),)
        lines = b"".join(part % (boundary, *field) for field in fields)
        headers = lacking(b"X-Execution-Fence", boundaried(boundary))
        return derived(ask(forms, headers, body=lines + b"--%b--\r\n" % boundary))

    first = asked(b"AAA", b"1", b"42")
    assert (first.entity, first.key, first.fence) == ("customer:c", "o", 42)
    assert asked(b"BBB", b"1", b"43").fingerprint(SALT) == first.fingerprint(SALT)
    other = asked(b"CCC", b"2", b"42")
    assert other.fingerprint(SALT) != first.fingerprint(SALT)
    assert other.differences(SALT, first.outline(SALT)) == Differences(("body /a",), (), 0)


@pytest.mark.parametrize("name", [b"_method", b"_METHOD", b"%5Fmethod"])
def test_a_query_does_not_change_the_method(charges: Policies, name: bytes) -> None:
    refused(ask(charges, query=b"a=1&" + name + b"=DELETE"), "request-invalid")
    derived(ask(charges, query=b"x=_method&my_method=1"))


@pytest.mark.parametrize(
    "pair", [b".method", b"+_method", b"%20_method", b"[_method]", b"_method%00", b"_method[]"]
)
@pytest.mark.parametrize("mode", ["auto", "raw"])
def test_no_spelling_of_a_parameter_changes_the_method(
    load_text: Load, pair: bytes, mode: str
) -> None:
    policies = load_text(policy(command(more=f"fingerprint.body = '{mode}'")))
    query = pair.replace(b"[", b"%5B").replace(b"]", b"%5D") + b"=DELETE"
    assert "in the query" in refused(ask(policies, FORM, query=b"a=1&" + query), "request-invalid")
    untyped = lacking(b"Content-Type")  # Rack takes it for a form, and these two
    listed = (*untyped, (b"Content-Type", FORM[-1][1] + b", text/plain"))
    for headers in (FORM, untyped, FORM + FORM[-1:], listed):
        for body in (b"a=1&" + pair + b"=PUT", b"%&" + pair + b"=PUT"):
            detail = refused(ask(policies, headers, body=body), "request-invalid")
            assert "in the body" in detail
    for body in (b"payment_method=_method", b"%&the method"):
        derived(ask(policies, FORM, body=body))


MIXED = [b"customer=B", b"Customer=B", b"customer[x]=B", b"customer%00=B", b"[customer]=B", b"%="]


@pytest.mark.parametrize("pair", MIXED)
def test_what_a_form_names_stands_in_no_query(load_text: Load, pair: bytes) -> None:
    """Flask's request.values and Java's getParameter take the query's."""
    policies = load_text(policy(command(entity="customer:{body./customer}")))
    for query in (pair, b"a=1&" + pair):
        refused(ask(policies, FORM, query=query, body=b"customer=A"), "request-invalid")
    part = b'--A\r\nContent-Disposition: form-data; name="customer"\r\n\r\nA\r\n--A--'
    refused(ask(policies, boundaried(b"A"), query=pair, body=part), "request-invalid")
    assert derived(ask(policies, FORM, query=b"customers=B", body=b"customer=A"))
    assert derived(ask(policies, query=pair, body=b'{"customer":"A"}'))


@pytest.mark.parametrize("pair", MIXED)
def test_what_a_query_names_stands_in_no_form(load_text: Load, pair: bytes) -> None:
    """PHP's $_REQUEST and Rails take the form's."""
    policies = load_text(policy(command(entity="customer:{query.customer}")))
    kind = "body-unreadable" if pair == b"%=" else "request-invalid"
    refused(ask(policies, FORM, query=b"customer=A", body=pair), kind)
    name = pair.partition(b"=")[0]
    part = b'--A\r\nContent-Disposition: form-data; name="%b"\r\n\r\nB\r\n--A--' % name
    refused(ask(policies, boundaried(b"A"), query=b"customer=A", body=part), "request-invalid")
    assert derived(ask(policies, FORM, query=b"customer=A", body=b"customers=B"))
    assert derived(ask(policies, FORM, query=b"customer=A", body=b""))
    for headers in (lacking(b"Content-Type"), FORM + FORM[-1:]):  # a form to Rack
        refused(ask(policies, headers, query=b"customer=A", body=b"customer=B"), "body-unreadable")
    assert derived(ask(policies, query=b"customer=A", body=b'{"x":1}'))


@pytest.mark.parametrize(
    ("body", "media"),
    [
        (b"<a>10% &amp; 5%</a>", FORM[-1][1]),
        (b"--A\n\nx\n--A--\n", b"multipart/related; boundary=A"),
        (b"a=\xfc", FORM[-1][1] + b"; charset=latin1"),
        (b"a=1", FORM[-1][1] + b"; charset=utf-7"),
    ],
)
def test_a_form_that_cannot_be_read_is_compared_byte_by_byte(
    charges: Policies, load_text: Load, body: bytes, media: bytes
) -> None:
    headers = (*lacking(b"Content-Type"), (b"Content-Type", media))
    result = derived(ask(charges, headers, body=body))
    assert (result.parts.form, result.parts.body) == ("raw", body)
    assert head(charges, headers) is None
    assert derived(ask(charges, headers, body=body + b" ")).fingerprint(SALT) != (
        result.fingerprint(SALT)
    )
    kind = "multipart" if media.startswith(b"multipart") else "form"
    for more in (f"fingerprint.body = '{kind}'", "key = '{body./a}'"):
        strict = load_text(policy(command(more=more)))
        refused(ask(strict, headers, body=body), "body-unreadable")
    # The query might be read from such a body.
    queried = load_text(policy(command(more="key = '{query.a}'")))
    refused(ask(queried, headers, query=b"a=1", body=body), "body-unreadable")


def test_the_type_of_a_body_is_compared(charges: Policies) -> None:
    def asked(media: bytes, body: bytes = b'{"a":1}') -> Derived:
        headers = (*lacking(b"Content-Type"), (b"Content-Type", media))
        return derived(ask(charges, headers, body=body))

    first = asked(b"application/merge-patch+json")
    other = asked(b"application/strategic-merge-patch+json")
    assert other.fingerprint(SALT) != first.fingerprint(SALT)
    assert other.differences(SALT, first.outline(SALT)) == Differences(("type",), (), 0)
    again = asked(b"application/merge-patch+json; charset=utf-8")
    assert again.fingerprint(SALT) == first.fingerprint(SALT)
    # Of no body, none is.
    empty = asked(b"text/plain", b"")
    assert empty.fingerprint(SALT) == asked(b"application/json", b"").fingerprint(SALT)


def test_only_plain_names_are_ignored(load_text: Load) -> None:
    policies = load_text(policy(command(more="fingerprint.ignore = ['/payer']")))

    def mark(pair: bytes) -> bytes:
        return derived(ask(policies, FORM, body=pair + b"&amount=1")).fingerprint(SALT)

    assert mark(b"payer[id]=5") == mark(b"payer[id]=6") == mark(b"payer=\xc3\xbc") == mark(b"")
    for name in (b"payer[id", b"payer]", b"payer[id]x", b"payer=1]"):  # the last one: qs
        assert mark(name + b"=5") != mark(name + b"=6")


def deep(levels: int) -> bytes:
    siblings = b"&".join(b"x[%d]=1" % number for number in range(40))
    return siblings + b"&x[d]" + b"[b]" * levels + b"=1"


@pytest.mark.parametrize("levels", [1, 31, 32, 1_000, 15_000])
def test_no_depth_makes_it_fail(charges: Policies, levels: int) -> None:
    first = derived(ask(charges, FORM, body=deep(levels)))
    second = derived(ask(charges, FORM, body=deep(levels) + b"1"))
    assert first.differences(SALT, first.outline(SALT)) == Differences((), (), 0)
    assert second.differences(SALT, first.outline(SALT)).changed
    nested = b"[" * 128 + b"]" * 128
    json = derived(ask(charges, body=nested))
    assert json.differences(SALT, json.outline(SALT)) == Differences((), (), 0)
    refused(ask(charges, body=b"[" + nested + b"]"), "body-unreadable")


def test_large_bodies_have_no_members(charges: Policies) -> None:
    for headers, body in ((FORM, b"a[b]=" + b"x" * 70_000), (BASE, b'["%b"]' % (b"x" * 70_000))):
        first = derived(ask(charges, headers, body=body))
        assert first.members is ABSENT
        small = derived(ask(charges, headers, body=body[:3] + body[-2:]))
        for one, other in ((first, small), (small, first)):
            found = one.differences(SALT, other.outline(SALT))
            assert found.changed or found.added


def test_what_is_no_name_is_not_shown(charges: Policies) -> None:
    secret = b'{"iban":"DE89","hush":1}'
    first = derived(ask(charges, FORM, body=b"a=1"))
    hidden = "body (a parameter whose name is not plain)"
    for body in (secret, b"x" * 65 + b"=1", b"[hush]=1", b"h" * 60 + b"[" + b"u" * 65 + b"]=2"):
        found = derived(ask(charges, FORM, body=body)).differences(SALT, first.outline(SALT))
        assert found.added == (hidden,)
    named = derived(ask(charges, FORM, body=b"c[b]=2&%b=1" % (b"x" * 64)))
    assert named.differences(SALT, first.outline(SALT)).added == ("body /c/b", "body /" + "x" * 64)
    members = derived(ask(charges, body=b'{"%b":{"c d":1}}' % (b"x" * 65)))
    other = derived(ask(charges, body=b'{"a":1}'))
    (label,) = members.differences(SALT, other.outline(SALT)).added
    assert label == f"body /{'x' * 64}.../c d"


READING = "GET /v1/accounts/{account}/report"
READING_PATH = b"/pay/v1/accounts/acc-1/report"


def test_a_listed_get(load_text: Load) -> None:
    more = "fingerprint.headers = ['Accept']"
    policies = load_text(policy(command(READING, "account:{path.account}", "report", more)))
    headers = lacking(b"Content-Type")

    def asked(headers: Headers, query: bytes = b"day=1", body: bytes = b"") -> Derived:
        return derived(ask(policies, headers, READING_PATH, query, body, "GET"))

    first = asked(headers)
    assert (first.entity, first.fence, first.parts.form) == ("account:acc-1", 42, "raw")
    # Many clients label an empty body; others do not.
    assert asked(BASE).fingerprint(SALT) == first.fingerprint(SALT)
    for other, label in (
        (asked(headers, b"day=2"), "query"),
        (asked(headers, b""), "query"),
        (asked((*headers, (b"accept", b"text/csv"))), "field Accept"),
        (asked(headers, body=b"x"), "body"),
    ):
        assert other.fingerprint(SALT) != first.fingerprint(SALT)
        assert other.differences(SALT, first.outline(SALT)).changed == (label,)
    detail = policies.match("HEAD", READING_PATH)
    assert isinstance(detail, Refusal)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("json", "body-unreadable"), ("multipart", "body-unreadable"), ("form", None)],
)
def test_a_listed_get_without_the_body_it_must_have(
    load_text: Load, mode: str, kind: str | None
) -> None:
    more = f"fingerprint.body = '{mode}'"
    policies = load_text(policy(command(READING, "account:{path.account}", "report", more)))
    result = ask(policies, lacking(b"Content-Type"), READING_PATH, b"", b"", "GET")
    if kind is None:
        assert derived(result).parts.form == mode
    else:
        assert "; send" in refused(result, kind)


def head(policies: Policies, headers: Headers = BASE, query: bytes = b"") -> Refusal | None:
    match = policies.match("POST", PATH)
    assert isinstance(match, Match)
    return check_head(match, query, headers)


@pytest.mark.parametrize(
    ("headers", "query", "kind"),
    [
        ((*lacking(b"Idempotency-Key"), (b"Idempotency-Key", b"")), b"", "key-invalid"),
        (lacking(b"Idempotency-Key"), b"", "key-missing"),
        (with_fence(), b"", "fence-required"),
        (with_fence(b"-1"), b"", "fence-invalid"),
        (with_fence(b"41", b"42"), b"", "fence-invalid"),
        (BASE, b"<", "request-invalid"),
        (BASE, b"_method=DELETE", "request-invalid"),
        ((*BASE, (b"X-HTTP-Method", b"PUT")), b"", "request-invalid"),
        ((*BASE, (b"Connection", b"Idempotency-Key")), b"", "request-invalid"),
        ((*BASE, (b"X_Execution_Fence", b"1")), b"", "request-invalid"),
        ((*BASE, (b"X-Execution-Entity", b"account:2")), b"", "entity-mismatch"),
        ((*lacking(b"Content-Type"), (b"Content-Type", b"application/json; charset=utf-7")), b"",
         "body-unreadable"),
    ],
)  # fmt: skip
def test_a_head_that_is_wrong_whatever_the_body_is(
    charges: Policies, headers: Headers, query: bytes, kind: str
) -> None:
    early = head(charges, headers, query)
    assert isinstance(early, Refusal)
    assert early.type == kind
    # The same answer as with a body.
    assert early == ask(charges, headers, query=query)


def test_a_head_that_depends_on_the_body(charges: Policies, load_text: Load) -> None:
    assert head(charges) is None
    assert head(charges, lacking(b"Content-Type")) is None
    more = "key = '{body./k}'\nfence_from = '{body./fence}'"
    inside = load_text(policy(command(entity="a:{body./id}", more=more)))
    assert head(inside, (BASE[0],)) is None
    told = lacking(b"X-Execution-Fence")
    assert known(inside, told, b'{"k": "a", "fence": 9}') == ("a", 9)
    assert known(inside, told, None) == (None, None)
    refused(head(inside, ()) or derived(ask(charges)), "body-unreadable")
    refused(head(inside, (BASE[0], (b"x-execution-fence", b"x"))) or derived(ask(charges)),
            "fence-invalid")  # fmt: skip
    refused(head(inside, (BASE[0], (b"Content-Encoding", b"gzip"))) or derived(ask(charges)),
            "body-unreadable")  # fmt: skip
    for lines in ([b""], [b" "], [b"a:1", b"a:1"]):
        fields = tuple((b"X-Execution-Entity", line) for line in lines)
        refused(head(inside, (BASE[0], *fields)) or derived(ask(charges)), "request-invalid")
    assert head(inside, (BASE[0], (b"X-Execution-Entity", b"a:1"))) is None  # the body decides
    off = load_text(policy(command(more="fence_from = '{body./fence}'\nfence = 'off'")))
    assert head(off, with_fence(b"nonsense")) is None


READS = command(
    entity="job:{header.X-Job}",
    more=(
        "key = '{header.X-Key}'\nfence_from = '{header.X-Lease}'\n"
        "fingerprint.headers = ['X-Version']"
    ),
)
READ: Headers = ((b"X-Job", b"1"), (b"X-Key", b"k"), (b"X-Lease", b"7"), (b"X-Version", b"2"))
CONTROL = ["Authorization", "Idempotency-Key", "X-Execution-Fence", "X-Execution-Entity"]
DECISIVE = [*CONTROL, "Content-Type", "Content-Encoding", *(n.decode() for n, _ in READ)]


@pytest.mark.parametrize("name", [*DECISIVE, "Content-Length", "Host"])
@pytest.mark.parametrize("written", ["{}", "close, {}", ",{} ,te"])
def test_what_decides_cannot_be_left_at_this_hop(load_text: Load, name: str, written: str) -> None:
    policies = load_text(policy(READS))
    for spelled in (name, name.lower(), name.replace("-", "_")):
        line = (b"connection", written.format(spelled).encode())
        detail = refused(ask(policies, (line, *READ)), "request-invalid")
        assert spelled.lower() in detail


@pytest.mark.parametrize(
    "value",
    [b"close", b"keep-alive, Upgrade, HTTP2-Settings", b"TE, X-Hop", b"Prefer, X-Jobs", b""],
)
def test_anything_else_may_end_at_this_hop(load_text: Load, value: bytes) -> None:
    assert derived(ask(load_text(policy(READS)), ((b"Connection", value), *READ))).entity == "job:1"


@pytest.mark.parametrize("name", [name for name in DECISIVE if "-" in name])
@pytest.mark.parametrize("other", ["_", "."])
def test_a_twin_of_what_decides_is_refused(load_text: Load, name: str, other: str) -> None:
    policies = load_text(policy(READS))
    twin = name.replace("-", other)
    detail = refused(ask(policies, (*READ, (twin.encode(), b"2"))), "request-invalid")
    assert f"{twin} may be read as {name.lower()}" in detail


@pytest.mark.parametrize("mode", ["optional", "off"])
def test_a_lone_twin_is_not_taken_for_no_fence(load_text: Load, mode: str) -> None:
    policies = load_text(policy(command(more=f"fence = '{mode}'")))
    refused(ask(policies, (*with_fence(), (b"X_Execution_Fence", b"41"))), "request-invalid")


def test_other_underscores_pass(charges: Policies) -> None:
    derived(ask(charges, (*BASE, (b"X_Trace", b"1"), (b"X_Job", b"2"))))


@pytest.mark.parametrize("body", ["auto", "json", "raw"])
def test_a_body_in_another_charset_names_no_entity(load_text: Load, body: str) -> None:
    text = command("POST /v1/cases", "customer:{body./id}", "case", f"fingerprint.body = '{body}'")
    policies = load_text(policy(text))

    def asked(content_type: bytes) -> Derived | Refusal:
        headers = (*lacking(b"Content-Type"), (b"Content-Type", content_type))
        return ask(policies, headers, b"/pay/v1/cases", body=b'{"id":"+AGE-"}')

    assert derived(asked(b'application/json; charset="UTF-8"')).entity == "customer:+AGE-"
    for charset in (b"utf-7", b"utf-8; charset=utf-7"):
        detail = refused(asked(b"application/json; charset=" + charset), "body-unreadable")
        assert "charset=utf-8" in detail


def test_another_rule_version_is_another_fingerprint(charges: Policies) -> None:
    result = derived(ask(charges))
    other = replace(result, parts=replace(result.parts, version=b"x" * 8))
    assert other.fingerprint(SALT) != result.fingerprint(SALT)


KINDS = [b"application/x-www-form-urlencoded", b"multipart/form-data; boundary=A"]
lines = st.tuples(
    st.sampled_from([pair[0] for pair in BASE] + [b"x-execution-entity", b"content-encoding"]),
    st.binary(max_size=12) | st.sampled_from([*(pair[1] for pair in BASE), *KINDS]),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(
    st.lists(lines, max_size=5).map(tuple),
    st.binary(max_size=20),
    st.binary(max_size=40) | st.sampled_from([BODY, b'{"input":{"customer_id":"c"}}']),
    st.booleans(),
)
def test_no_request_makes_it_fail(
    charges: Policies, cases: Policies, headers: Headers, query: bytes, body: bytes, first: bool
) -> None:
    policies, path = (charges, PATH) if first else (cases, b"/pay/v1/cases")
    result = ask(policies, headers, path, query, body)
    match = policies.match("POST", path)
    assert isinstance(match, Match)
    if check_head(match, query, headers) is not None:
        assert isinstance(result, Refusal)
    if isinstance(result, Derived):
        assert result.differences(SALT, result.outline(SALT)) == Differences((), (), 0)
        assert len(result.fingerprint(SALT)) == 32
        assert result.fence is not None
    else:
        assert result.detail
