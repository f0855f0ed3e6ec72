"""The paths that the gateway answers itself: the policies' list of them and the routes agree."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest
from starlette.routing import Route

from gateway.api.jobs import ROUTES, Jobs
from gateway.app import open_gateway
from gateway.policy.fields import FIXED, FIXED_PATHS, is_own
from gateway.policy.loader import load
from gateway.policy.tools import Tools
from gateway.settings import Settings
from tests.kit.gateway import CAPTURE, policy


def test_each_listed_path_has_a_route_and_each_route_is_listed(
    database: str, tmp_path: Path
) -> None:
    """Without a route it is a bare 404, and what is not listed goes to the policies."""
    (tmp_path / "pay.toml").write_text(policy("http://127.0.0.1:9", CAPTURE))

    async def main() -> list[str]:
        gateway = await open_gateway(Settings(), load(tmp_path, {}), Tools({}), database)
        try:
            return [each.path for each in gateway._fixed.routes if isinstance(each, Route)]
        finally:
            await gateway.close()

    routes = asyncio.run(main())
    assert sorted(routes) == sorted(FIXED_PATHS)


def test_no_policy_can_be_mounted_above_one_of_them() -> None:
    assert {path.split("/")[1] for path in FIXED_PATHS} <= FIXED


@pytest.mark.parametrize("path", [route.path.replace("{id}", str(UUID(int=7))) for route in ROUTES])
def test_the_routes_of_jobs_are_its_own_in_one_spelling(path: str) -> None:
    assert Jobs.serves(path.encode())
    assert is_own(path)
    last = path[:-1] + f"%{ord(path[-1]):02x}"
    for twin in (last, path.replace("/v1", "/%761"), path + "/", path + "/x/y", path[1:]):
        assert not Jobs.serves(twin.encode())
        assert not is_own(twin)
