"""The system's curl."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.clients.wish import Heard, Wish

__all__ = ["Curl"]

_PATIENCE_S = 4
"""All tries together: curl obeys ``Retry-After`` only where the wait fits in here."""


class Curl:
    """Its own retries: ``--retry`` with ``--retry-all-errors``, and so ``--fail``."""

    name = "curl"

    @staticmethod
    def installed() -> bool:
        return shutil.which("curl") is not None

    def send(self, wish: Wish) -> Heard:
        with tempfile.TemporaryDirectory(prefix="fencegate-curl-") as folder:
            return self._send(wish, Path(folder))

    def _send(self, wish: Wish, folder: Path) -> Heard:
        head, body = folder / "head", folder / "body"
        # --disable: without the configuration of whoever runs the tests.
        command: list[str | bytes] = [
            *("curl", "--disable", "--silent", "--show-error", "--path-as-is", "--noproxy", "*"),
            *("--request", wish.method, "--max-time", str(wish.timeout_s)),
            *("--dump-header", str(head), "--output", str(body), "--compressed"),
        ]
        for name, value in wish.fields:
            command += ["--header", f"{name}: {value}".encode("latin-1")]
        if wish.follow:
            command.append("--location")
        if wish.tries > 1:
            command += [
                *("--fail", "--retry-all-errors", "--retry", str(wish.tries - 1)),
                *("--retry-delay", "1", "--retry-max-time", str(_PATIENCE_S)),
            ]
        command += _content(wish, folder)
        done = subprocess.run([*command, wish.url], input=_piped(wish), capture_output=True)
        return _heard(head, body, done.returncode, done.stderr)


def _content(wish: Wish, folder: Path) -> list[str]:
    given: list[str] = []
    if wish.body is not None:
        (folder / "sent").write_bytes(wish.body)
        given = ["--data-binary", f"@{folder / 'sent'}"]
        if all(name.lower() != "content-type" for name, _ in wish.fields):
            given += ["--header", "Content-Type:"]
    for name, value in wish.form or ():
        given += ["--data-urlencode", f"{name}={value}"]
    for number, (name, file, content) in enumerate(wish.parts or ()):
        (folder / f"part{number}").write_bytes(content)
        path = folder / f"part{number}"
        given += ["--form", f"{name}=@{path};filename={file}" if file else f"{name}=<{path}"]
    if wish.chunks is not None:
        given = ["--upload-file", "-"]
    return given


def _piped(wish: Wish) -> bytes | None:
    return None if wish.chunks is None else b"".join(wish.chunks)


def _heard(head: Path, body: Path, code: int, said: bytes) -> Heard:
    error = said.decode(errors="replace") if code else ""
    blocks = re.split(rb"\r\n\r\n", head.read_bytes()) if head.exists() else []
    finals = [block for block in blocks if re.match(rb"HTTP/1\.1 [2-5]", block)]
    # 22: --fail met a status; anything else means that no answer was complete.
    if not finals or code not in (0, 22):
        return Heard(0, error=error)
    first, *lines = finals[-1].split(b"\r\n")
    pairs = (line.decode("latin-1").partition(":") for line in lines)
    return Heard(
        int(first.split(b" ")[1]),
        tuple((name, value.strip(" ")) for name, _, value in pairs),
        body.read_bytes() if body.exists() else b"",
        error,
    )
