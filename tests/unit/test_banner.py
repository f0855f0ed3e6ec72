"""What ``serve`` prints: the tools are in it, and no secret is."""

from __future__ import annotations

from pathlib import Path

from gateway.banner import banner
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
