"""The PEM files of an upstream: what is wrong with them, what will not work, and the TLS context
that they make."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from gateway.policy.errors import PolicyError, PolicyWarning

__all__ = ["certificates", "context", "mistakes", "validity", "verifying", "warnings"]

_CA, _CERT, _KEY = "ca_file", "client_cert_file", "client_key_file"

_WEAK = frozenset(
    {"CA_KEY_TOO_SMALL", "CA_MD_TOO_WEAK", "EE_KEY_TOO_SMALL", "EE_MD_TOO_WEAK", "DH_KEY_TOO_SMALL"}
)
"""What OpenSSL's security level says of a certificate that it reads and does not use."""


def context(ca_file: str | None, cert_file: str | None, key_file: str | None) -> ssl.SSLContext:
    """A context that verifies certificate and host name, by ``ca_file`` or the system's
    authorities, and presents the client certificate if there is one.

    Raises ``OSError`` where a file was changed after ``mistakes`` found nothing.
    """
    made = verifying(ca_file)
    if cert_file is not None:
        made.load_cert_chain(cert_file, key_file, password=_Passphrase())
    return made


def verifying(ca_file: str | None = None) -> ssl.SSLContext:
    """A context for HTTP/1.1 that verifies certificate and host name. There is no switch for that;
    the one choice is by which authorities.

    Made by hand: Python's own would write the keys of every connection to wherever SSLKEYLOGFILE
    says, and fail where that cannot be written.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_2  # some builds of Python leave it to the system
    made.set_alpn_protocols(["http/1.1"])
    if ca_file is None:
        made.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        made.load_verify_locations(cafile=ca_file)
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
    mend = "name a PEM file, relative to this policy or absolute"
    try:
        if not file.is_file():
            return f"{shown!r} is not a file", mend
        with file.open("rb") as opened:
            opened.read(1)
        if not certificate or _holds_certificate(file):
            return None
    except PermissionError as error:
        return f"{shown!r} cannot be read ({error.strerror})", "let this user read it"
    except OSError as error:  # a name that is too long
        return f"{shown!r} cannot be read ({error.strerror})", mend
    mend = "name a PEM file with a BEGIN CERTIFICATE line; DER becomes PEM by: "
    return f"{shown!r} holds no certificate that can be read", mend + "openssl x509 -inform der"


def _holds_certificate(file: Path) -> bool:
    """A list of revoked ones loads too, and then nothing could be verified."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        made.load_verify_locations(cafile=file)
    except ssl.SSLError:
        return False
    return made.cert_store_stats()["x509"] > 0


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
        elif error.reason in _WEAK:
            problem = f"{cert!r} is too weak for this system's OpenSSL ({error.reason})"
            mend = "use a certificate with an RSA key of 2048 bits or more, or EC, and SHA-256"
            field = _CERT
        else:
            problem = f"{shown!r} holds no private key that can be read ({error.reason})"
            mend = "name a PEM file with a BEGIN PRIVATE KEY line"
            if key is None:
                mend = f"add the key to it, or name the key's file in {_KEY}"
        yield PolicyError(policy.name, field, problem, mend)


def warnings(policy: str, cert_file: str | None, now: float) -> Iterator[PolicyWarning]:
    """What is legal and will not work at ``now`` (Unix time): a client certificate out of date. The
    upstream would refuse it behind the handshake, and commands would become unknown."""
    if cert_file is None:
        return
    try:
        begins, ends = validity(Path(cert_file).read_text("latin-1"))
    except (OSError, ValueError):
        return  # changed since it was found well-formed, or of a form that is not known here
    for late, moment in (
        (now < begins, f"begins at {_date(begins)}"),
        (now > ends, f"ended at {_date(ends)}"),
    ):
        if late:
            yield PolicyWarning(
                policy, _CERT, f"is a certificate that {moment}, so upstreams refuse it; renew it"
            )


def certificates(cert_file: str) -> list[bytes]:
    """The certificates of a PEM file, in DER, its own first; none where it was changed since it was
    found well-formed."""
    try:
        text = Path(cert_file).read_text("latin-1")
        blocks = text.split(ssl.PEM_HEADER)[1:]
        return [
            ssl.PEM_cert_to_DER_cert(
                ssl.PEM_HEADER + block.partition(ssl.PEM_FOOTER)[0] + ssl.PEM_FOOTER
            )
            for block in blocks
        ]
    except (OSError, ValueError):
        return []


def validity(pem: str) -> tuple[float, float]:
    """When the first certificate of a PEM text begins and ends, in Unix time. Raises ``ValueError``
    where it is none. Python reads these only of a certificate that a peer presents."""
    begin, end = pem.find(ssl.PEM_HEADER), pem.find(ssl.PEM_FOOTER)
    if not 0 <= begin < end:
        raise ValueError("there is no certificate")
    der = ssl.PEM_cert_to_DER_cert(pem[begin : end + len(ssl.PEM_FOOTER)])
    fields = _members(_members(der)[0][1])  # RFC 5280 §4.1: the TBSCertificate
    fields = _members(fields[0][1])
    if fields[0][0] == 0xA0:  # the version, left out of version 1
        del fields[0]
    if len(fields) < 4:
        raise ValueError("the certificate has no dates")
    begins, ends = (_moment(*each) for each in _members(fields[3][1]))
    return begins, ends


def _members(der: bytes) -> list[tuple[int, bytes]]:
    """Tag and content of the values that stand in ``der`` one behind the other."""
    found, at = [], 0
    while at + 2 <= len(der):
        tag, size, at = der[at], der[at + 1], at + 2
        if size & 0x80:
            more = size & 0x7F
            size, at = int.from_bytes(der[at : at + more], "big"), at + more
        found.append((tag, der[at : at + size]))
        at += size
    if not found or at != len(der):
        raise ValueError("the certificate is cut short")
    return found


def _moment(tag: int, text: bytes) -> float:
    """RFC 5280 §4.1.2.5: UTCTime with two digits of the year up to 2049, then GeneralizedTime."""
    form = "%y%m%d%H%M%SZ" if tag == 0x17 else "%Y%m%d%H%M%SZ"
    read = datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC)
    if tag == 0x17 and read.year >= 2050:
        read = read.replace(year=read.year - 100)
    return read.timestamp()


def _date(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M UTC")


class _Passphrase:
    """Stands in for OpenSSL's prompt, which would wait at a terminal."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bytes:
        self.asked = True
        return b""
