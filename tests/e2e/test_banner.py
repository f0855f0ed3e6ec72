"""The request that ``serve`` prints, pasted into a shell."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from gateway.banner import banner
from gateway.policy.tools import load_all
from tests.kit.db import Server
from tests.kit.gateway import policy, stack
from tests.kit.upstream import respond

COMMAND = """
name = "charge"
match = "POST /v1/accounts/{account}/charges"
entity = "account:{path.account}"
"""


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize(
    "more",
    [
        "",
        'issuer = "here"\n',
        'issuer = "here"\nfence_from = "{body./fence}"\nkey = "pay:{query.payment}"\n',
    ],
)
def test_the_sample_request_works_as_it_is_pasted(
    postgres: Server, tmp_path_factory: pytest.TempPathFactory, more: str
) -> None:
    with stack(postgres, lambda url: [policy(url, COMMAND + more)]) as made:
        made.upstream.script = lambda request: respond(201, b"{}", effect=True)
        folder = tmp_path_factory.mktemp("policies")
        (folder / "p.toml").write_text(policy(made.upstream.url, COMMAND + more))
        policies, tools = load_all(folder, {})
        text = banner(
            made.gateway.url, made.database, policies, tools, data_dir=None, authenticated=False
        )
        lines = [line for line in text.splitlines() if line.startswith(("  curl", "  FENCE="))]
        done = subprocess.run(
            ["sh", "-c", "\n".join(lines)], capture_output=True, text=True, check=False, timeout=60
        )
        assert " 201 " in done.stdout.splitlines()[0], (lines, done)
        assert made.upstream.count == 1
