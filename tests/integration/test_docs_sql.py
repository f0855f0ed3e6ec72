"""The SQL in the documents runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import asyncpg
import pytest

from tests.kit.db import with_connection
from tests.kit.model import FIRST_ISSUED

PAGE = Path(__file__).resolve().parents[2] / "docs" / "jobs.md"
BLOCKS = re.findall(r"^```sql\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def test_there_is_sql_to_run() -> None:
    assert len(BLOCKS) == 2


@pytest.mark.parametrize("sql", BLOCKS, ids=lambda sql: sql.split("(")[0])
def test_sql_in_the_documents_runs(database: str, sql: str) -> None:
    async def twice(connection: asyncpg.Connection) -> list[object]:
        return [await connection.fetchval(sql), await connection.fetchval(sql)]

    first, second = with_connection(database, twice)
    if "issue_fence" in sql:
        assert (first, second) == (FIRST_ISSUED, FIRST_ISSUED + 1)
    else:
        assert first == second
