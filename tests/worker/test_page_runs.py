"""docs/worker.md as a new user takes it: its policy, its tool, its worker and its call."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from tests.kit.answers import Gate
from tests.kit.db import Server
from tests.kit.faults import until
from tests.kit.gateway import GatewayProcess
from tests.kit.operating import fencegate, move_clock
from tests.kit.upstream import Answer, Recorded, RecordingUpstream, gated, respond
from tests.worker.page import blocks
from tests.worker.rig import Rig


def test_the_order_of_the_page_survives_a_crash_between_its_stages(
    postgres: Server, tmp_path: Path
) -> None:
    (policy,) = blocks("toml")
    (tools,) = blocks("text")
    shop, call = blocks("python")
    gate, held = Gate(), [True]

    def script(request: Recorded) -> Answer:
        answer = respond(201, b'{"id": "it-1"}')
        # The charge has happened, and nobody hears of it until the first worker is dead.
        return gated(gate, answer) if request.target == b"/v1/charges" and held else answer

    with contextlib.ExitStack() as stack:
        database = stack.enter_context(postgres.database())
        upstream = stack.enter_context(RecordingUpstream(script=script))
        files = {
            "shop.toml": policy.replace("http://127.0.0.1:9001", upstream.url),
            "tools.toml": tools,
        }
        made = fencegate("keys", "add", "--tenant", "shop", "--name", "w", dsn=database)
        gateway = GatewayProcess(database, files)
        stack.callback(gateway.close)
        gateway.start()
        rig = Rig(gateway, upstream, database, tmp_path, stack)
        env = {"FENCEGATE_KEY": made.out.split()[-1]}
        first = rig.worker(shop, env=env)
        (tmp_path / "call.py").write_text(call, encoding="utf-8")
        for _ in range(2):  # one wish, however often it is said
            called = subprocess.run(
                [sys.executable, "call.py"],
                cwd=tmp_path,
                env={
                    **os.environ,
                    **env,
                    "FENCEGATE_URL": gateway.url,
                    "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
                },
                capture_output=True,
                text=True,
                timeout=30,
            )
            assert called.returncode == 0, called.stderr
        until(lambda: any(r.target == b"/v1/charges" for r in upstream.effects), "a charge")
        first.kill()
        held.clear()
        gate.release()
        move_clock(database, 4_000)
        second = rig.worker(shop, env=env)
        finished = second.wait_for("job_finished", state="succeeded")
        assert finished["entity"] == "account:a-9"
        assert rig.effects("cases") == [{"customer": "c-7"}]
        assert rig.effects("charges") == [{"account": "a-9", "case": "it-1"}]
        assert second.stop() == 0
