"""``worker run``."""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from gateway.cli.options import Subparsers, add_command, add_group
from gateway.errors import ConfigurationError
from gateway.observe import log
from gateway.settings import load_settings

if TYPE_CHECKING:
    from gateway.worker import Worker

__all__ = ["register"]


def register(subparsers: Subparsers) -> None:
    group = add_group(
        subparsers,
        "worker",
        summary="run the handlers of leased jobs",
        details="How to write one: docs/worker.md.",
        example="fencegate worker run shop:worker",
    )
    parser = add_command(
        group,
        "run",
        _run,
        summary="run a worker until SIGTERM or Ctrl-C",
        details="FENCEGATE_URL is the gateway's address (http://127.0.0.1:8080), FENCEGATE_KEY a\n"
        "token of `fencegate keys add`. The module is looked for in the working directory, too.\n\n"
        "SIGTERM or SIGINT: claim nothing more, let handlers end within --drain, cancel those\n"
        "that can be cancelled, hand back what is not done. A second one ends it at once, and\n"
        "leases end by time.\n\n"
        "exit codes: 0 stopped, 1 failed, 2 started wrongly, 128 + signal at the second signal,\n"
        "or at one before the worker has started",
        example="fencegate worker run shop:worker --concurrency 20",
    )
    parser.add_argument(
        "worker", metavar="MODULE:NAME", help="where the Worker is, e.g. shop:worker"
    )
    parser.add_argument(
        "--concurrency",
        type=int,
        default=10,
        metavar="N",
        help="jobs at one time, 1 to 1000 (default 10)",
    )
    parser.add_argument(
        "--drain",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds in which handlers may end once it is to stop (default 30)",
    )
    parser.add_argument(
        "--metrics-port", type=int, metavar="P", help="serve metrics on this port of loopback"
    )


def _run(options: argparse.Namespace) -> int:
    log.configure(load_settings().log_level)
    worker = _found(options.worker)
    worker.run(
        concurrency=options.concurrency,
        drain_s=options.drain,
        metrics_port=options.metrics_port,
    )
    return 0


def _found(where: str) -> Worker:
    from gateway.worker import Worker  # not for the other commands: it brings httpx

    module_name, name = _parts(where)
    here = str(Path.cwd())
    if here not in sys.path:  # as `python -m` has it, which a console script has not
        sys.path.insert(0, here)
    module = _imported(module_name, here)
    found = getattr(module, name, None)
    if isinstance(found, Worker):
        return found
    if isinstance(found, type) and issubclass(found, Worker):
        raise ConfigurationError(
            f"{where} is the class, not a worker of it; write {name} = Worker() in {module_name}"
        )
    workers = sorted(n for n, value in vars(module).items() if isinstance(value, Worker))
    hint = f"did you mean {module_name}:{workers[0]}?" if workers else "it has none"
    what = "has no" if found is None else f"has a {type(found).__name__}, not a Worker, as"
    raise ConfigurationError(f"module {module_name!r} {what} {name!r}; {hint}")


def _parts(where: str) -> tuple[str, str]:
    """Module and name."""
    module_name, _, name = where.partition(":")
    if not (module_name and name.isidentifier()):
        raise ConfigurationError(f"{where!r} names no worker; write MODULE:NAME, e.g. shop:worker")
    if module_name.endswith(".py") or not all(
        part.isidentifier() for part in module_name.split(".")
    ):
        path = Path(module_name)
        folder = "" if path.parent == Path() else f", in {path.parent}"
        raise ConfigurationError(
            f"{module_name!r} is no module's name; write {path.name.removesuffix('.py')}:{name}"
            f"{folder}"
        )
    return module_name, name


def _imported(module_name: str, here: str) -> ModuleType:
    from gateway.worker.worker import importing

    try:
        with importing():
            return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigurationError(_broken(module_name)) from None
        raise ConfigurationError(
            f"there is no module {module_name!r} in {here} or among what is installed; run it "
            f"where {module_name.partition('.')[0]}.py is"
        ) from None
    except ConfigurationError as error:  # a mistake in the worker that it holds
        raise ConfigurationError(f"module {module_name!r}: {error}") from None
    except SystemExit as error:
        raise ConfigurationError(
            f"module {module_name!r} ended itself while it was imported, by sys.exit({error.code!r}"
            '); put what is not to run then under if __name__ == "__main__":'
        ) from None
    except Exception:  # noqa: BLE001 - whatever a module does while it is imported
        raise ConfigurationError(_broken(module_name)) from None


def _broken(module_name: str) -> str:
    told = traceback.format_exc(limit=-1).strip()
    return f"module {module_name!r} cannot be imported; correct it:\n{told}"
