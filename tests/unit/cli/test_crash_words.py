"""A mistake of ours ends a command with its place and without its message."""

from __future__ import annotations

import importlib

import pytest

# By name: the package has a function of the same name.
module = importlib.import_module("gateway.cli.main")


def test_a_mistake_of_ours_is_told_without_what_was_handled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: object) -> int:
        raise ValueError("hush")

    monkeypatch.setattr(module, "_run", fails)
    assert module.main(["keys", "list"]) == 70
    said = capsys.readouterr()
    assert said.out == ""
    assert "hush" not in said.err
    assert "this is a mistake in fencegate; please report it" in said.err
    assert "test_crash_words.py" in said.err
    assert said.err.rstrip().endswith("ValueError")
