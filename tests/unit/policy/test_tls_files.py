"""The PEM files of a policy: every mistake is found before anything is sent, with its mend."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from gateway.policy import render_report, tlsfiles
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
        "ca.der": ssl.PEM_cert_to_DER_cert(authority.cert_pem.bytes().decode()),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


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
        ({"ca_file": "ca.der"}, "ca_file", "openssl x509 -inform der"),
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


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_cannot_be_read_is_said(errors_of: Errors, folder: Path) -> None:
    (folder / "key.pem").chmod(0)
    (error,) = errors_of(policy(more=fields(**CERT, client_key_file="key.pem")))
    assert "cannot be read (Permission denied); let this user read it" in error
