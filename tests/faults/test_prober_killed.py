"""A gateway dies between a status query's answer and whoever could have been told."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.kit.db import Server, execute
from tests.kit.gateway import Scene, Stack, gateway, policy, rows
from tests.kit.upstream import Answer, Recorded, RecordingUpstream, cut, respond

ASKED = """
name = "asked"
match = "POST /v1/accounts/{account}/asked"
entity = "account:{path.account}"
timeout_s = 20
settle_delay_s = 0
unknown = "probe"
send_key = "X-Reference"

[commands.probe]
request = "GET /v1/found?reference={upstream_key}"
applied = { status = [200], where = "/data", items = "some" }
absent  = { status = [200], where = "/data", items = "none" }
interval_s = 1
"""

FOUND = b'{"data":["ch_1"]}'
NONE = b'{"data":[]}'


def answering(post: Answer, body: bytes) -> Callable[[Recorded], Answer | None]:
    """``post`` to the first command, the default to all others; ``body`` to every query."""
    left = [post]

    def script(request: Recorded) -> Answer | None:
        if request.method == b"GET":
            return respond(200, body, effect=False)
        return left.pop() if left else None

    return script


@contextmanager
def killed_at(postgres: Server, point: str, post: Answer, body: bytes) -> Iterator[Scene]:
    """A command is unknown, and the gateway that asked about it died at ``point``."""
    with postgres.database() as dsn, RecordingUpstream() as upstream:
        armed = {"FENCEGATE_FAILPOINTS": f"{point}=kill"}
        allowed = ("--allow-failpoints",)
        with gateway(dsn, policy(upstream.url, ASKED), env=armed, arguments=allowed) as dying:
            scene = Stack(dying, upstream, dsn).scene()
            scene.upstream.script = answering(post, body)
            assert scene.send(what="asked").problem == "outcome-unknown"
            # It looks from now on, so that nobody dies before the caller has heard.
            execute(dsn, "update gateway.sweeps set lag = '0 s'")
            assert dying.process is not None
            assert dying.process.wait(30) == -signal.SIGKILL
        yield scene


def queries(scene: Scene) -> int:
    return sum(each.method == b"GET" for each in scene.upstream.requests)


def posts(scene: Scene) -> int:
    return len(scene.upstream.requests) - queries(scene)


@contextmanager
def another(scene: Scene) -> Iterator[Scene]:
    with gateway(scene.stack.database, policy(scene.upstream.url, ASKED)) as process:
        made = Stack(process, scene.upstream, scene.stack.database)
        yield Scene(made, made.caller(), scene.account)


@pytest.mark.parametrize("body", [FOUND, NONE])
def test_a_query_whose_asker_died_is_made_again(postgres: Server, body: bytes) -> None:
    """As unknown as before, and nobody asks while the dead one might still be asking."""
    with killed_at(postgres, "probe.before", cut(effect=body is FOUND), body) as scene:
        assert (scene.state(), queries(scene)) == ("unknown", 1)
        with another(scene) as living:
            assert living.send(what="asked").problem == "outcome-unknown"
            assert queries(scene) == 1
            execute(
                scene.stack.database,
                "update gateway.watched set due_at = gateway.clock(), busy_until = gateway.clock()",
            )
            scene.wait_for_state("settled" if body is FOUND else None, timeout_s=20)
        # Of the negative that was not recorded nothing counts.
        assert queries(scene) == (2 if body is FOUND else 3)
        assert (posts(scene), len(scene.audit("resolved"))) == (1, 1)


def test_a_decision_outlives_the_process_that_made_it(postgres: Server) -> None:
    with killed_at(postgres, "probe.committed", cut(), FOUND) as scene:
        assert scene.row()["settled_by"] == "probe"  # type: ignore[index]
        with another(scene) as living:
            reply = living.send(what="asked")
            assert (reply.problem, reply.one("Gateway-Evidence")) == (
                "response-not-retained",
                "probe",
            )
        assert (posts(scene), queries(scene)) == (1, 1)
        assert len(scene.audit("resolved")) == 1


def test_the_first_negative_outlives_it_too_and_is_still_but_one(postgres: Server) -> None:
    with killed_at(postgres, "probe.committed", cut(effect=False), NONE) as scene:
        (watched,) = rows(scene.stack.database, "select absent_at from gateway.watched")
        assert watched["absent_at"] is not None
        assert (scene.state(), scene.audit("resolved")) == ("unknown", [])
        with another(scene):
            scene.wait_for_state(None, timeout_s=20)
        assert queries(scene) == 2
        assert (posts(scene), len(scene.audit("resolved"))) == (1, 1)
