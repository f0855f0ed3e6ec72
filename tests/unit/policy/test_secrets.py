"""Where an upstream's secrets come from; that no policy's text holds one, and none is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core.secret import revealed
from gateway.filed import MAX_SECRET
from gateway.policy import render_report
from tests.unit.policy.conftest import Errors, Load
from tests.unit.policy.texts import policy

SET = policy() + "[upstream_headers]\nAuthorization = 'Bearer ${TOKEN}'\n"


def sent(load_text: Load, env: dict[str, str], text: str = SET) -> bytes:
    (mount,) = load_text(text, env).mounts
    ((_, value),) = revealed(mount.upstream.headers)
    return value


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_a_variable_may_stand_in_a_file(load_text: Load, tmp_path: Path, end: bytes) -> None:
    (tmp_path / "token").write_bytes(b"hush" + end)
    assert sent(load_text, {"TOKEN_FILE": str(tmp_path / "token")}) == b"Bearer hush"
    assert sent(load_text, {"TOKEN_FILE": str(tmp_path / "token"), "TOKEN": ""}) == b"Bearer hush"
    assert sent(load_text, {"TOKEN": "own", "TOKEN_FILE": ""}) == b"Bearer own"


def test_a_file_is_read_once(load_text: Load, tmp_path: Path) -> None:
    """A pipe gives its content to the first who reads; two fields have the same value."""
    import os
    import threading

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    threading.Thread(target=lambda: pipe.write_text("hush"), daemon=True).start()
    text = SET + "X-Key = '${TOKEN}'\n"
    (mount,) = load_text(text, {"TOKEN_FILE": str(pipe)}).mounts
    assert [value for _, value in revealed(mount.upstream.headers)] == [b"Bearer hush", b"hush"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read (No such file or directory)"),
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"h\xffush", "is not UTF-8"),
        (b"hush" * MAX_SECRET, f"is larger than {MAX_SECRET} bytes"),
        (b"hush\n\n", "is not a field value"),
        (b"hush\r\nX-Other: hush", "is not a field value"),
        ("hüsh".encode(), "is not a field value"),
    ],
)
def test_a_file_that_gives_no_value_is_a_mistake_and_is_not_shown(
    errors_of: Errors, tmp_path: Path, content: bytes | None, said: str
) -> None:
    if content is not None:
        (tmp_path / "token").write_bytes(content)
    (error,) = errors_of(SET, {"TOKEN_FILE": str(tmp_path / "token")})
    assert said in error
    assert "hush" not in error
    assert "Traceback" not in error


def test_a_variable_and_its_file_are_not_both_set(errors_of: Errors, tmp_path: Path) -> None:
    (error,) = errors_of(SET, {"TOKEN": "hush", "TOKEN_FILE": str(tmp_path / "token")})
    assert error.endswith("TOKEN and TOKEN_FILE are both set; unset one of them")


@pytest.mark.parametrize("name", ["FENCEGATE_DATABASE_URL", "FENCEGATE_KEY", "PGPASSWORD"])
def test_no_policy_sends_what_is_the_gateways_own(errors_of: Errors, name: str) -> None:
    text = policy() + f"[upstream_headers]\nX-Note = '${{{name}}}'\n"
    (error,) = errors_of(text, {name: "hush"})
    assert f"{name} is the gateway's own" in error
    assert "hush" not in error


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Authorization", "Bearer hush"),
        ("authorization", "hush"),
        ("Cookie", "session=hush"),
        ("X-Api-Key", "hush"),
        ("apikey", "hush"),
        ("X-Auth-Token", "hush"),
        ("Client-Secret", "hush"),
        ("X-Amz-Security-Token", "hush"),
        ("X.Api.Key", "hush"),
        ("X-Password", "hush"),
        ("X-Note", "Bearer hush"),
        ("X-Note", "basic aHVzaA=="),
        ("X-Note", "sk_live_hush"),
        ("X-Note", "ghp_hush"),
        ("X-Note", "fg_1_hush_hush"),
        ("X-Auth", "$TOKEN"),
    ],
)
def test_a_credential_that_is_written_out_is_a_mistake(
    errors_of: Errors, name: str, value: str
) -> None:
    (error,) = errors_of(policy() + f"[upstream_headers]\n'{name}' = '{value}'\n")
    assert f"upstream_headers.{name}: is a credential in the policy's text" in error
    assert "NAME_FILE" in error
    assert "hush" not in error


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Stripe-Version", "2026-01-01"),
        ("Accept", "application/json"),
        ("X-Keyboard", "de"),
        ("X-Monkey", "yes"),
        ("Key-Version", "2"),
        ("X-Tokens-Left", "no"),
        ("Authorization", "Basic ${TOKEN}"),
        ("X-Api-Key", "prefix-${TOKEN}"),
    ],
)
def test_other_values_may_be_written_out(load_text: Load, name: str, value: str) -> None:
    text = policy() + f"[upstream_headers]\n{name} = '{value}'\n"
    assert sent(load_text, {"TOKEN": "t"}, text) == value.replace("${TOKEN}", "t").encode()


def test_the_fields_of_a_probe_are_held_to_the_same(errors_of: Errors) -> None:
    probe = """
        unknown = "probe"
        [commands.probe]
        request = "GET /x/{key}"
        headers = { Authorization = "Bearer hush" }
        applied = { status = [200] }
    """
    errors = errors_of(policy().rstrip() + "\n" + probe)
    assert any("probe.headers.Authorization: is a credential" in error for error in errors)
    assert not any("hush" in error for error in errors)


def test_a_loaded_policy_shows_no_value(load_text: Load) -> None:
    policies = load_text(SET, {"TOKEN": "hush"})
    for shown in (repr(policies), repr(policies.commands()), render_report(policies)):
        assert "hush" not in shown
    assert "sets Authorization" in render_report(policies)


@pytest.mark.parametrize(
    "upstream",
    ["https://user:hush@api.example", "https://hush@api.example/v1", "https://:hush@[::1]:9"],
)
def test_an_upstream_with_credentials_is_a_mistake(errors_of: Errors, upstream: str) -> None:
    (error,) = errors_of(f"name='p'\nmount='/p'\nupstream='{upstream}'\n")
    assert "upstream: holds credentials; put them under upstream_headers" in error
    assert "hush" not in error


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f000001", "0177.0.0.1", "10.1", "0x"])
def test_a_host_that_only_some_read_as_an_address_is_a_mistake(
    errors_of: Errors, host: str
) -> None:
    (error,) = errors_of(f"name='p'\nmount='/p'\nupstream='http://{host}:80'\n")
    assert "names its host by a number in an unusual form; write an IPv4 address as" in error


@pytest.mark.parametrize(
    ("listed", "mend"),
    [
        ("10.0.0.1/8", 'write "10.0.0.0/8"'),
        ("10.0.0.0/33", 'write e.g. "10.0.0.0/8"'),
        ("internal", 'write e.g. "10.0.0.0/8"'),
        ("", 'write e.g. "10.0.0.0/8"'),
    ],
)
def test_a_network_is_one(errors_of: Errors, listed: str, mend: str) -> None:
    (error,) = errors_of(f"allow_networks = ['{listed}']\n" + policy())
    assert f"allow_networks[0]: {listed!r} is not a network; {mend}" in error


@pytest.mark.parametrize(
    ("host", "warned"),
    [
        ("legacy-api", True),
        ("pay.svc", True),
        ("pay.default.svc", True),
        ("pay.corp.internal", True),
        ("printer.local", True),
        ("api.stripe.com", False),
        ("internal.example.com", False),
        ("localhost", False),
        ("127.0.0.1", False),
        ("[::1]", False),
    ],
)
def test_a_name_of_ones_own_network_without_a_network_is_a_warning(
    load_text: Load, host: str, warned: bool
) -> None:
    text = policy().replace("https://api.example", f"http://{host}")
    assert f"http://{host}" in text
    warnings = [str(each) for each in load_text(text).warnings]
    assert [f"upstream: names {host!r}" in each for each in warnings] == [True] * warned
    listed = load_text("allow_networks = ['10.0.0.0/8']\n" + text)
    assert listed.warnings == ()
    assert "may lead to 10.0.0.0/8" in render_report(listed)


@pytest.mark.parametrize("host", ["169.254.169.254", "[fe80::1]", "100.100.100.200", "0.0.0.0"])
def test_a_metadata_address_must_be_listed_even_as_it_is_written(
    load_text: Load, errors_of: Errors, host: str
) -> None:
    text = f"name='p'\nmount='/p'\nupstream='http://{host}'\n"
    (error,) = errors_of(text)
    bare = host.strip("[]")
    assert f"upstream: {bare} belongs to a metadata service" in error
    assert errors_of("allow_networks = ['0.0.0.0/0', '::/0']\n" + text) == [error]
    load_text(f"allow_networks = ['{bare}']\n" + text)
