"""A generator of load for where wrk is not: one process, one request a connection at a time.

`python -m benchmarks.load.small SPEC`, where SPEC is JSON; prints what requests.lua prints. It
costs more CPU than wrk, and on a small machine that is the target's: ratios come out nearer to 1.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from benchmarks.kit import percentile

__all__: list[str] = []


class _Requests:
    """The same as requests.lua."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._parts = urlsplit(spec["url"])
        self.issued = 0

    def next(self) -> bytes:
        self.issued += 1
        spec, kind = self._spec, self._spec["kind"]
        mine = f"{spec['prefix']}{self.issued:09d}"
        seeded = f"{spec['seeds'][0]}{(self.issued - 1) % spec['seeds'][1] + 1:09d}"
        key = mine if kind in ("fresh", "stale") else seeded
        customer = mine if kind == "fresh" else seeded
        amount = 1300 if kind == "reused" else 1200
        open_ = f'{{"amount":{amount},"currency":"eur","customer":"{customer}","note":"'
        body = f'{open_}{"x" * max(0, spec["size"] - len(open_) - 2)}"}}'
        head = (
            f"POST {self._parts.path}/v1/customers/{customer}/charges HTTP/1.1",
            f"Host: {self._parts.netloc}",
            "Content-Type: application/json",
            f"Authorization: Bearer {spec['token']}",
            f"X-Execution-Fence: {6 if kind == 'stale' else 7}",
            f"Content-Length: {len(body)}",
            f'Idempotency-Key: "{key}"',
        )
        return ("\r\n".join(head) + "\r\n\r\n" + body).encode()


async def _connection(spec: dict[str, Any], requests: _Requests, until: float) -> list[Any]:
    """Seconds and status of each answer."""
    parts = urlsplit(spec["url"])
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    answers: list[Any] = []
    while (began := time.perf_counter()) < until:
        writer.write(requests.next())
        head = await reader.readuntil(b"\r\n\r\n")
        lowered = head.lower()
        length = int(lowered.partition(b"content-length:")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
        answers.append((time.perf_counter() - began, int(head[9:12])))
    writer.close()
    return answers


async def _main(spec: dict[str, Any]) -> None:
    requests, began = _Requests(spec), time.perf_counter()
    each = [
        _connection(spec, requests, began + spec["seconds"]) for _ in range(spec["connections"])
    ]
    done = await asyncio.gather(*each, return_exceptions=True)
    seconds = time.perf_counter() - began
    answers = [answer for found in done if isinstance(found, list) for answer in found]
    times = [1000 * took for took, _ in answers] or [0.0]
    print(
        json.dumps(
            {
                "issued": requests.issued,
                "answered": len(answers),
                "refused": sum(status >= 400 for _, status in answers),
                "errors": sum(isinstance(found, BaseException) for found in done),
                "seconds": seconds,
                "p50_ms": percentile(times, 0.5),
                "p99_ms": percentile(times, 0.99),
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(_main(json.loads(sys.argv[1])))
