"""The cookbook's recipe for an API that deduplicates, as it stands, before the example API."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gateway.resources import examples_dir
from tests.kit.client import Caller, Reply
from tests.kit.db import Server
from tests.kit.gateway import GatewayProcess, gateway

TOKEN = "only-the-gateway-knows"
PAGE = Path(__file__).parents[2] / "docs" / "policies.md"
CAPTURE = "/once/v1/invoices/inv-1/capture"


def recipe(url: str) -> str:
    (text,) = re.findall(
        r'^```toml\n(name += "once".*?)^```$', PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert text.count("http://127.0.0.1:9001") == 1
    return str(text).replace("http://127.0.0.1:9001", url)


@contextlib.contextmanager
def legacy_api(folder: Path, *options: str) -> Iterator[httpx.Client]:
    ledger = ("--port", "0", "--ledger", folder / "ledger")
    process = subprocess.Popen(
        [sys.executable, examples_dir() / "legacy_api", *ledger, *options],
        cwd=folder,
        env={**os.environ, "LEGACY_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=found[0], headers=headers, trust_env=False) as client:
            yield client
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def capture(served: GatewayProcess) -> Reply:
    fields = [
        ("Content-Type", "application/json"),
        ("Idempotency-Key", "pay-1"),
        ("X-Execution-Fence", "2"),
    ]
    body = b'{"amount": 1200, "currency": "EUR"}'
    return Caller(served.url).call("POST", CAPTURE, fields, body)


@pytest.mark.parametrize("options", [("--deduplicate",), ()], ids=["deduplicates", "does-not"])
def test_a_repeat_is_as_good_as_the_upstreams_memory(
    postgres: Server, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Where it does not deduplicate the policy is wrong, and the second effect is the API's."""
    with postgres.database() as dsn, legacy_api(tmp_path, *options) as api:
        text = recipe(str(api.base_url).rstrip("/"))
        with gateway(dsn, text, env={"LEGACY_TOKEN": TOKEN}) as served:
            api.post("/_switches", json={"behaviour": "lose-answer"})
            assert capture(served).problem == "outcome-unknown"
            again = capture(served)
            assert (again.status, again.outcome) == (201, "applied")
            assert capture(served).outcome == "replayed"
        assert api.get("/v1/ledger").json()["counts"] == {"capture": 1 if options else 2}
        assert api.get("/v1/ledger").json()["requests"] == 2
