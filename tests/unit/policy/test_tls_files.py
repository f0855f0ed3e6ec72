"""The PEM files of a policy: every mistake is found before anything is sent, with its mend."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy import PolicyErrors, load, render_report, tlsfiles
from tests.unit.policy.conftest import Errors, Load
from tests.unit.policy.texts import policy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Good files and bad ones beside the policy."""
    authority = trustme.CA()
    first, second = authority.issue_cert("first.test"), authority.issue_cert("second.test")
    chain = b"".join(pem.bytes() for pem in first.cert_chain_pems)
    key = first.private_key_pem.bytes()
    files = {
        "ca.pem": authority.cert_pem.bytes(),
        "cert.pem": chain,
        "key.pem": key,
        "both.pem": key + chain,
        "other.pem": second.private_key_pem.bytes(),
        "locked.pem": encrypted(key),
        "locked-both.pem": chain + encrypted(key),
        "empty.pem": b"",
        "broken.pem": b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
        "revoked.pem": revocations(),
        "weak.pem": weak(),
        "ca.der": ssl.PEM_cert_to_DER_cert(authority.cert_pem.bytes().decode()),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def revocations() -> bytes:
    """A list of revoked certificates, which also loads as if it held authorities."""
    key = ec.generate_private_key(ec.SECP256R1())
    day = datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    made = x509.CertificateRevocationListBuilder().issuer_name(name)
    made = made.last_update(day).next_update(day + timedelta(days=1))
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def weak() -> bytes:
    """A certificate with its key, which is shorter than OpenSSL accepts."""
    key = rsa.generate_private_key(65537, 1024)
    now = datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "weak")])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name)
    made = made.public_key(key.public_key()).serial_number(7)
    made = made.not_valid_before(now).not_valid_after(now + timedelta(days=1))
    signed = made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    return signed + key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def encrypted(pem: bytes) -> bytes:
    return load_pem_private_key(pem, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )


def fields(**named: str) -> str:
    return "\n".join(f"{field} = '{value}'" for field, value in named.items())


@pytest.mark.parametrize(
    "named",
    [
        {"ca_file": "ca.pem"},
        {"client_cert_file": "cert.pem", "client_key_file": "key.pem"},
        {"client_cert_file": "both.pem"},
        {"ca_file": "ca.pem", "client_cert_file": "both.pem", "client_key_file": "key.pem"},
    ],
)
def test_good_files_make_a_context(load_text: Load, folder: Path, named: dict[str, str]) -> None:
    upstream = load_text(policy(more=fields(**named))).mounts[0].upstream
    files = (upstream.ca_file, upstream.client_cert_file, upstream.client_key_file)
    assert [file and Path(file) for file in files] == [
        folder / named[field] if field in named else None
        for field in ("ca_file", "client_cert_file", "client_key_file")
    ]
    context = tlsfiles.context(*files)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_check_names_the_files(load_text: Load, folder: Path) -> None:
    named = {"ca_file": "ca.pem", "client_cert_file": "cert.pem", "client_key_file": "key.pem"}
    report = render_report(load_text(policy(more=fields(**named))))
    assert (
        f"  TLS: trusts {folder / 'ca.pem'}, shows {folder / 'cert.pem'}, "
        f"with the key in {folder / 'key.pem'}\n"
    ) in report
    assert "TLS" not in render_report(load_text(policy()))


CERT = {"client_cert_file": "cert.pem"}
PEM = "holds no certificate that can be read; name a PEM file with a BEGIN CERTIFICATE line"


@pytest.mark.parametrize(
    ("named", "field", "said"),
    [
        ({"ca_file": "none.pem"}, "ca_file", "is not a file; name a PEM file"),
        ({"ca_file": "."}, "ca_file", "is not a file; name a PEM file"),
        ({"ca_file": "empty.pem"}, "ca_file", PEM),
        ({"ca_file": "key.pem"}, "ca_file", PEM),
        ({"ca_file": "broken.pem"}, "ca_file", PEM),
        ({"ca_file": "revoked.pem"}, "ca_file", PEM),
        ({"ca_file": "ca.der"}, "ca_file", "openssl x509 -inform der"),
        ({"ca_file": "a" * 300}, "ca_file", "cannot be read (File name too long); name a PEM"),
        ({**CERT, "client_key_file": "a" * 300}, "client_key_file", "File name too long"),
        ({"client_cert_file": "weak.pem"}, "client_cert_file", "is too weak for this system's"),
        ({"client_cert_file": "weak.pem"}, "client_cert_file", "(EE_KEY_TOO_SMALL); use a"),
        ({"client_cert_file": "none.pem"}, "client_cert_file", "is not a file"),
        ({"client_cert_file": "key.pem"}, "client_cert_file", PEM),
        ({"client_cert_file": "cert.pem"}, "client_cert_file", "name the key's file in"),
        ({**CERT, "client_key_file": "none.pem"}, "client_key_file", "is not a file"),
        ({**CERT, "client_key_file": "empty.pem"}, "client_key_file", "no private key"),
        ({**CERT, "client_key_file": "cert.pem"}, "client_key_file", "no private key"),
        ({**CERT, "client_key_file": "other.pem"}, "client_key_file", "of another certificate"),
        ({**CERT, "client_key_file": "locked.pem"}, "client_key_file", "openssl pkey -in"),
        ({"client_cert_file": "locked-both.pem"}, "client_cert_file", "an encrypted key"),
        ({"client_key_file": "key.pem"}, "client_key_file", "is the key of no certificate"),
    ],
)
def test_a_bad_file_is_a_mistake_with_its_mend(
    errors_of: Errors, folder: Path, named: dict[str, str], field: str, said: str
) -> None:
    (error,) = errors_of(policy(more=fields(**named)))
    assert error.startswith(f"payments.toml: {field}: ")
    assert said in error
    assert "; " in error


def test_each_bad_file_is_reported_at_once(errors_of: Errors, folder: Path) -> None:
    named = {"ca_file": "a", "client_cert_file": "b", "client_key_file": "c"}
    assert len(errors_of(policy(more=fields(**named)))) == 3


@pytest.mark.parametrize("field", ["ca_file", "client_cert_file", "client_key_file"])
def test_a_tls_file_of_a_plain_upstream_is_a_mistake(
    errors_of: Errors, folder: Path, field: str
) -> None:
    """Whoever names one believes to be protected by it."""
    text = policy(more=fields(**{field: "both.pem"})).replace("https://", "http://")
    (error,) = errors_of(text)
    assert f"{field}: has no use: the upstream is plain http; write https://" in error


@pytest.mark.parametrize("value", ["7", "''", "true"])
def test_what_is_no_name_of_a_file_is_reported_once(errors_of: Errors, value: str) -> None:
    (error,) = errors_of(policy(more=f"client_cert_file = {value}"))
    assert error.startswith("payments.toml: client_cert_file: is ")


@pytest.mark.parametrize("closed", ["key.pem", "."])
def test_a_file_that_cannot_be_read_is_said(folder: Path, closed: str) -> None:
    with open_to_all(folder) as copy:
        text = policy(more=fields(**CERT, client_key_file="key.pem"))
        (copy / "payments.toml").write_text(text, "utf-8")
        (copy / closed).chmod(0)
        (error,) = errors_for_others(copy)
    if closed == ".":
        assert error.endswith(
            "cannot be read (Permission denied); let this user list and enter it, or name another"
        )
        assert error.startswith(str(copy))
    else:
        assert error.startswith("payments.toml: client_key_file: ")
        assert "cannot be read (Permission denied); let this user read it" in error


def test_a_folder_that_holds_a_closed_one_is_said(folder: Path) -> None:
    """Not even what a name stands for can be asked."""
    with open_to_all(folder) as copy:
        inner = copy / "inner"
        inner.mkdir()
        (inner / "key.pem").write_bytes((copy / "key.pem").read_bytes())
        inner.chmod(0)
        text = policy(more=fields(**CERT, client_key_file="inner/key.pem"))
        (copy / "payments.toml").write_text(text, "utf-8")
        (error,) = errors_for_others(copy)
    assert "'inner/key.pem' cannot be read (Permission denied); let this user read it" in error


@contextmanager
def open_to_all(folder: Path) -> Iterator[Path]:
    """A copy that every user can reach, which pytest's own folders are not."""
    made = Path(tempfile.mkdtemp(prefix="fencegate-tls-"))
    try:
        shutil.copytree(folder, made, dirs_exist_ok=True)
        made.chmod(0o755)
        yield made
    finally:
        for path in (made, *made.rglob("*")):
            path.chmod(0o755)
        shutil.rmtree(made)


def errors_for_others(folder: Path) -> list[str]:
    """The mistakes as a user sees them who is not root, in a process of its own."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            try:
                load(folder, {})
                said = ["nothing"]
            except PolicyErrors as error:
                said = [str(each) for each in error.errors]
            os.write(write, json.dumps(said).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    found: list[str] = json.loads(text)
    return found


# -- what is legal and will not work

DAY = timedelta(days=1)


def dated(folder: Path, begins: datetime, ends: datetime) -> Path:
    leaf = trustme.CA().issue_cert("dated.test", not_before=begins, not_after=ends)
    path = folder / "dated.pem"
    path.write_bytes(leaf.private_key_and_cert_chain_pem.bytes())
    return path


@pytest.mark.parametrize(
    ("begins", "ends", "said"),
    [(-9, -1, "ended at 20"), (1, 9, "begins at 20"), (-9, 9, None), (-9, 365 * 60, None)],
)
def test_a_client_certificate_out_of_date_is_a_warning(
    load_text: Load, tmp_path: Path, begins: int, ends: int, said: str | None
) -> None:
    now = datetime.now(UTC)
    dated(tmp_path, now + begins * DAY, now + ends * DAY)
    found = load_text(policy(more=fields(client_cert_file="dated.pem"))).warnings
    if said is None:
        assert found == ()
    else:
        (warning,) = map(str, found)
        assert warning.startswith("payments.toml: client_cert_file: is a certificate that ")
        assert said in warning
        assert warning.endswith("; renew it")


@pytest.mark.parametrize(
    ("begins", "ends"), [("1985-06-01", "2049-12-31"), ("2026-01-01", "2050-01-01")]
)
def test_the_dates_are_those_of_the_certificate(tmp_path: Path, begins: str, ends: str) -> None:
    moments = [datetime.fromisoformat(each).replace(tzinfo=UTC) for each in (begins, ends)]
    text = dated(tmp_path, *moments).read_text("ascii")
    assert tlsfiles.validity(text) == tuple(each.timestamp() for each in moments)


def nested(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """One to five values one behind the other, as a certificate nests them."""
    return st.lists(inner, min_size=1, max_size=5).map(
        lambda parts: b"".join(b"\x30" + bytes([len(part) & 127]) + part for part in parts)
    )


@given(st.recursive(st.binary(max_size=15), nested, max_leaves=12))
def test_what_is_no_certificate_has_no_dates(data: bytes) -> None:
    for text in (data.decode("latin-1"), ssl.DER_cert_to_PEM_cert(data)):
        with pytest.raises(ValueError, match=r".+"):
            tlsfiles.validity(text)
