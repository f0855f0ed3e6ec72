"""``faults``: a proxy and an upstream that break as they are told to."""

from __future__ import annotations

import argparse
import signal
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from gateway.cli.options import Subparsers, add_command, add_group
from gateway.errors import ConfigurationError
from gateway.faultkit.control import Control, Route
from gateway.faultkit.proxy import FaultProxy
from gateway.faultkit.rules import parse_rule
from gateway.faultkit.script import Script, parse_line
from gateway.faultkit.upstream import Recorded, RecordingUpstream
from gateway.faults import POINTS

__all__ = ["register"]

T = TypeVar("T")

_CONTROL = ("127.0.0.1", 0)


def register(subparsers: Subparsers) -> None:
    group = add_group(
        subparsers,
        "faults",
        summary="break connections and answers on purpose, to see what your deployment does",
        details="For trials, never in production. docs/failure-matrix.md says what to expect.",
        example="fencegate faults proxy --listen 127.0.0.1:9100 --to 127.0.0.1:8080",
    )
    proxy = add_command(
        group,
        "proxy",
        _proxy,
        summary="pass TCP connections on, and break answers by rule",
        details="Rules: --rules FILE with [[rules]], or POST /rules at the control address:\n"
        '  {"action": "cut", "match": "POST /v1/jobs/end", "after": 10}\n'
        "Actions: delay (delay_ms), cut, reset, half-close, swallow. GET /rules shows their hits,\n"
        "DELETE /rules ends them. POST /cut holds everything, /restore delivers it; /refuse and\n"
        "/accept are a server that is down and up again.",
        example="fencegate faults proxy --listen 127.0.0.1:9100 --to 127.0.0.1:8080",
    )
    _add_listen(proxy)
    proxy.add_argument(
        "--to", type=_address, required=True, metavar="HOST:PORT", help="where to pass them on"
    )
    proxy.add_argument("--rules", type=Path, metavar="FILE", help="TOML with [[rules]]")
    upstream = add_command(
        group,
        "upstream",
        _upstream,
        summary="answer as scripted, and remember what reached it",
        details="Answers: --answers FILE with [[answers]], or POST /answers at the control:\n"
        '  {"match": "POST /v1/charges", "do": "respond", "status": 503}\n'
        "do: respond (status, body), cut, reset, hang; delay_ms, effect, times. All else is\n"
        'answered 201 {"effect": N}. GET /requests and GET /effects show what came and what was\n'
        "done, DELETE /requests forgets it.",
        example="fencegate faults upstream --listen 127.0.0.1:9001",
    )
    _add_listen(upstream)
    upstream.add_argument("--answers", type=Path, metavar="FILE", help="TOML with [[answers]]")
    add_command(
        group,
        "points",
        _points,
        summary="list the failpoints of `serve --allow-failpoints`",
        example="fencegate faults points",
    )


def _add_listen(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        type=_address,
        default=_CONTROL,
        metavar="HOST:PORT",
        help="where to listen (default: a free port of loopback)",
    )
    parser.add_argument(
        "--control",
        type=_address,
        default=_CONTROL,
        metavar="HOST:PORT",
        help="where to be told what to break (default: a free port of loopback)",
    )


def _proxy(options: argparse.Namespace) -> int:
    rules = _read(options.rules, "rules", parse_rule)
    host, port = options.listen
    proxy = FaultProxy(*options.to, listen=host, listen_port=port)
    for rule in rules:
        proxy.add(rule)

    def shown(_: Mapping[str, object]) -> object:
        return [
            {
                "action": each.rule.action,
                "match": each.rule.match.decode(),
                "after": each.rule.after,
                "delay_ms": each.rule.delay_ms,
                "times": "always" if each.rule.times is None else each.rule.times,
                "hits": each.hits,
            }
            for each in proxy.rules
        ]

    def add(document: Mapping[str, object]) -> object:
        proxy.add(parse_rule(document))
        return shown({})

    routes: dict[str, Route] = {
        "GET /rules": shown,
        "POST /rules": add,
        "DELETE /rules": lambda _: _done(proxy.remove),
        "POST /cut": lambda _: _done(proxy.cut),
        "POST /restore": lambda _: _done(proxy.restore),
        "POST /refuse": lambda _: _done(proxy.refuse),
        "POST /accept": lambda _: _done(proxy.accept),
    }
    return _run(options, proxy.start, lambda: proxy.port, proxy.stop, routes)


def _upstream(options: argparse.Namespace) -> int:
    script = Script(_read(options.answers, "answers", parse_line))
    host, port = options.listen
    upstream = RecordingUpstream(script=script, host=host, port=port)

    def add(document: Mapping[str, object]) -> object:
        return _done(lambda: script.add(parse_line(document)))

    routes: dict[str, Route] = {
        "GET /requests": lambda _: [_shown(each) for each in upstream.requests],
        "GET /effects": lambda _: [_shown(each) for each in upstream.effects],
        "DELETE /requests": lambda _: _done(upstream.clear),
        "POST /answers": add,
        "DELETE /answers": lambda _: _done(script.clear),
    }
    return _run(options, upstream.start, lambda: upstream.port, upstream.stop, routes)


def _points(_: argparse.Namespace) -> int:
    for name, statement in POINTS.items():
        print(f"{name:<20}{'kill, stop, delay, error' if statement else 'kill, stop, delay'}")
    return 0


def _run(
    options: argparse.Namespace,
    start: Callable[[], object],
    port: Callable[[], int],
    stop: Callable[[], None],
    routes: Mapping[str, Route],
) -> int:
    """Until SIGTERM or Ctrl-C."""
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # before there are other threads
    try:
        start()
        host, control_port = options.control
        control = Control(host, control_port, routes).start()
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen ({error.strerror}); choose others with --listen and --control"
        ) from error
    print(f"listening on {options.listen[0]}:{port()}", flush=True)
    print(f"control on http://{options.control[0]}:{control.port}", flush=True)
    signal.sigwait(signals)
    control.stop()
    stop()
    return 0


def _done(what: Callable[[], object]) -> object:
    what()
    return {"done": True}


def _shown(request: Recorded) -> object:
    return {
        "number": request.number,
        "connection": request.connection,
        "request": f"{request.method.decode('latin-1')} {request.target.decode('latin-1')}",
        "headers": [[n.decode("latin-1"), v.decode("latin-1")] for n, v in request.headers],
        "body": request.body.decode("utf-8", "replace"),
    }


def _read(file: Path | None, table: str, parse: Callable[[Mapping[str, object]], T]) -> list[T]:
    if file is None:
        return []
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{file} cannot be read ({error}); correct it") from error
    lines = found.get(table)
    if set(found) != {table} or not isinstance(lines, list):
        raise ConfigurationError(f"{file} has to hold [[{table}]] and nothing else")
    return [_one(f"{file}: {table}[{n}]", each, parse) for n, each in enumerate(lines)]


def _one(place: str, line: object, parse: Callable[[Mapping[str, object]], T]) -> T:
    if not isinstance(line, dict):
        raise ConfigurationError(f"{place} is {line!r}; write a table")
    try:
        return parse(line)
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}: {error}") from error


def _address(value: str) -> tuple[str, int]:
    host, _, port = value.rpartition(":")
    if host and port.isascii() and port.isdigit() and int(port) < 65536:
        return host.strip("[]"), int(port)
    raise argparse.ArgumentTypeError(f"{value!r} is no address; write HOST:PORT")
