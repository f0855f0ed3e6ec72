"""``Worker``: handlers by tool and stage, and how to run them."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TypeVar

from gateway.errors import ConfigurationError
from gateway.observe import log
from gateway.worker.client import where
from gateway.worker.running import CONCURRENCY_LIMIT, Handler, Options, Running

__all__ = ["Worker", "importing"]

H = TypeVar("H", bound=Handler)

_IMPORTED: ContextVar[bool] = ContextVar("imported", default=False)


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """A module is imported for the worker in it: none may run meanwhile. It would work inside the
    import, with other options, and a second one after it."""
    token = _IMPORTED.set(True)
    try:
        yield
    finally:
        _IMPORTED.reset(token)


class Worker:
    """Handlers of jobs. ``url``, ``key``: else ``FENCEGATE_URL`` and ``FENCEGATE_KEY``."""

    def __init__(self, url: str | None = None, key: str | None = None) -> None:
        self._url = url
        self._key = key
        self._handlers: dict[tuple[str, str | None], Handler] = {}

    def tool(self, name: str, *, stage: str | None = None) -> Callable[[H], H]:
        """Decorate the handler of a tool's first stage, or of the stage of that name. It takes one
        argument, the ``Job``; an async one runs as a task, others in a thread each."""
        for what, value in (("tool", name), ("stage", stage)):
            if value is not None and not 1 <= len(value) <= 64:
                raise ConfigurationError(f"the name of a {what} has 1 to 64 characters: {value!r}")

        def register(handler: H) -> H:
            _check_handler(handler)
            if (name, stage) in self._handlers:
                of = f"stage {stage!r} of tool {name!r}" if stage else f"tool {name!r}"
                raise ConfigurationError(f"{of} has a handler already; remove one")
            self._handlers[name, stage] = handler
            return handler

        return register

    @property
    def tools(self) -> list[str]:
        """What it claims jobs of."""
        return sorted({tool for tool, _ in self._handlers})

    def run(
        self, *, concurrency: int = 10, drain_s: float = 30.0, metrics_port: int | None = None
    ) -> None:
        """Work until SIGTERM or SIGINT; then claim nothing, let the handlers end within
        ``drain_s``, and hand back what is not done. Raises ``ConfigurationError``."""
        if _IMPORTED.get():
            raise ConfigurationError(
                "worker.run() is called while the module is imported; put it under "
                'if __name__ == "__main__":'
            )
        options = Options(concurrency, drain_s, metrics_port)
        self._check(options)
        if not logging.getLogger().hasHandlers():
            log.configure()
        for noisy in ("httpx", "httpcore"):  # each request's URL, at level info
            if logging.getLogger(noisy).level == logging.NOTSET:
                logging.getLogger(noisy).setLevel(logging.WARNING)
        asyncio.run(self._work(options))

    async def _work(self, options: Options) -> None:
        url, key = where(self._url, self._key)
        running = Running(url, key, dict(self._handlers), options)
        if options.metrics_port is not None:
            try:
                running.keeper.metrics.serve(options.metrics_port)
            except OSError as error:
                raise ConfigurationError(
                    f"the metrics port {options.metrics_port} cannot be used ({error.strerror}); "
                    "give another one"
                ) from None
        await running.work()

    def _check(self, options: Options) -> None:
        if not self._handlers:
            raise ConfigurationError('the worker has no tools; add @worker.tool("…") to a function')
        if not 1 <= options.concurrency <= CONCURRENCY_LIMIT:
            raise ConfigurationError(
                f"concurrency {options.concurrency} is not within 1 to {CONCURRENCY_LIMIT}"
            )
        if not 0 <= options.drain_s <= 3_600:
            raise ConfigurationError(f"drain_s {options.drain_s:g} is not within 0 to 3600")
        port = options.metrics_port
        if port is not None and not 1 <= port <= 65_535:
            raise ConfigurationError(f"metrics_port {port} is not within 1 to 65535")


def _check_handler(handler: Handler) -> None:
    if not callable(handler):
        raise ConfigurationError(f"{handler!r} is no function; decorate one with @worker.tool(…)")
    try:
        inspect.signature(handler).bind(None)
    except TypeError:
        name = getattr(handler, "__name__", repr(handler))
        raise ConfigurationError(
            f"{name}{_place(handler)} does not take one argument; a handler takes the job: "
            f"def {name}(job)"
        ) from None
    except ValueError:  # a callable without a signature, of an extension
        return


def _place(handler: Handler) -> str:
    """Where it stands, as far as that can be told."""
    code = getattr(inspect.unwrap(handler), "__code__", None)
    return f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
