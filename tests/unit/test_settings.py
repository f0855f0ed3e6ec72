"""Settings: readable mistakes, and no password in any of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.errors import ConfigurationError
from gateway.settings import Settings, load_settings


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("FENCEGATE_"):
            monkeypatch.delenv(name)


def test_nothing_needs_to_be_set() -> None:
    settings = load_settings()
    assert settings.database_url is None
    assert settings.data_dir == Path(".fencegate")
    assert settings.max_waiting == 4096
    assert settings.max_waiting_per_key == 512
    assert settings.max_attempts == 1024


def test_trusted_proxies_are_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not load_settings().trusted.has("127.0.0.1")
    monkeypatch.setenv("FENCEGATE_TRUSTED_PROXIES", "10.0.0.0/8, ::1")
    trusted = load_settings().trusted
    assert (trusted.has("10.1.1.1"), trusted.has("::1"), trusted.has("11.0.0.1")) == (
        *(True, True),
        False,
    )


@pytest.mark.parametrize("text", ["proxy.internal", "10.0.0.1/8", "0.0.0.0/0"])
def test_trusted_proxies_that_are_none_stop_the_start(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENCEGATE_TRUSTED_PROXIES", text)
    with pytest.raises(ConfigurationError, match="FENCEGATE_TRUSTED_PROXIES is wrong"):
        load_settings()


def test_every_setting_says_what_it_is_for() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name


def test_values_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEGATE_DATABASE_URL", "postgresql://u:hush@h/d")
    monkeypatch.setenv("FENCEGATE_STATEMENT_CACHE_SIZE", "0")
    monkeypatch.setenv("FENCEGATE_LOG_LEVEL", "WARNING")
    monkeypatch.setenv("FENCEGATE_DATA_DIR", "~/db")
    monkeypatch.setenv("FENCEGATE_POSTGRES_BIN", "")
    settings = load_settings()
    assert settings.database_url == "postgresql://u:hush@h/d"
    assert settings.statement_cache_size == 0
    assert settings.log_level == "warning"
    assert settings.data_dir == Path.home() / "db"
    assert settings.postgres_bin is None
    assert "hush" not in repr(settings)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://h/d",
        "postgres://u:p%2Fw@h:5432/d?sslmode=require",
        "postgresql://u@[::1]:5432/d",
        "postgresql://u@h1:5432,h2:5433/d?target_session_attrs=read-write",
        "postgresql:///d?host=/run/postgresql",
    ],
)
def test_every_spelling_of_a_dsn_is_taken(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEGATE_DATABASE_URL", dsn)
    assert load_settings().database_url == dsn


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FENCEGATE_POOL_SIZE", "0"),
        ("FENCEGATE_POOL_SIZE", "many"),
        ("FENCEGATE_DRAIN_S", "inf"),
        ("FENCEGATE_DRAIN_S", "-1"),
        ("FENCEGATE_LOG_LEVEL", "loud"),
        ("FENCEGATE_DATABASE_URL", "mysql://u:hush@h/d"),
        ("FENCEGATE_DATABASE_URL", "postgresql://u:hush@h:port/d"),
        ("FENCEGATE_DATABASE_URL", "postgresql://u:hu/hush@h/d"),
        ("FENCEGATE_DATABASE_URL", "postgresql://u:hush@[::1/d"),
    ],
)
def test_a_mistake_names_its_variable(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as raised:
        load_settings()
    assert name in str(raised.value)
    assert "hush" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_all_mistakes_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEGATE_POOL_SIZE", "0")
    monkeypatch.setenv("FENCEGATE_MAX_WAITING", "x")
    monkeypatch.setenv("FENCEGATE_DATABSE_URL", "postgresql://u:hush@h/d")
    with pytest.raises(ConfigurationError) as raised:
        load_settings()
    said = str(raised.value)
    assert "FENCEGATE_POOL_SIZE" in said
    assert "FENCEGATE_MAX_WAITING " in said
    assert "FENCEGATE_DATABSE_URL is not a setting; did you mean FENCEGATE_DATABASE_URL?" in said
    assert "hush" not in said


def test_names_that_resemble_no_setting_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEGATE_SENTRY", "https://localhost")
    load_settings()


@pytest.mark.parametrize("end", ["", "\n"])
def test_the_url_of_redis_may_stand_in_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: str
) -> None:
    (tmp_path / "url").write_text("rediss://u:hush@h:6380/1" + end)
    monkeypatch.setenv("FENCEGATE_REDIS_URL_FILE", str(tmp_path / "url"))
    settings = load_settings()
    assert settings.redis_url == "rediss://u:hush@h:6380/1"
    assert "hush" not in repr(settings)
    monkeypatch.setenv("FENCEGATE_REDIS_URL", "redis://h")
    with pytest.raises(ConfigurationError, match="REDIS_URL_FILE are both set; unset one of them"):
        load_settings()


@pytest.mark.parametrize("url", ["http://h", "h:6379", "redis://u:hu/sh@h", "redis://h:port"])
def test_a_url_that_is_no_redis_is_a_mistake(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("FENCEGATE_REDIS_URL", url)
    with pytest.raises(ConfigurationError, match="FENCEGATE_REDIS_URL is wrong: ") as raised:
        load_settings()
    assert "sh@h" not in str(raised.value)


@pytest.mark.parametrize("end", ["", "\n"])
def test_the_dsn_may_stand_in_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: str
) -> None:
    (tmp_path / "dsn").write_text("postgresql://u:hush@h/d" + end)
    monkeypatch.setenv("FENCEGATE_DATABASE_URL_FILE", str(tmp_path / "dsn"))
    settings = load_settings()
    assert settings.database_url == "postgresql://u:hush@h/d"
    assert "hush" not in repr(settings)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "FENCEGATE_DATABASE_URL_FILE names cannot be read (No such file or directory)"),
        ("", "FENCEGATE_DATABASE_URL_FILE names is empty"),
        ("mysql://u:hush@h/d", "FENCEGATE_DATABASE_URL is wrong: must begin with postgresql://"),
    ],
)
def test_a_file_without_a_dsn_is_a_mistake_and_no_new_database(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None, said: str
) -> None:
    if content is not None:
        (tmp_path / "dsn").write_text(content)
    monkeypatch.setenv("FENCEGATE_DATABASE_URL_FILE", str(tmp_path / "dsn"))
    with pytest.raises(ConfigurationError) as raised:
        load_settings()
    assert said in str(raised.value)
    assert "hush" not in str(raised.value)


def test_a_dsn_stands_in_one_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "dsn").write_text("postgresql://u:hush@h/d")
    monkeypatch.setenv("FENCEGATE_DATABASE_URL_FILE", str(tmp_path / "dsn"))
    monkeypatch.setenv("FENCEGATE_DATABASE_URL", "postgresql://u:hush@h/other")
    with pytest.raises(ConfigurationError, match="are both set; unset one of them"):
        load_settings()


def test_an_empty_dsn_is_a_mistake_and_no_new_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEGATE_DATABASE_URL", "")
    said = "FENCEGATE_DATABASE_URL is set but empty; set a DSN, or unset it"
    with pytest.raises(ConfigurationError, match=said):
        load_settings()
