"""What people see of policies that loaded."""

from __future__ import annotations

from gateway.policy import render_report
from tests.unit.policy.conftest import Load
from tests.unit.policy.texts import command, policy


def test_the_report_lists_mounts_commands_and_warnings_but_no_secret(load_text: Load) -> None:
    text = policy(
        command(more="send_key = 'Idempotency-Key'\nsend_fence = 'X-Fence'"),
        command("PUT /x", "{header.X-E}", "put", more="fence = 'off'\npass_authorization = true"),
    )
    policies = load_text(text + "[upstream_headers]\nX-Token = '${T}'\n", {"T": "s3cret"})
    report = render_report(policies)
    for part in (
        "/pay -> https://api.example  [payments, payments.toml]",
        "  sets X-Token",
        "  POST /v1/accounts/{account}/charges  [charge]",
        "fence required, {header.X-Execution-Fence}",
        "sends key as Idempotency-Key, fence as X-Fence",
        "fence off",
        "the caller's Authorization",
        "warning: payments.toml: commands[1].entity: ",
        "1 policy, 2 commands, 1 warning",
    ):
        assert part in report
    assert "s3cret" not in report
    assert policies.describe() == ("/pay -> https://api.example (policy payments, commands: 2)",)


def test_the_report_says_how_requests_are_compared(load_text: Load) -> None:
    more = (
        "fence_from = '{body./lease}'\n"
        "fingerprint = {body = 'form', ignore = ['/a~1b/c'], headers = ['X-V', 'Accept']}"
    )
    report = render_report(load_text(policy(command(more=more))))
    assert "    compares body as form | without /a~1b/c, /lease | with accept, x-v\n" in report
    assert "compares" not in render_report(load_text(policy()))
