"""Settings of one process, from environment variables that begin with ``FENCEGATE_``.

Settings say where things are and how much of them; policies (files) say how the gateway behaves.
The two never mix.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from gateway import faults
from gateway.core.budget import LEAST_POOL, USUAL_POOL, Shares
from gateway.core.forwarded import NOBODY, Trusted, parse_trusted
from gateway.errors import ConfigurationError
from gateway.filed import NotRead, read_secret

__all__ = ["PREFIX", "Settings", "load_settings"]

PREFIX = "FENCEGATE_"

_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^][:]*)(:[0-9]{1,5})?")

_OF_WORKERS = ("URL", "KEY")
"""Read by ``gateway.worker``, which runs without this module and without what it imports."""

LogLevel = Literal["debug", "info", "warning", "error"]


class Settings(BaseSettings):
    """Every setting, with its unit and the reason for its default. An empty variable is unset, but
    for ``database_url``."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, extra="ignore", frozen=True
    )

    database_url: str | None = Field(
        default=None,
        repr=False,
        description="DSN of the PostgreSQL (15 or later) to use, e.g. "
        "postgresql://user:password@host/name. Unset: an embedded server in data_dir.",
    )
    database_url_file: Path | None = Field(
        default=None,
        description="File that holds the DSN instead, as container platforms hand out secrets.",
    )
    redis_url: str | None = Field(
        default=None,
        repr=False,
        description="URL of a Redis or Valkey in which the processes of this deployment share "
        "settled responses: redis://, rediss:// (TLS) or unix://. Unset: each has its own alone.",
    )
    redis_url_file: Path | None = Field(
        default=None,
        description="File that holds that URL instead.",
    )
    data_dir: Path = Field(
        default=Path(".fencegate"),
        description="Folder of the embedded database. Used only without a database_url.",
    )
    postgres_bin: Path | None = Field(
        default=None,
        description="Folder with the programs `postgres` and `initdb` for the embedded database. "
        "Unset: those of the installed wheel, else the system's.",
    )
    policies_dir: Path = Field(
        default=Path("policies"),
        description="Folder of the policy files, one TOML file per upstream.",
    )
    statement_cache_size: int = Field(
        default=100,
        ge=0,
        le=10_000,
        description="Prepared statements kept per connection; we use fewer than 30. "
        "0 keeps none: needed behind PgBouncer in transaction mode, costs a parse per statement.",
    )
    pool_size: int = Field(
        default=USUAL_POOL,
        le=200,
        description="Connections to the database at most, opened as they are wanted; at least "
        f"{LEAST_POOL}, so that commands have one whatever else waits for locks. More than the "
        "server has cores only makes commands wait for each other there.",
    )
    batch_limit: int = Field(
        default=256,
        ge=1,
        le=1000,
        description="Commands that are admitted, or settled, in one transaction at most. They go "
        "together where they come while another is on its way; 1 gives each its own. 256 take "
        "some 10 ms, and the callers of one process are seldom more.",
    )
    max_waiting: int = Field(
        default=4096,
        ge=1,
        le=100_000,
        description="Callers that wait for a key or an entity at once, in all; more are refused "
        "as overloaded. Each costs a socket, some 20 KiB and its body: small ones 80 MiB in all.",
    )
    max_waiting_per_key: int = Field(
        default=512,
        ge=1,
        le=100_000,
        description="Callers that wait for the same key or entity at once, so that one hot entity "
        "leaves room for the others.",
    )
    max_attempts: int = Field(
        default=1024,
        ge=1,
        le=100_000,
        description="Attempts in flight at once; more are refused as overloaded before anything "
        "is admitted. Each holds a socket to its upstream, and the usual limit of open files "
        "(ulimit -n) is from 1024 to 4096.",
    )
    trusted_proxies: str | None = Field(
        default=None,
        description="Networks and addresses, separated by commas, whose proxies are believed about "
        "where a request came from. Unset: nobody, since anybody can write those fields.",
    )
    max_connections: int = Field(
        default=8192,
        ge=16,
        le=1_000_000,
        description="Connections of callers at once; over it, idle ones are closed, and the newest "
        "refused where none is idle. Room for max_waiting, max_attempts and 3,000 slow or idle "
        "ones. Less where `ulimit -n` is.",
    )
    cache_mib: int = Field(
        default=64,
        ge=0,
        le=65_536,
        description="MiB that settled responses may take in this process, so that replays need no "
        "database: 100,000 small ones, all of a minute at 1,700 a second. 0 keeps none.",
    )
    memory_mib: int = Field(
        default=256,
        ge=16,
        le=1_000_000,
        description="MiB that request bodies, and answers that callers do not take, may occupy "
        "together; more are refused as overloaded. A quarter of a usual container of 1 GiB.",
    )
    metrics_open: bool = Field(
        default=False,
        description="Whether /metrics answers callers on other machines. It needs no gateway key "
        "and tells of all tenants together; unset, it answers loopback addresses only.",
    )
    audit_days: int = Field(
        default=400,
        ge=1,
        le=36_500,
        description="Days that audit rows are kept: as long as keys are by default, and a year and "
        "a month for whoever audits yearly. The shortest of all processes on a database counts.",
    )
    job_days: int = Field(
        default=30,
        ge=1,
        le=3650,
        description="Days that a finished job is kept with its runs, payload and result.",
    )
    job_key_days: int = Field(
        default=400,
        ge=1,
        le=3650,
        description="Days, from its end, that the key of a finished job is remembered, so that "
        "enqueueing it again is no new job; not below job_days. As long as keys of commands.",
    )
    drain_s: float = Field(
        default=30,
        ge=0,
        le=3600,
        allow_inf_nan=False,
        description="Seconds after SIGTERM in which running attempts may end. As long as the "
        "usual timeout_s and the usual grace of an orchestrator; what is left becomes unknown.",
    )
    failpoints: str | None = Field(
        default=None,
        description="NAME=ACTION[;...]: places at which this process dies, stops, dawdles or loses "
        "an answer, to try what happens then. Only with `serve --allow-failpoints`.",
    )
    log_level: LogLevel = Field(
        default="info",
        description="Least severity that is logged: debug, info (one line per decision), "
        "warning, error.",
    )

    @field_validator("database_url")
    @classmethod
    def _is_dsn(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if not value.startswith(("postgresql://", "postgres://")):
            raise ValueError("must begin with postgresql://")
        hosts = urlsplit(value).netloc.rpartition("@")[2].split(",")
        if not all(_HOST.fullmatch(host) for host in hosts):
            raise ValueError(
                "its host or port cannot be read (percent-encode / @ : # ? in the password)"
            )
        return value

    @field_validator("redis_url")
    @classmethod
    def _is_redis(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if not value.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("must begin with redis://, rediss:// or unix://")
        try:
            _ = urlsplit(value).port
        except ValueError:
            raise ValueError(
                "its host or port cannot be read (percent-encode / @ : # ? in the password)"
            ) from None
        return value

    @field_validator("pool_size")
    @classmethod
    def _is_enough(cls, value: int) -> int:
        Shares.of(value)
        return value

    @field_validator("failpoints")
    @classmethod
    def _are_failpoints(cls, value: str | None) -> str | None:
        if value is not None:
            faults.parse(value)
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, value: str | None) -> str | None:
        if value is not None:
            parse_trusted(value)
        return value

    @property
    def trusted(self) -> Trusted:
        """``trusted_proxies``, read."""
        return NOBODY if self.trusted_proxies is None else parse_trusted(self.trusted_proxies)

    @model_validator(mode="after")
    def _keys_outlive_jobs(self) -> Settings:
        if self.job_key_days < self.job_days:
            raise ValueError(
                f"{PREFIX}JOB_KEY_DAYS ({self.job_key_days}) is below {PREFIX}JOB_DAYS "
                f"({self.job_days}), so a job would be forgotten before it goes"
            )
        return self

    @field_validator("data_dir", "policies_dir", "postgres_bin")
    @classmethod
    def _at_home(cls, value: Path | None) -> Path | None:
        return None if value is None else value.expanduser()

    @field_validator("log_level", mode="before")
    @classmethod
    def _in_any_case(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value


def load_settings() -> Settings:
    """The settings in this process's environment.

    Raises ``ConfigurationError`` that lists every mistake by its variable, never its value: a DSN
    holds a password.
    """
    mistakes = _misspelt(os.environ)
    if os.environ.get(f"{PREFIX}DATABASE_URL") == "":
        # A secret that failed to arrive must not become a new, empty database without keys.
        mistakes.append(f"{PREFIX}DATABASE_URL is set but empty; set a DSN, or unset it")
    given = {**_from_file("database_url", mistakes), **_from_file("redis_url", mistakes)}
    try:
        settings = Settings(**given)
    except ValidationError as error:
        mistakes += [_explain(each) for each in error.errors(include_url=False)]
    else:
        if not mistakes:
            return settings
    raise ConfigurationError("; ".join(mistakes))


def _from_file(name: str, mistakes: list[str]) -> dict[str, Any]:
    """A URL where it stands in a file; what is wrong with that goes to ``mistakes``."""
    plain = PREFIX + name.upper()
    variable = f"{plain}_FILE"
    path = os.environ.get(variable)
    if not path:
        return {}
    if os.environ.get(plain):
        mistakes.append(f"{plain} and {variable} are both set; unset one of them")
        return {}
    found = read_secret(variable, path)
    if isinstance(found, NotRead):
        mistakes.append(f"{found.problem}; {found.mend}")
        return {}
    return {name: found}


def _misspelt(names: Iterable[str]) -> list[str]:
    """A near miss would otherwise be passed over, and e.g. the wrong database be used."""
    known = [*(name.upper() for name in Settings.model_fields), *_OF_WORKERS]
    found = []
    for name in sorted(names):
        rest = name.upper().removeprefix(PREFIX)
        if not name.upper().startswith(PREFIX) or rest in known:
            continue
        if near := get_close_matches(rest, known, n=1, cutoff=0.8):
            found.append(f"{name} is not a setting; did you mean {PREFIX}{near[0]}?")
    return found


def _explain(error: ErrorDetails) -> str:
    if not error["loc"]:  # of several together; it names them
        return f"{error['msg'].removeprefix('Value error, ')}; correct or unset one of them"
    name = PREFIX + "".join(str(part) for part in error["loc"][:1]).upper()
    return f"{name} is wrong: {error['msg'].removeprefix('Value error, ')}; correct or unset it"
