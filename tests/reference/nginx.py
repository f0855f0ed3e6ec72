"""nginx as it comes, in front of an upstream: everything passed on, on a free port."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.kit.upstream import closed_port

__all__ = ["nginx", "version"]

_START_S = 30.0

# Its own ways but where they would only slow the test: a message that does not end is given up
# after a second (it closes the connection without an answer), and so is an idle connection.
_CONFIGURATION = """
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_header_timeout 1s;
    client_body_timeout 1s;
    keepalive_timeout 1s;
    client_body_temp_path {folder}/client;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://127.0.0.1:{upstream};
            proxy_http_version 1.1;
        }}
    }}
}}
"""


def version() -> str | None:
    """Of the one on PATH, where system folders are looked through, too."""
    found = _found()
    if found is None:
        return None
    said = subprocess.run([found, "-v"], capture_output=True, text=True, check=False).stderr
    match = re.search(r"nginx/(\S+)", said)
    return match[1] if match else None


@contextlib.contextmanager
def nginx(upstream: int) -> Iterator[int]:
    """The port of one in front of this upstream, which ends with the context."""
    found = _found()
    assert found is not None
    with tempfile.TemporaryDirectory(prefix="fencegate-nginx-") as folder:
        port = closed_port()
        text = _CONFIGURATION.format(folder=folder, port=port, upstream=upstream)
        configuration = Path(folder) / "nginx.conf"
        configuration.write_text(text, encoding="utf-8")
        log = Path(folder) / "error.log"
        command = [found, "-p", folder, "-e", str(log), "-c", str(configuration)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            _await(process, port)
            yield port
        finally:
            process.terminate()
            process.communicate(timeout=_START_S)


def _found() -> str | None:
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


def _await(process: subprocess.Popen[str], port: int) -> None:
    while process.poll() is None:
        with (
            contextlib.suppress(ConnectionRefusedError),
            socket.create_connection(("127.0.0.1", port), _START_S),
        ):
            return
    assert process.stderr is not None
    raise AssertionError(f"nginx did not start: {process.stderr.read()}")
