"""Loading: what is accepted, and that every mistake is reported at once with its mend."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import trustme

from gateway.core.fences import ISSUED_LIMIT, OUTSIDE_LIMIT
from gateway.core.model import Rules
from gateway.core.secret import revealed
from gateway.policy import Policies, PolicyErrors, json_schema, load
from tests.unit.policy.conftest import Errors, Load
from tests.unit.policy.texts import command, policy

SHIPPED = Path(__file__).parents[3] / "policies"


def test_the_shipped_example_loads(tmp_path: Path) -> None:
    shutil.copy(SHIPPED / "payments.toml.example", tmp_path / "payments.toml")
    policies = load(tmp_path, {"PAYMENTS_TOKEN": "s3cret"})
    (mount,) = policies.mounts
    assert policies.warnings == ()
    assert revealed(mount.upstream.headers) == ((b"Authorization", b"Bearer s3cret"),)
    assert "s3cret" not in repr(policies)
    (capture,) = mount.commands
    assert capture.rules.policy == "payments/capture"
    assert capture.rules.request_limit == 8 * 2**20
    assert capture.recipe.ignore == (("metadata", "trace_id"),)
    assert capture.recipe.headers == (b"stripe-version",)
    assert capture.send_key == b"Idempotency-Key"


def test_the_example_states_the_defaults(load_text: Load) -> None:
    (charge,) = load_text(policy()).commands()
    version = charge.rules.version
    assert charge.rules == Rules(
        policy="payments/charge",
        fence="required",
        serial=True,
        unknown="hold",
        timeout_s=30,
        settle_delay_s=300,
        not_executed=frozenset({401, 407, 421, 425, 429}),
        ambiguous=frozenset({408, 500, 502, 503, 504}),
        request_limit=8 * 2**20,
        keep_limit=2**20,
        response_days=30,
        key_days=400,
        issuer="outside",
        version=version,
        cache_s=60,
    )
    assert charge.fence_limit == OUTSIDE_LIMIT
    assert (charge.send_key, charge.send_fence, charge.pass_authorization) == (None, None, False)
    assert charge.upstream.idle_s == 4


def test_the_demo_policy_loads(tmp_path: Path) -> None:
    shutil.copy(SHIPPED / "legacy.toml", tmp_path)
    policies = load(tmp_path, {"LEGACY_TOKEN": "s3cret"})
    assert policies.warnings == ()
    assert [command.rules.policy for command in policies.commands()] == [
        "legacy/capture",
        "legacy/open_case",
    ]


def test_five_mistakes_are_five_errors_with_file_path_and_mend(errors_of: Errors) -> None:
    text = """
        name = "payments"
        mount = "/v1/payments"
        upstream = "ftp://api.example"

        [upstream_headers]
        Authorization = "Bearer ${PAYMENTS_TOKEN}"

        [[commands]]
        name = "charge"
        match = "POST /charges/{id}"
        entity = "charge:{path.charge_id}"
        unknown = "guess"
    """
    errors = errors_of(text, {"OTHER": "s3cret"})
    assert sorted(errors) == [
        (
            "payments.toml: commands[0].entity: {path.charge_id} is not a variable of match, "
            "which has {id}; write {charge_id} as a segment of match, or take another variable"
        ),
        (
            "payments.toml: commands[0].unknown: 'guess' is not a choice; "
            'use "hold" or "resend" or "probe"'
        ),
        "payments.toml: mount: /v1 is one of the gateway's own paths; mount it somewhere else",
        (
            "payments.toml: upstream: is not an http or https URL; "
            'write e.g. "https://payments.example"'
        ),
        (
            "payments.toml: upstream_headers.Authorization: the environment variable "
            "PAYMENTS_TOKEN is not set; set PAYMENTS_TOKEN, or PAYMENTS_TOKEN_FILE to the path of "
            "a file that holds it"
        ),
    ]


def test_all_files_are_reported_and_syntax_errors_name_the_line(errors_of: Errors) -> None:
    errors = errors_of(a="name = 'a'\nmount = \n", b="mount = '/b'", c=policy(name="C"))
    assert len(errors) == 4
    assert errors[0].startswith("a.toml: is not TOML: ")
    assert "line 2" in errors[0]
    assert {error.split(":")[0] for error in errors[1:3]} == {"b.toml"}
    assert errors[3].startswith("c.toml: name: 'C' is not a usable name; ")


@pytest.mark.parametrize(
    ("line", "path", "says"),
    [
        ("fence = 'sometimes'", "fence", 'use "required" or "optional" or "off"'),
        ("fence = true", "fence", "is not a choice"),
        ("issuer = 'us'", "issuer", 'is not a choice; use "outside" or "here"'),
        ("mode = 'shadow'", "mode", "not in this release; remove mode"),
        ("timeout = 3", "timeout", "is not a field; write timeout_s"),
        ("zzz = 3", "zzz", "is not a field; remove it"),
        ("retries = 3", "retries", "the gateway never sends a command again by itself; remove"),
        ("retrain = 3", "retrain", "is not a field; write retain"),
        ("key = '{header.X-Execution-Fence}'", "key", "is the fence, which is another for each"),
        (
            "fence_from = '{body./lease}'\nkey = 'k:{body./lease}'",
            "key",
            "{body./lease} is the fence, which is another for each owner; take what all attempts",
        ),
        ("timeout_s = '30'", "timeout_s", "without quotes"),
        ("timeout_s = 0", "timeout_s", "must be above 0"),
        ("timeout_s = nan", "timeout_s", "finite"),
        ("timeout_s = 3601", "timeout_s", "at most 3600"),
        ("serial = 1", "serial", "true or false"),
        ("request_limit = '8 MB'", "request_limit", "is not a size"),
        ("request_limit = '1 GiB'", "request_limit", "at most"),
        ("keep_limit = -1", "keep_limit", "at least 0"),
        ("keep_limit = '17 MiB'", "keep_limit", "one statement of 2 s"),
        ("keep_limit = 16777217", "keep_limit", 'write at most "16 MiB"'),
        ("keep_limit = '16 MB'", "keep_limit", "is not a size"),
        ("not_executed = [200]", "not_executed[0]", "at least 300"),
        ("not_executed = 401", "not_executed", "in [brackets]"),
        (
            "unknown = 'probe'\nprobe = {request = 'GET /f?k={key}', applied = {status = 200}}",
            "probe.applied.status",
            "write it in [brackets], e.g. status = [200]",
        ),
        ("not_executed = [500]", "ambiguous", "shares [500] with not_executed"),
        ("send_key = 'Content-Length'", "send_key", "belongs to the connection"),
        ("send_key = 'Idempotency_Key'", "send_key", "not a usable field name"),
        ("send_key = 'Connection'", "send_key", "belongs to the connection"),
        ("send_key = 'Via'", "send_key", "belongs to the connection"),
        ("send_key = 'Proxy-Key'", "send_key", "belongs to the connection"),
        ("send_fence = 'Transfer.Encoding'", "send_fence", "belongs to the connection"),
        ("send_fence = 'host'", "send_fence", "belongs to the connection"),
        ("send_fence = 'Date'", "send_fence", "means something else"),
        ("send_fence = 'Content-MD5'", "send_fence", "means something else"),
        ("send_key = 'authorization'", "send_key", "means something else"),
        ("send_key = 'Cookie'", "send_key", "means something else"),
        ("key = '{header.Authorization}'", "key", "{header.Authorization} is a credential"),
        ("key = 'a:{path.account}:{header.cookie}'", "key", "is a credential"),
        ("key = '{header.Date}'", "key", "is another at every attempt"),
        ("fence_from = '{header.Host}'", "fence_from", "belongs to the connection"),
        ("fence_from = '{header.Content-Length}'", "fence_from", "belongs to the connection"),
        ("key = '{header.Connection}'", "key", "belongs to the connection"),
        ("key = '{header.Transfer-Encoding}'", "key", "belongs to the connection"),
        ("key = '{header.Proxy-User}'", "key", "read the path, the body or another field"),
        ("send_key = 'X-K'\nsend_fence = 'x-k'", "send_fence", "is send_key too"),
        ("key = 'all-the-same'", "key", "all but the first would be replays"),
        ("key = '{path.nobody}'", "key", "not a variable of match"),
        ("key = '{nobody}'", "key", "column 1: {nobody} is not a placeholder"),
        ("fence_from = '{path.account}'", "fence_from", "one header or body placeholder"),
        ("fence_from = 'f{header.X-F}'", "fence_from", "one header or body placeholder"),
        ("fingerprint.body = 'xml'", "fingerprint.body", 'or "form" or "multipart" or "raw"'),
        (
            f"fingerprint.headers = {[f'X-{n}' for n in range(33)]}",
            "fingerprint.headers",
            "more than 32 fields",
        ),
        ("fingerprint.ignore = ['a']", "fingerprint.ignore[0]", "not a JSON pointer"),
        ("fingerprint.ignore = ['']", "fingerprint.ignore[0]", "not a JSON pointer"),
        ("fingerprint.headers = ['X-Execution-Fence']", "fingerprint.headers", "carries the fence"),
        ("fingerprint.extra = 1", "fingerprint.extra", "body, ignore, headers"),
        (
            "fingerprint = {body = 'raw', ignore = ['/a']}",
            "fingerprint.ignore",
            "compared byte by byte",
        ),
        (
            "fence_from = '{body./f}'\nfingerprint.body = 'raw'",
            "fence_from",
            "compared byte by byte",
        ),
        ("retain.key_days = 29", "retain.response_days", "longer than the key"),
        ("retain.key_days = 0", "retain.key_days", "at least 1"),
    ],
)
def test_mistakes_of_a_command(errors_of: Errors, line: str, path: str, says: str) -> None:
    errors = errors_of(policy(command(more=line)))
    found = [error for error in errors if error.startswith(f"payments.toml: commands[0].{path}: ")]
    assert any(says in error for error in found), errors
    assert all("; " in error for error in errors)


def test_a_fence_without_an_entity_fails(errors_of: Errors) -> None:
    text = policy("[[commands]]\nname = 'ping'\nmatch = 'POST /unscoped/ping'\n")
    assert errors_of(text) == [
        (
            "payments.toml: commands[0].entity: is missing, so nothing could be fenced; "
            'add it, e.g. entity = "invoice:{path.invoice_id}"'
        )
    ]


@pytest.mark.parametrize(
    "match",
    [
        "POST", "POST v1", "post /v1", "TRACE /v1", "CONNECT /v1", "POST  /v1", "POST /a//b",
        "POST /a/../b", "POST /a/%2e", "POST /a%2Fb", "POST /{a}{b}", "POST /x{a}", "POST /{a}/{a}",
        "POST /{}", "POST /{1}", "POST /a?b", "POST /a b", "POST /ä", "POST /a;v=1", "POST /%zz",
    ],
)  # fmt: skip
def test_matches_that_no_request_could_have(errors_of: Errors, match: str) -> None:
    errors = errors_of(policy(command(match=match, entity="global")))
    assert [error.split(": ")[1] for error in errors] == ["commands[0].match"]


@pytest.mark.parametrize(
    "mount",
    [
        "", "pay", "/", "/pay/", "/a//b", "/..", "/.hidden", "/a%20b", "/a b", "/healthz",
        "/readyz/x",
        "/metrics", "/openapi.json", "/v1", "/V1", "/console/commands",
    ],
)  # fmt: skip
def test_mounts_that_cannot_be(errors_of: Errors, mount: str) -> None:
    errors = errors_of(policy(mount=mount))
    assert [error.split(": ")[1] for error in errors] == ["mount"]


@pytest.mark.parametrize(
    "url",
    [
        "api.example", "//api.example", "ftp://api.example", "HTTP://api.example", "https://",
        "https://u:p@api.example", "https://api.example?x=1", "https://api.example/#f",
        "https://api.example:0", "https://api.example:99999", "https://api.example:x",
        "https://api.example/a/../b", "https://api.example/a//b", "https://bücher.example",
        "https://api example", "https://[::1", "https://-a.example", "https://api.example.",
        "https://a..example", "https://[fe80::1%25eth0]", "https://[::1]x", "https://api.example:",
    ],
)  # fmt: skip
def test_upstreams_that_cannot_be(errors_of: Errors, url: str) -> None:
    errors = errors_of(policy().replace("https://api.example", url))
    assert [error.split(": ")[1] for error in errors] == ["upstream"]


@pytest.mark.parametrize(
    ("url", "scheme", "host", "port", "authority", "base"),
    [
        ("https://api.example", "https", "api.example", 443, b"api.example", b""),
        ("https://API.example:443/", "https", "api.example", 443, b"api.example", b""),
        ("http://127.0.0.1:8080/v2/", "http", "127.0.0.1", 8080, b"127.0.0.1:8080", b"/v2"),
        ("http://[::1]:80/a/b", "http", "::1", 80, b"[::1]", b"/a/b"),
    ],
)
def test_upstreams_are_taken_apart(
    load_text: Load, url: str, scheme: str, host: str, port: int, authority: bytes, base: bytes
) -> None:
    upstream = load_text(policy().replace("https://api.example", url)).mounts[0].upstream
    assert (upstream.scheme, upstream.host, upstream.port) == (scheme, host, port)
    assert (upstream.authority, upstream.base) == (authority, base)


def test_environment_values_are_never_shown(errors_of: Errors) -> None:
    headers = """
        [upstream_headers]
        A = "${UNSET}"
        B = "${EMPTY}"
        C = "${LINE_END}"
        D = "${LINE_END"
        E = "x ${}"
        Bad_Name = "x"
        Content-Length = "1"
        authorization = "${X}"
        Authorization = "${X}"
    """
    errors = errors_of(policy() + headers, {"EMPTY": "", "LINE_END": "s3cret\n", "X": "x"})
    assert not any("s3cret" in error for error in errors)
    paths = sorted(error.split(": ")[1] for error in errors)
    assert paths == [
        f"upstream_headers.{name}"
        for name in ("A", "Authorization", "B", "Bad_Name", "C", "Content-Length", "D", "E")
    ]


def test_authorization_comes_from_one_place(errors_of: Errors) -> None:
    text = policy(command(more="pass_authorization = true\nsend_key = 'X-Key'"))
    set_too = "[upstream_headers]\nAuthorization = '${X}'\nx-key = '${X}'\n"
    errors = errors_of(text + set_too, {"X": "x"})
    assert [error.split(": ")[1] for error in errors] == [
        "commands[0].send_key",
        "commands[0].pass_authorization",
    ]


def test_names_and_mounts_are_unique(errors_of: Errors) -> None:
    errors = errors_of(
        a=policy(command(), command("POST /other", "other:1")),
        b=policy(command(entity="other:{path.account}")),
    )
    assert [": ".join(error.split(": ")[:2]) for error in errors] == [
        "a.toml: commands[1].name",
        "b.toml: name",
        "b.toml: mount",
    ]


@pytest.mark.parametrize(
    ("one", "other", "clash"),
    [
        ("POST /a/{x}", "POST /a/{y}", True),
        ("POST /a/{x}", "POST /{y}/b", True),
        ("POST /a/b", "POST /A/b", True),
        ("POST /a/b", "POST /a/b/", True),
        ("POST /a/b", "POST /a/%62", True),
        ("POST /a/{x}", "POST /a/b", False),
        ("POST /a/{x}", "PUT /a/{x}", False),
        ("POST /a/{x}", "POST /b/{x}", False),
        ("POST /a/{x}", "POST /a/{x}/c", False),
        ("POST /{x}/{y}", "POST /a/{y}", False),
    ],
)
def test_a_tie_is_an_error(
    errors_of: Errors, load_text: Load, one: str, other: str, clash: bool
) -> None:
    text = policy(command(one, "e:1", "one"), command(other, "e:1", "other"))
    if not clash:
        load_text(text)
        return
    (error,) = errors_of(text)
    assert error.startswith("payments.toml: commands[1].match: ")


@pytest.mark.parametrize("fence", ["optional", "off"])
def test_fences_that_are_issued_here_are_required(errors_of: Errors, fence: str) -> None:
    (error,) = errors_of(a=policy(command(more=f"issuer = 'here'\nfence = '{fence}'")))
    assert error == (
        f'a.toml: commands[0].fence: is "{fence}", and fences that are issued here are always '
        'required; remove it, or set issuer = "outside"'
    )


def test_a_fence_issued_here_may_use_the_whole_range(load_text: Load) -> None:
    (charge,) = load_text(policy(command(more="issuer = 'here'"))).commands()
    assert (charge.rules.issuer, charge.fence_limit) == ("here", ISSUED_LIMIT)


def test_commands_of_one_entity_agree_on_its_case(errors_of: Errors) -> None:
    folded = command(entity="inv:{path.account}:x", more="entity_case = 'ignore'")
    apart = command("PUT /x/{y}", "Inv:{path.y}", "x", more="entity_case = 'ignore'")
    (error,) = errors_of(
        a=policy(command(entity="inv:{path.account}"), name="a", mount="/a"),
        b=policy(folded, apart, name="b", mount="/b"),
    )
    assert error.startswith('b.toml: commands[0].entity_case: is "ignore", but "exact" in a.toml:')


def test_the_case_of_entities_is_one_of_two(errors_of: Errors) -> None:
    (error,) = errors_of(policy(command(more="entity_case = 'lower'")))
    assert 'use "exact" or "ignore"' in error


def test_commands_of_one_entity_agree(errors_of: Errors) -> None:
    errors = errors_of(
        a=policy(command(entity="inv:{path.account}"), name="a", mount="/a"),
        b=policy(
            command(entity="inv:{path.account}:x", more="serial = false\nfence = 'off'"),
            command("PUT /x", "other:1", "x", more="serial = false"),
            name="b",
            mount="/b",
        ),
    )
    assert errors == [
        (
            "b.toml: commands[0].serial: is false, but true in a.toml: commands[0], and both act "
            "on entities that start with 'inv:'; make them agree, or begin the entities differently"
        ),
        (
            'b.toml: commands[0].fence: is "off", but "required" in a.toml: commands[0], and both '
            "act on entities that start with 'inv:'; make them agree, or begin the entities "
            "differently"
        ),
    ]


def test_an_entity_without_a_literal_start_is_a_warning(load_text: Load) -> None:
    text = policy(command(entity="{header.X-Job}"), command("PUT /x", "x:1", "x"))
    (warning,) = load_text(text).warnings
    assert str(warning).startswith("payments.toml: commands[0].entity: ")


def test_an_entity_that_the_caller_names_is_a_warning(load_text: Load) -> None:
    (warning,) = load_text(policy(command(entity="job:{header.x-execution-entity}"))).warnings
    assert str(warning).startswith("payments.toml: commands[0].entity: is what the caller says")


def test_an_entity_is_not_made_of_the_fence(errors_of: Errors) -> None:
    (error,) = errors_of(policy(command(entity="lease:{header.x-execution-fence}")))
    assert error.startswith(
        "payments.toml: commands[0].entity: {header.x-execution-fence} is the f"
    )


@pytest.mark.parametrize(
    ("key", "warned"),
    [
        ("{path.account}", True),
        ("{query.id}:charge", True),
        ("charge:{path.account}", False),
        ("{header.X-Request-Key}", False),
    ],
)
def test_a_key_without_a_literal_start_is_a_warning(
    load_text: Load, key: str, warned: bool
) -> None:
    found = [str(each) for each in load_text(policy(command(more=f"key = '{key}'"))).warnings]
    assert [f"commands[0].key: '{key}' has no literal start" in each for each in found] == (
        [True] * warned
    )


@pytest.mark.parametrize(
    ("match", "told"),
    [("POST /q/:id", "takes ':id' as it stands; a variable is written {id}"), ("POST /q/:", None)],
)
def test_a_variable_as_other_tools_write_it_is_a_warning(
    load_text: Load, match: str, told: str | None
) -> None:
    found = [str(each) for each in load_text(policy(command(match, "queue:1"))).warnings]
    assert [told is not None and each.endswith(told) for each in found] == [True] * bool(told)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("from $TOKEN", "$TOKEN"),
        ("from {TOKEN}", "{TOKEN}"),
        ("from {{TOKEN}}", "{{TOKEN}}"),
        ("from ${TOKEN}", None),
        ("price: 5$ {}", None),
    ],
)
def test_a_header_that_looks_like_a_reference_is_a_warning(
    load_text: Load, value: str, found: str | None
) -> None:
    text = policy() + f"[upstream_headers]\nX-Note = '{value}'\n"
    warnings = [str(each) for each in load_text(text, {"TOKEN": "s3cret"}).warnings]
    expected = f"X-Note: sends {found} as it stands; a variable is written ${{TOKEN}}"
    assert [each.endswith(expected) for each in warnings] == [True] * (found is not None)


def test_a_match_with_a_query_says_where_queries_are_read(errors_of: Errors) -> None:
    for match in ("GET /reboot?host={host}", "POST /charges?x=1"):
        (error,) = errors_of(policy(command(match, "host:1")))
        assert error.endswith(
            "has a query, and requests are told apart by method and path alone; "
            "leave it out; a template reads it as {query.name}"
        )


def test_an_entity_reads_no_credential(errors_of: Errors) -> None:
    (error,) = errors_of(policy(command(entity="user:{header.Authorization}")))
    assert error.startswith("payments.toml: commands[0].entity: {header.Authorization} is a cred")


@pytest.mark.parametrize(
    ("more", "listed"),
    [
        ("not_executed = [503, 429]", "[503]"),
        ("not_executed = [599, 408]\nambiguous = [502]", "[408, 599]"),
        ("not_executed = [409, 499]", None),
    ],
)
def test_a_status_that_may_come_after_the_effect_is_a_warning(
    load_text: Load, more: str, listed: str | None
) -> None:
    more += "" if "ambiguous" in more else "\nambiguous = [502]"
    found = [str(warning) for warning in load_text(policy(command(more=more))).warnings]
    assert len(found) == (listed is not None)
    assert all(f"commands[0].not_executed: lists {listed}, " in each for each in found)


def test_the_most_that_can_be_kept(load_text: Load) -> None:
    (charge,) = load_text(policy(command(more="keep_limit = '16 MiB'"))).commands()
    assert charge.rules.keep_limit == 16 * 2**20


def test_a_hidden_command_and_an_empty_policy_are_warnings(load_text: Load) -> None:
    policies = load_text(
        outer=policy(command("POST /{region}/x", "x:1"), name="outer", mount="/pay"),
        inner="name='inner'\nmount='/pay/eu'\nupstream='http://inner.example'\n",
    )
    assert sorted(warning.file for warning in policies.warnings) == ["inner.toml", "outer.toml"]


def test_other_files_are_passed_over(load_text: Load, tmp_path: Path) -> None:
    for name in ("tools.toml", ".hidden.toml", "payments.toml.example", "notes.txt"):
        (tmp_path / name).write_text("not = [toml", encoding="utf-8")
    (tmp_path / "folder.toml").mkdir()
    assert len(load_text(policy()).mounts) == 1


def test_a_commands_field_above_the_commands_is_told_its_place(errors_of: Errors) -> None:
    for name in ("timeout", "timeout_s"):
        (error,) = errors_of(f"{name} = 3\n" + policy())
        assert error.endswith(f": {name}: is not a field; write timeout_s inside [[commands]]")
    (error,) = errors_of("mont = '/x'\n" + policy())
    assert error.endswith("write mount")


def test_nothing_to_load_is_an_error(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(PolicyErrors, match=r"holds no policy file|is not a folder"):
            load(folder, {})


def test_files_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"name = '\xff'")
    (tmp_path / "b.toml").write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(PolicyErrors) as caught:
        load(tmp_path, {})
    assert [error.problem for error in caught.value.errors] == [
        "is not UTF-8",
        "is larger than 1048576 bytes",
    ]


def test_a_ca_file_is_relative_to_its_policy(
    load_text: Load, errors_of: Errors, tmp_path: Path
) -> None:
    text = policy(more="ca_file = 'ca.pem'")
    assert "ca_file: 'ca.pem' is not a file" in errors_of(text)[0]
    (tmp_path / "ca.pem").write_bytes(trustme.CA().cert_pem.bytes())
    assert load_text(text).mounts[0].upstream.ca_file == str(tmp_path / "ca.pem")


def digest(policies: Policies) -> bytes:
    return policies.commands()[0].upstream_digest


def test_the_upstream_digest_covers_upstream_account_and_key_header(load_text: Load) -> None:
    token = "[upstream_headers]\nAuthorization = '${TOKEN}'\n"
    first = digest(load_text(policy() + token, {"TOKEN": "one"}))
    others = {
        digest(load_text(policy() + token, {"TOKEN": "two"})),
        digest(load_text(policy())),
        digest(
            load_text(policy().replace("api.example", "api2.example") + token, {"TOKEN": "one"})
        ),
        digest(load_text(policy(command(more="send_key = 'X-Key'")) + token, {"TOKEN": "one"})),
    }
    assert len(first) == 16
    assert len(others | {first}) == 5
    again = policy(command(more="timeout_s = 3")) + token.replace("Authorization", "authorization")
    assert digest(load_text(again, {"TOKEN": "one"})) == first


def test_the_upstream_digest_covers_the_client_certificate(load_text: Load, tmp_path: Path) -> None:
    """Whoever presents another one may be another account."""

    def of(*certificates: bytes) -> bytes:
        (tmp_path / "both.pem").write_bytes(b"".join(certificates))
        return digest(load_text(policy(more="client_cert_file = 'both.pem'")))

    authority = trustme.CA()
    one, other = authority.issue_cert("one.example"), authority.issue_cert("two.example")
    chains = [
        [each.private_key_pem.bytes(), *(blob.bytes() for blob in each.cert_chain_pems)]
        for each in (one, other)
    ]
    first = of(*chains[0])
    assert first == of(chains[0][0], b"\n# renamed\n", *chains[0][1:])
    assert len({digest(load_text(policy())), first, of(*chains[1])}) == 3


def test_under_a_named_account_credentials_may_change_and_nothing_else(
    load_text: Load, tmp_path: Path
) -> None:
    token = "[upstream_headers]\nAuthorization = 'Bearer ${TOKEN}'\n"

    def of(account: str | None, more: str = "", env: str = "one", table: str = token) -> bytes:
        named = f"account = '{account}'\n" if account is not None else ""
        return digest(load_text(policy(more=named + more) + table, {"TOKEN": env}))

    authority = trustme.CA()
    blobs = []
    for name in ("one.example", "two.example"):
        made = authority.issue_cert(name)
        blobs.append(b"".join([made.private_key_pem.bytes(), made.cert_chain_pems[0].bytes()]))
    first = of("main")
    assert of("main", env="two") == first
    (tmp_path / "both.pem").write_bytes(blobs[0])
    mutual = of("main", "client_cert_file = 'both.pem'")
    (tmp_path / "both.pem").write_bytes(blobs[1])
    assert of("main", "client_cert_file = 'both.pem'") == mutual
    others = [
        of(None),
        of(None, env="two"),
        of("other"),
        of("main", table=token.replace("Bearer", "Basic")),
        of("main", table=token + "Account-Of = 'acct_2'\n"),
        of("main", table=""),
    ]
    assert len({first, *others}) == 7


def test_the_rule_version_covers_fingerprint_and_entity_only(load_text: Load) -> None:
    def version(more: str = "", entity: str = "account:{path.account}") -> bytes:
        return load_text(policy(command(entity=entity, more=more))).commands()[0].rules.version

    first = version()
    assert version("timeout_s = 5\nserial = false") == first
    changed = {
        version("fingerprint.headers = ['X-A']"),
        version("fingerprint.ignore = ['/a']"),
        version("fingerprint.body = 'raw'"),
        version("fence_from = '{body./f}'"),
        version(entity="acct:{path.account}"),
    }
    assert len(changed | {first}) == 6
    one, other = "fingerprint.headers = ['X-A', 'B']", "fingerprint.headers = ['b', 'x-a']"
    assert version(one) == version(other)


def test_the_schema_is_json() -> None:
    text = json.dumps(json_schema())
    assert '"additionalProperties": false' in text
    assert "8 MiB" in text or '"type": "string"' in text
