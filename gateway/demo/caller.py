"""A caller, as a process of its own: sends one command and prints what went over the wire.

    python -m gateway.demo.caller --name W1 --key K --fence 41 --body '{}' POST http://…

`> ` stands before what was sent, `< ` before what came back, `! ` where nothing came back, `* `
before the caller's own words. With `--wait` it says that it holds its fence and goes on when a line
arrives on standard input: in between is where a real worker gets paused. The environment variable
CALLER_TOKEN is sent as a bearer token and not shown.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading

import httpx

__all__ = ["main"]

_TIMEOUT_S = 30.0
_TYPE = "application/json"


def main(argv: list[str]) -> int:
    """0 if every copy was answered, whatever the answer; 3 if one was not."""
    arguments = _arguments(argv)
    if arguments.wait:
        print(f"* {arguments.name} holds fence {arguments.fence} and is about to write", flush=True)
        sys.stdin.readline()
    limits = httpx.Limits(max_connections=arguments.copies)
    with httpx.Client(trust_env=False, timeout=_TIMEOUT_S, limits=limits) as client:
        for name in ("Accept", "Accept-Encoding", "Connection"):
            del client.headers[name]
        request = _request(client, arguments)
        _say(_shown_request(request))
        return _send_copies(client, request, arguments.copies)


def _send_copies(client: httpx.Client, request: httpx.Request, copies: int) -> int:
    """All at once: the threads leave together."""
    barrier = threading.Barrier(copies)
    speaking = threading.Lock()
    failed: list[str] = []

    def send() -> None:
        barrier.wait()
        try:
            lines = _shown_answer(client.send(request))
        except httpx.HTTPError as error:
            lines = [f"! {type(error).__name__}: {error}"]
            failed.append(lines[0])
        with speaking:
            _say(lines)

    threads = [threading.Thread(target=send) for _ in range(copies)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 3 if failed else 0


def _request(client: httpx.Client, arguments: argparse.Namespace) -> httpx.Request:
    headers = {"User-Agent": arguments.name}
    if token := os.environ.get("CALLER_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    if arguments.key is not None:
        headers["Idempotency-Key"] = arguments.key
    if arguments.fence is not None:
        headers["X-Execution-Fence"] = str(arguments.fence)
    if arguments.body is None:
        return client.build_request(arguments.method, arguments.url, headers=headers)
    headers["Content-Type"] = _TYPE
    body = arguments.body.encode()
    return client.build_request(arguments.method, arguments.url, headers=headers, content=body)


def _shown_request(request: httpx.Request) -> list[str]:
    lines = [f"{request.method} {request.url.raw_path.decode()} HTTP/1.1"]
    for name, value in request.headers.raw:
        secret = name.lower() == b"authorization"
        shown = "Bearer (the API's own token)" if secret else value.decode("latin-1")
        lines.append(f"{name.decode()}: {shown}")
    lines.append("")
    lines += request.content.decode().splitlines()
    return [f"> {line}" for line in lines]


def _shown_answer(answer: httpx.Response) -> list[str]:
    lines = [f"{answer.http_version} {answer.status_code} {answer.reason_phrase}"]
    lines += [f"{name.decode()}: {value.decode('latin-1')}" for name, value in answer.headers.raw]
    lines.append("")
    lines += answer.text.splitlines()
    return [f"< {line}" for line in lines]


def _say(lines: list[str]) -> None:
    print("\n".join(line.rstrip() for line in lines), flush=True)


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gateway.demo.caller")
    parser.add_argument("--name", default="caller")
    parser.add_argument("--key")
    parser.add_argument("--fence", type=int)
    parser.add_argument("--body")
    parser.add_argument("--copies", type=int, default=1, help="so many identical ones at once")
    parser.add_argument("--wait", action="store_true", help="hold the fence, wait for a line")
    parser.add_argument("method")
    parser.add_argument("url")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
