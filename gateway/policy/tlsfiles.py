"""The PEM files of an upstream: what is wrong with them, and the TLS context that they make."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path

from gateway.policy.errors import PolicyError

__all__ = ["context", "mistakes"]

_CA, _CERT, _KEY = "ca_file", "client_cert_file", "client_key_file"


def context(ca_file: str | None, cert_file: str | None, key_file: str | None) -> ssl.SSLContext:
    """A context that verifies certificate and host name, by ``ca_file`` or the system's
    authorities, and presents the client certificate if there is one.

    Raises ``OSError`` where a file was changed after ``mistakes`` found nothing.
    """
    made = ssl.create_default_context(cafile=ca_file)
    made.minimum_version = ssl.TLSVersion.TLSv1_2  # some builds of Python leave it to the system
    made.set_alpn_protocols(["http/1.1"])
    if cert_file is not None:
        made.load_cert_chain(cert_file, key_file, password=_Passphrase())
    return made


def mistakes(policy: Path, table: Mapping[str, object]) -> Iterator[PolicyError]:
    """Each mistake of the files that a raw policy names; paths are relative to ``policy``.

    A field that is no text, or empty, is left to ``schema``.
    """
    named = {
        field: value
        for field in (_CA, _CERT, _KEY)
        if isinstance(value := table.get(field), str) and value
    }
    upstream = table.get("upstream")
    if isinstance(upstream, str) and upstream.startswith("http://"):
        for field in named:
            yield PolicyError(
                policy.name,
                field,
                "has no use: the upstream is plain http",
                "write https:// in upstream, or remove it",
            )
        return
    if _KEY in named and _CERT not in named:
        yield PolicyError(
            policy.name,
            _KEY,
            "is the key of no certificate",
            f"add {_CERT}, or remove it",
        )
    usable = True
    for field, value in named.items():
        found = _unusable(policy.parent / value, value, certificate=field != _KEY)
        if found is not None:
            usable = False
            yield PolicyError(policy.name, field, *found)
    if _CERT in named and usable:
        yield from _pair(policy, named[_CERT], named.get(_KEY))


def _unusable(file: Path, shown: str, *, certificate: bool) -> tuple[str, str] | None:
    """What is wrong with one file by itself, and the mend."""
    if not file.is_file():
        return f"{shown!r} is not a file", "name a PEM file, relative to this policy or absolute"
    try:
        with file.open("rb") as opened:
            opened.read(1)
        if certificate:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=file)
    except ssl.SSLError:
        mend = "name a PEM file with a BEGIN CERTIFICATE line; DER becomes PEM by: "
        mend += "openssl x509 -inform der"
        return f"{shown!r} holds no certificate that can be read", mend
    except OSError as error:
        return f"{shown!r} cannot be read ({error.strerror})", "let this user read it"
    return None


def _pair(policy: Path, cert: str, key: str | None) -> Iterator[PolicyError]:
    """What is wrong with the key, alone or beside its certificate."""
    field, shown = (_CERT, cert) if key is None else (_KEY, key)
    passphrase = _Passphrase()
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(
            policy.parent / cert, None if key is None else policy.parent / key, password=passphrase
        )
    except ssl.SSLError as error:
        if passphrase.asked:
            problem = f"{shown!r} holds an encrypted key, and nobody is there to type a passphrase"
            mend = (
                "decrypt it (openssl pkey -in FILE -out FILE) and let only the gateway's user "
                "read the result"
            )
        elif error.reason == "KEY_VALUES_MISMATCH":
            problem = f"{shown!r} holds the key of another certificate than the first of {cert!r}"
            mend = "name the key that belongs to it; the client's own certificate stands first"
        else:
            problem = f"{shown!r} holds no private key that can be read"
            mend = "name a PEM file with a BEGIN PRIVATE KEY line"
            if key is None:
                mend = f"add the key to it, or name the key's file in {_KEY}"
        yield PolicyError(policy.name, field, problem, mend)


class _Passphrase:
    """Stands in for OpenSSL's prompt, which would wait at a terminal."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bytes:
        self.asked = True
        return b""
