"""Policies from text, in a folder of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from gateway.policy import Policies, PolicyErrors, load

Load = Callable[..., Policies]
Errors = Callable[..., list[str]]


@pytest.fixture
def load_text(tmp_path: Path) -> Load:
    """Load one file's text, or several by name."""

    def loaded(text: str = "", env: Mapping[str, str] | None = None, **files: str) -> Policies:
        for name, content in (files or {"payments": text}).items():
            (tmp_path / f"{name}.toml").write_text(content, encoding="utf-8")
        return load(tmp_path, env or {})

    return loaded


@pytest.fixture
def errors_of(load_text: Load) -> Errors:
    """The mistakes of one file's text, or of several files by name."""

    def errors(text: str = "", env: Mapping[str, str] | None = None, **files: str) -> list[str]:
        with pytest.raises(PolicyErrors) as caught:
            load_text(text, env, **files)
        assert str(caught.value).splitlines() == [str(error) for error in caught.value.errors]
        return [str(error) for error in caught.value.errors]

    return errors
