"""requests with urllib3's retries, and httpx with its transport's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from tests.clients.wish import Heard, Wish

__all__ = ["Httpx", "Requests"]


class Requests:
    """Its own retries: all methods, all statuses from 400 on, every error, without waiting."""

    name = "requests"

    def send(self, wish: Wish) -> Heard:
        retry = Retry(
            total=wish.tries - 1,
            allowed_methods=None,
            status_forcelist=range(400, 600),
            backoff_factor=0,
            respect_retry_after_header=False,
            raise_on_status=False,
            redirect=False,
        )
        with requests.Session() as session:
            session.trust_env = False
            session.mount("http://", HTTPAdapter(max_retries=retry))
            try:
                answer = session.request(
                    wish.method,
                    wish.url,
                    headers=dict(wish.fields),
                    data=iter(wish.chunks) if wish.chunks is not None else wish.body or wish.form,
                    files=_files(wish),
                    allow_redirects=wish.follow,
                    timeout=wish.timeout_s,
                )
            except requests.RequestException as error:
                return Heard(0, error=repr(error))
        headers = answer.raw.headers
        lines = ((name, value) for name in headers for value in headers.getlist(name))
        return Heard(answer.status_code, tuple(lines), answer.content)


class Httpx:
    """Its own retries repeat only what could not connect; the loop around it is the test's."""

    name = "httpx"

    def send(self, wish: Wish) -> Heard:
        heard = Heard(0)
        transport = httpx.HTTPTransport(retries=wish.tries)
        with httpx.Client(transport=transport, trust_env=False, timeout=wish.timeout_s) as client:
            for _ in range(wish.tries):
                heard = self._once(client, wish)
                if 0 < heard.status < 400:
                    break
        return heard

    def _once(self, client: httpx.Client, wish: Wish) -> Heard:
        fields = [(name.encode(), value.encode("latin-1")) for name, value in wish.fields]
        try:
            answer = client.request(
                wish.method,
                wish.url,
                headers=fields,
                content=_again(wish.chunks) if wish.chunks is not None else wish.body,
                data=dict(wish.form) if wish.form is not None else None,
                files=_files(wish),
                follow_redirects=wish.follow,
            )
        except httpx.HTTPError as error:
            return Heard(0, error=repr(error))
        lines = ((n.decode("latin-1"), v.decode("latin-1")) for n, v in answer.headers.raw)
        return Heard(answer.status_code, tuple(lines), answer.content)


def _again(chunks: tuple[bytes, ...]) -> Iterator[bytes]:
    yield from chunks


def _files(wish: Wish) -> Any:
    if wish.parts is None:
        return None
    return [(name, (file or None, content)) for name, file, content in wish.parts]
