"""The paths that the gateway answers itself: the policies' list of them and the routes agree."""

from __future__ import annotations

import asyncio
from pathlib import Path

from starlette.routing import Route

from gateway.app import open_gateway
from gateway.policy.fields import FIXED, FIXED_PATHS
from gateway.policy.loader import load
from gateway.settings import Settings
from tests.kit.gateway import CAPTURE, policy


def test_each_listed_path_has_a_route_and_each_route_is_listed(
    database: str, tmp_path: Path
) -> None:
    """Without a route it is a bare 404, and what is not listed goes to the policies."""
    (tmp_path / "pay.toml").write_text(policy("http://127.0.0.1:9", CAPTURE))

    async def main() -> list[str]:
        gateway = await open_gateway(Settings(), load(tmp_path, {}), database)
        try:
            return [each.path for each in gateway._fixed.routes if isinstance(each, Route)]
        finally:
            await gateway.close()

    routes = asyncio.run(main())
    assert sorted(routes) == sorted(FIXED_PATHS)


def test_no_policy_can_be_mounted_above_one_of_them() -> None:
    assert {path.split("/")[1] for path in FIXED_PATHS} <= FIXED
