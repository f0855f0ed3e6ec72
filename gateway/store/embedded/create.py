"""Making a new database cluster: `initdb`, the role's password, the database."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from gateway.store.embedded.binaries import Binaries
from gateway.store.embedded.errors import EmbeddedPostgresError
from gateway.store.embedded.layout import DATABASE, ROLE, Layout
from gateway.store.embedded.privileges import Account

__all__ = ["check_major", "create", "environment"]

_BUILTIN_LOCALES_SINCE = 17
_TIMEOUT_S = 300.0  # takes half a second here; slow disks exist


def create(layout: Layout, binaries: Binaries, account: Account) -> None:
    """Make `layout.pgdata`, complete or not at all: it is built beside and renamed."""
    if layout.unfinished.exists():
        shutil.rmtree(layout.unfinished)
    layout.unfinished.mkdir(mode=0o700)
    account.own(layout.unfinished)
    _initdb(layout, binaries, account, layout.new_password())
    _create_database(layout, account)
    layout.unfinished.rename(layout.pgdata)


def check_major(layout: Layout, binaries: Binaries) -> None:
    """Refuse programs of another major version than the one that made the files."""
    made_by = (layout.pgdata / "PG_VERSION").read_text().strip()
    if made_by != str(binaries.major):
        raise EmbeddedPostgresError(
            f"{layout.root} was made by PostgreSQL {made_by}, but the programs found in "
            f"{binaries.bin_dir} are {binaries.version}. Mend: name a folder with PostgreSQL "
            f"{made_by} programs in FENCEGATE_POSTGRES_BIN (and dump and restore to move up)"
        )


def environment() -> Mapping[str, str]:
    """The caller's, less what would configure PostgreSQL or its locale behind our back."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PG", "LC_")) and name not in ("LANG", "LANGUAGE")
    }
    return {**kept, "LC_ALL": "C"}


def _initdb(layout: Layout, binaries: Binaries, account: Account, password: str) -> None:
    locale = ["--locale=C"]
    if binaries.major >= _BUILTIN_LOCALES_SINCE:
        locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    # initdb reads the password under the server's account, which cannot read our own file.
    handle, name = tempfile.mkstemp(prefix="pwfile.", dir=layout.root)
    try:
        with os.fdopen(handle, "w") as out:
            out.write(password + "\n")
        account.own(Path(name))
        _run(
            layout,
            account,
            account.command(
                "initdb",
                f"--pgdata={layout.unfinished}",
                f"--username={ROLE}",
                f"--pwfile={name}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--no-instructions",
                *locale,
            ),
        )
    finally:
        Path(name).unlink(missing_ok=True)


def _create_database(layout: Layout, account: Account) -> None:
    """In single-user mode: no port, no client program (not every wheel has psql)."""
    command = account.command("postgres", "--single", "-D", layout.unfinished, "template1")
    said = _run(layout, account, command, f"CREATE DATABASE {DATABASE};\n")
    if "ERROR" in said or "FATAL" in said:  # single-user mode exits with 0 all the same
        raise EmbeddedPostgresError(f"creating the database {DATABASE} failed:\n{said}")


def _run(layout: Layout, account: Account, command: list[str], stdin: str = "") -> str:
    try:
        done = subprocess.run(
            command,
            cwd="/",  # the current directory may be closed to the account
            env=environment(),
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
            **account.switch,
        )
    except subprocess.TimeoutExpired as error:
        raise EmbeddedPostgresError(f"{command[0]} took longer than {_TIMEOUT_S} s") from error
    if done.returncode != 0:
        raise EmbeddedPostgresError(
            f"making a database in {layout.root} failed (exit code {done.returncode}):\n"
            f"{done.stdout.strip()}\nMend: check space, owner and mode of that folder, or choose "
            "another one (FENCEGATE_DATA_DIR)"
        )
    return done.stdout
