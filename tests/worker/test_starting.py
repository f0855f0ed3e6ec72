"""``fencegate worker run`` that cannot start says what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.kit.faults import until
from tests.kit.operating import fencegate
from tests.kit.upstream import closed_port
from tests.worker.code import HOLD_THEN_ACT, act
from tests.worker.rig import Rig, WorkerProcess
from tests.worker.test_losses import Holds, asked

SHOP = """
from gateway.worker import Worker
import os
empty = Worker()
worker = Worker()
other = 1
kind = Worker
@worker.tool("order")
def handle(job): ...
"""


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("shop", "'shop' names no worker; write MODULE:NAME"),
        ("shop:", "names no worker"),
        ("nowhere:worker", "there is no module 'nowhere'"),
        ("shop.deeper:worker", "there is no module 'shop.deeper'"),
        ("broken:worker", "No module named 'not_there'"),
        ("wrong:worker", "NameError"),
        ("shop:os", "has a module, not a Worker, as 'os'; did you mean shop:empty?"),
        ("shop:none", "has no 'none'"),
        ("shop:empty", "the worker has no tools"),
        ("shop:kind", "shop:kind is the class, not a worker of it; write kind = Worker()"),
        ("shop.py:worker", "'shop.py' is no module's name; write shop:worker"),
        ("./shop:worker", "'./shop' is no module's name; write shop:worker"),
        ("sub/shop.py:worker", "write shop:worker, in sub"),
        ("exits:worker", "'exits' ended itself while it was imported, by sys.exit(3)"),
        ("runs:worker", "module 'runs': worker.run() is called while the module is imported"),
        ("twice:worker", "module 'twice': tool 'order' has a handler already; remove one"),
        ("noargs:worker", "noargs.py:3) does not take one argument"),
    ],
)
def test_a_worker_that_is_not_there(tmp_path: Path, where: str, told: str) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    (tmp_path / "broken.py").write_text("import not_there", encoding="utf-8")
    (tmp_path / "wrong.py").write_text("not_a_name", encoding="utf-8")
    (tmp_path / "exits.py").write_text("import sys; sys.exit(3)", encoding="utf-8")
    (tmp_path / "runs.py").write_text(f"{SHOP}\nworker.run()", encoding="utf-8")
    (tmp_path / "twice.py").write_text(f"{SHOP}\nworker.tool('order')(handle)", encoding="utf-8")
    wrong = "from gateway.worker import Worker\nworker = Worker()\n@worker.tool('a')\ndef a(): ..."
    (tmp_path / "noargs.py").write_text(wrong, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "worker", "run", where],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 2, done.stderr
    assert told in done.stderr
    assert "cli/worker.py" not in done.stderr  # no traceback of ours
    assert ("Traceback" in done.stderr) == (where in ("broken:worker", "wrong:worker"))


def test_a_tool_that_the_gateway_does_not_know_ends_the_start(made: Rig) -> None:
    worker = made.worker(act("return 1", tool="ordre"))
    assert worker.ended() == 2
    assert "did you mean 'order'?" in worker.said


def test_a_key_that_is_missing_ends_the_start(made: Rig) -> None:
    fencegate("keys", "add", "--tenant", "default", "--name", "w", dsn=made.database)
    url = f"{made.gateway.url}/v1/jobs/claim"
    until(lambda: httpx.post(url, json={}, trust_env=False).status_code == 401, "keys count")
    worker = made.worker(act("return 1"))
    assert worker.ended() == 2
    assert "set FENCEGATE_KEY" in worker.said


def test_a_gateway_that_is_not_there_is_waited_for(made: Rig, tmp_path: Path) -> None:
    worker = WorkerProcess(tmp_path, f"http://127.0.0.1:{closed_port()}", act("return 1"))
    try:
        worker.wait_for("not_claimed")
        assert worker.stop() == 0
    finally:
        worker.close()


def test_an_address_with_a_path_of_the_api_ends_the_start(shared: Rig) -> None:
    worker = shared.worker(act("return 1"), url=f"{shared.gateway.url}/v1")
    assert worker.ended() == 2
    assert "without a path such as /v1" in worker.said


def test_an_address_that_speaks_no_tls_is_told(shared: Rig) -> None:
    url = shared.gateway.url.replace("http:", "https:")
    worker = shared.worker(act("return 1"), url=url)
    told = worker.wait_for("not_claimed")
    assert "does FENCEGATE_URL say https where nothing speaks TLS" in told["why"]
    assert worker.stop() == 0


def test_metrics_are_served_on_request(made: Rig) -> None:
    Holds(made)
    made.add()
    port = closed_port()
    worker = made.worker(HOLD_THEN_ACT, "--metrics-port", str(port))
    asked(made, "hold")
    worker.wait_for("heartbeat_ok")
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values["fencegate_worker_jobs_running"]) == 1
    assert 0 < float(values["fencegate_worker_lease_remaining_seconds"]) < 6
    assert 0 < float(values["fencegate_worker_heartbeat_age_seconds"]) < 6
