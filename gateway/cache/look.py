"""What ``doctor`` says of the Redis of a deployment."""

from __future__ import annotations

import time
from contextlib import suppress
from urllib.parse import urlsplit

from gateway.cache.shared import READ_S, client, reason_of
from gateway.core.diagnosis import Finding

__all__ = ["look"]

_PATIENCE_S = 2.0
_KEY = b"fencegate:doctor"
_NOTHING_RESTS = (
    "no guarantee rests on it; replays while the database is away come from a process's own memory"
)
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1", None})


async def look(url: str) -> Finding:
    """Ask it as a gateway does. It writes one key, which ends after a second."""
    redis = client(url, _PATIENCE_S)
    try:
        began = time.monotonic()
        await redis.mget([_KEY])
        took_s = time.monotonic() - began
        began = time.monotonic()
        await redis.mget([_KEY])
        took_s = min(took_s, time.monotonic() - began)
    except Exception as error:  # noqa: BLE001 - whatever a server may say is the finding
        found, means = f"it cannot be asked: {reason_of(error)}", f"{_NOTHING_RESTS} alone"
        return Finding("cache", "warning", found, f"{means}; see FENCEGATE_REDIS_URL")
    else:
        return _judge(url, took_s, await _written(url))
    finally:
        with suppress(Exception):
            await redis.aclose()


async def _written(url: str) -> str | None:
    """Why it takes no entries; ``None`` where it does."""
    redis = client(url, _PATIENCE_S)
    try:
        await redis.eval("redis.call('SET', KEYS[1], '', 'PX', 1000)", 1, _KEY)
    except Exception as error:  # noqa: BLE001 - whatever a server may say is the finding
        return reason_of(error)
    finally:
        with suppress(Exception):
            await redis.aclose()
    return None


def _judge(url: str, took_s: float, unwritten: str | None) -> Finding:
    answered = f"it answers in {took_s * 1000:.1f} ms"
    if unwritten is not None:
        return Finding(
            "cache",
            "warning",
            f"{answered}, and takes no entries: {unwritten}",
            "replays while the database is away come from a process's own memory alone; let it "
            "SET and EVAL keys that begin with fencegate-",
        )
    if took_s > READ_S:
        return Finding(
            "cache",
            "warning",
            answered,
            f"over {READ_S * 1000:.0f} ms counts as away; move it nearer",
        )
    if url.startswith("redis://") and urlsplit(url).hostname not in _LOCAL:
        return Finding(
            "cache",
            "warning",
            f"{answered}, over a line without TLS",
            "answers of upstreams cross it in the clear; use rediss://",
        )
    return Finding("cache", "ok", answered, f"{_NOTHING_RESTS}, and from there")
