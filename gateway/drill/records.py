"""What a deployment says about jobs, over HTTP, and what its database has on record."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import httpx

from gateway.crew import CrewError
from gateway.drill.claims import AuditRow
from gateway.errors import AnswerLost, StoreUnavailable
from gateway.store.audit import Filter, search
from gateway.store.database import Database

__all__ = ["Deployment"]

T = TypeVar("T")

_TIMEOUT_S = 10.0
_ROWS = 1_000
"""Of one entity, which one run of one variant has to itself: some ten are expected."""


class Deployment:
    """A gateway and its database. Used from one thread. ``undisturbed``: in its blocks no signal
    raises, for the event loop would take it for a failure of one of its callbacks, and go on."""

    def __init__(
        self,
        url: str,
        key: str | None,
        dsn: str,
        undisturbed: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.url = url.rstrip("/")
        self._undisturbed = undisturbed
        self.key = key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(
            base_url=self.url, headers=headers, timeout=_TIMEOUT_S, trust_env=False
        )
        self._runner = asyncio.Runner()
        self._database = self._run(Database.open(dsn, size=2))

    def close(self) -> None:
        self._http.close()
        self._run(self._database.close())
        self._runner.close()

    def get(self, path: str) -> httpx.Response:
        """Raises `CrewError` where nobody answers."""
        return self._ask("GET", path, None)

    def post(self, path: str, document: Mapping[str, Any]) -> httpx.Response:
        return self._ask("POST", path, document)

    def job(self, job: str) -> Mapping[str, Any]:
        """Its record; empty while it cannot be had (a restarting database)."""
        answer = self.get(f"/v1/jobs/{job}")
        if answer.status_code != 200:
            return {}
        found: Mapping[str, Any] = answer.json()["job"]
        return found

    def audit(self, entity: str) -> list[AuditRow]:
        """The rows of an entity, oldest first; none while the database is away."""
        try:
            return self._run(self._rows(entity))
        except (StoreUnavailable, AnswerLost):
            return []

    def check_database(self) -> None:
        """Raise `StoreUnavailable` or `AnswerLost` where the audit cannot be read."""
        self._run(self._rows("drill:none"))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        with self._undisturbed():
            return self._runner.run(work)

    async def _rows(self, entity: str) -> list[AuditRow]:
        wanted = Filter(entity=entity, limit=_ROWS, newest_first=False)
        return [
            AuditRow(row.at, row.event, row.fence, row.high_water_mark, row.request_id, row.reason)
            async for row in search(self._database, wanted)
        ]

    def _ask(self, method: str, path: str, document: Mapping[str, Any] | None) -> httpx.Response:
        try:
            return self._http.request(method, path, json=document)
        except httpx.HTTPError as error:
            raise CrewError(
                f"{self.url} does not answer ({type(error).__name__}); check --url, and that the "
                "gateway runs"
            ) from error


def problem_of(answer: httpx.Response) -> str:
    """The name of the problem type, or an empty string."""
    try:
        document = json.loads(answer.text)
    except ValueError:
        return ""
    return str(document.get("type", "")).rpartition(":")[2] if isinstance(document, dict) else ""
