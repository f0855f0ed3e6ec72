"""What ``serve`` prints: the tools are in it, and no secret is."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.banner import banner, misnamed
from gateway.core.auth import CallerKey, Principal, Snapshot
from gateway.drill.policy import policy_text
from gateway.policy.tools import load_all

POLICY = """
name = "pay"
mount = "/pay"
upstream = "http://127.0.0.1:9"
[[commands]]
name = "charge"
match = "POST /v1/charges"
entity = "account:{body./account}"
"""
DSN = "postgresql://user:hush@127.0.0.1:5433/name"


def printed(folder: Path) -> list[str]:
    policies, tools = load_all(folder, {})
    text = banner("http://127.0.0.1:1", DSN, policies, tools, data_dir=None, authenticated=True)
    assert "hush" not in text
    return [line.strip() for line in text.splitlines()]


def test_tools_are_listed_where_there_are_any(tmp_path: Path) -> None:
    (tmp_path / "pay.toml").write_text(POLICY, encoding="utf-8")
    assert not [line for line in printed(tmp_path) if line.startswith("tools")]
    text = "[[tools]]\nname = 'charge'\n[[tools]]\nname = 'open_case'\n"
    (tmp_path / "tools.toml").write_text(text, encoding="utf-8")
    assert "tools     charge, open_case" in printed(tmp_path)


HERE = POLICY.replace('"charge"', '"refund"').replace("charges", "refunds") + 'issuer = "here"\n'
OUTSIDE = POLICY.replace("pay", "zoo").replace("account:{body./account}", "user:{body./user}")


def test_the_sample_is_a_command_whose_fences_come_from_outside_and_never_the_drills(
    tmp_path: Path,
) -> None:
    (tmp_path / "drill.toml").write_text(policy_text("http://127.0.0.1:9"), encoding="utf-8")
    assert printed(tmp_path)[-1] == "curl http://127.0.0.1:1/readyz"
    (tmp_path / "pay.toml").write_text(HERE, encoding="utf-8")
    (tmp_path / "zoo.toml").write_text(OUTSIDE, encoding="utf-8")
    lines = printed(tmp_path)
    assert "/zoo/v1/charges" in lines[-1]
    assert "X-Execution-Fence: 1'" in lines[-1]
    assert not [line for line in lines if "/v1/fences" in line]


@pytest.mark.parametrize("place", ["{header.X-Execution-Fence}", "{body./fence}", "{header.F}"])
def test_where_fences_are_issued_here_the_sample_asks_for_one_first(
    tmp_path: Path, place: str
) -> None:
    text = f'{HERE}fence_from = "{place}"\n'
    (tmp_path / "pay.toml").write_text(text, encoding="utf-8")
    ask, send = printed(tmp_path)[-2:]
    assert ask.startswith("FENCE=$(curl -s http://127.0.0.1:1/v1/fences ")
    assert '{"entity": "account:1"}' in ask
    assert "/pay/v1/refunds" in send
    assert "'$FENCE'" in send


def test_keys_for_policies_that_are_not_there_are_a_warning(tmp_path: Path) -> None:
    (tmp_path / "pay.toml").write_text(POLICY, encoding="utf-8")
    policies, tools = load_all(tmp_path, {})
    scopes = (
        {"policy:pay", "work"},
        {"policy:*", "audit"},
        {"policy:pya", "policy:pay"},
        {"policy:pya"},
        {"policy:old", "later"},
    )
    keys = {}
    for number, each in enumerate(scopes):
        key_id = f"abcdefgh{number}"
        holder = Principal(1, "w", "default", bytes(16), key_id, scopes=frozenset(each))
        keys[1, key_id] = CallerKey(holder, bytes(32))
    found = list(misnamed(Snapshot(keys), policies))
    assert found == [
        "key abcdefgh4: scope policy:old, and no policy of that name is served",
        "key abcdefgh2 and 1 more: scope policy:pya, and no policy of that name is served",
    ]
    text = banner(
        *("http://127.0.0.1:1", DSN, policies, tools),
        data_dir=None,
        authenticated=True,
        warnings=found,
    )
    assert f"  warning   {found[0]}" in text.splitlines()
    assert list(misnamed(Snapshot({}), policies)) == []
