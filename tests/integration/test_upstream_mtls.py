"""Certificates on both sides: who is trusted, who is refused, and what a refusal proves."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gateway.cli.main import main
from gateway.core.model import Exchange, Stage
from gateway.policy import tlsfiles
from gateway.upstream import Client, Origin
from tests.kit.db import Server
from tests.kit.gateway import CAPTURE, GatewayProcess, policy, stack
from tests.kit.upstream import RecordingUpstream, respond
from tests.unit.upstream.calls import LOOPS, request, run, within

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
NOT_SENT = Exchange(Stage.CONNECTING, None, "tls")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(params=sorted(LOOPS))
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=VERSIONS, ids=lambda version: version.name)
def version(request: pytest.FixtureRequest) -> ssl.TLSVersion:
    made: ssl.TLSVersion = request.param
    return made


@pytest.fixture
def files(tmp_path: Path, authority: trustme.CA) -> Callable[[trustme.LeafCert | None], Any]:
    """The paths that a policy names: authorities, certificate, key."""

    def written(leaf: trustme.LeafCert | None) -> tuple[str, str | None, str | None]:
        ca = tmp_path / "ca.pem"
        ca.write_bytes(authority.cert_pem.bytes())
        if leaf is None:
            return str(ca), None, None
        cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
        cert.write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
        key.write_bytes(leaf.private_key_pem.bytes())
        return str(ca), str(cert), str(key)

    return written


def serving(
    leaf: trustme.LeafCert, version: ssl.TLSVersion, asks_for: trustme.CA | None = None
) -> ssl.SSLContext:
    """An upstream's context; ``asks_for``: who must have signed its callers' certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    leaf.configure_cert(context)
    context.minimum_version = context.maximum_version = version
    if asks_for is not None:
        asks_for.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def exchange(loop: str, url: str, context: ssl.SSLContext | None) -> Exchange:
    async def main() -> Exchange:
        client = Client(Origin.parse(url), ssl_context=context)
        seen = (await client.send(request(), within(), keep_limit=1000)).exchange
        await client.close()
        return seen

    return run(loop, main())


def test_a_client_certificate_is_presented(
    loop: str, version: ssl.TLSVersion, authority: trustme.CA, files: Any
) -> None:
    server = serving(authority.issue_cert("127.0.0.1"), version, authority)
    with RecordingUpstream(tls=server) as upstream:
        context = tlsfiles.context(*files(authority.issue_cert("gateway.test")))
        assert exchange(loop, upstream.url, context).stage is Stage.BODY_COMPLETE
        assert upstream.count == 1


@pytest.mark.parametrize("whose", ["none", "another authority's"])
def test_a_certificate_that_is_refused(
    loop: str, version: ssl.TLSVersion, authority: trustme.CA, files: Any, whose: str
) -> None:
    """Up to TLS 1.2 that is part of the handshake, and proves that nothing was sent. In TLS 1.3 the
    client is done before the server has looked (RFC 8446 §4.4.4), so its request has left."""
    server = serving(authority.issue_cert("127.0.0.1"), version, authority)
    with RecordingUpstream(tls=server) as upstream:
        leaf = None if whose == "none" else trustme.CA().issue_cert("gateway.test")
        seen = exchange(loop, upstream.url, tlsfiles.context(*files(leaf)))
        if version is ssl.TLSVersion.TLSv1_2:
            assert seen == NOT_SENT
        else:
            assert (seen.stage, seen.response) == (Stage.SENT, None)
            assert seen.fault in ("closed", "reset")
        assert upstream.count == 0


@contextmanager
def presenting(version: ssl.TLSVersion, leaf: trustme.LeafCert) -> Any:
    with RecordingUpstream(tls=serving(leaf, version)) as upstream:
        yield upstream


def test_an_authority_of_ones_own_is_trusted_and_no_other(
    loop: str, version: ssl.TLSVersion, authority: trustme.CA, files: Any
) -> None:
    context = tlsfiles.context(*files(None))
    with presenting(version, authority.issue_cert("127.0.0.1")) as upstream:
        assert exchange(loop, upstream.url, context).stage is Stage.BODY_COMPLETE
        assert exchange(loop, upstream.url, None) == NOT_SENT
    with presenting(version, trustme.CA().issue_cert("127.0.0.1")) as upstream:
        assert exchange(loop, upstream.url, context) == NOT_SENT
        assert upstream.count == 0


def test_another_name_is_refused(
    loop: str, version: ssl.TLSVersion, authority: trustme.CA, files: Any
) -> None:
    with presenting(version, authority.issue_cert("other.test", "127.0.0.2")) as upstream:
        assert exchange(loop, upstream.url, tlsfiles.context(*files(None))) == NOT_SENT
        assert upstream.count == 0


def test_an_expired_certificate_is_refused(
    loop: str, version: ssl.TLSVersion, authority: trustme.CA, files: Any
) -> None:
    past = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    expired = authority.issue_cert("127.0.0.1", not_before=past, not_after=past.replace(year=2021))
    with presenting(version, expired) as upstream:
        assert exchange(loop, upstream.url, tlsfiles.context(*files(None))) == NOT_SENT
        assert upstream.count == 0


def test_a_certificate_that_is_signed_by_itself_is_refused(
    loop: str, version: ssl.TLSVersion, authority: trustme.CA, files: Any, tmp_path: Path
) -> None:
    """Nobody vouches for it, whatever name is in it; trusted by name of its file it is."""
    key, pem = signed_by_itself()
    (tmp_path / "self.pem").write_bytes(key + pem)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "self.pem")
    server.minimum_version = server.maximum_version = version
    with RecordingUpstream(tls=server) as upstream:
        assert exchange(loop, upstream.url, tlsfiles.context(*files(None))) == NOT_SENT
        assert exchange(loop, upstream.url, None) == NOT_SENT
        assert upstream.count == 0
        (tmp_path / "trusted.pem").write_bytes(pem)
        trusting = tlsfiles.context(str(tmp_path / "trusted.pem"), None, None)
        assert exchange(loop, upstream.url, trusting).stage is Stage.BODY_COMPLETE


def signed_by_itself() -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name)
    made = made.public_key(key.public_key()).serial_number(7)
    made = made.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = made.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return secret, made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize("shown", ["localhost", "other.test"])
def test_the_name_that_is_asked_for_is_the_policys_and_is_verified(
    loop: str, version: ssl.TLSVersion, authority: trustme.CA, files: Any, shown: str
) -> None:
    """An upstream that holds certificates of several names shows the one that it is asked for; one
    that shows another is not it."""
    server = serving(authority.issue_cert("other.test"), version)
    asked: list[str | None] = []

    def choose(tls: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        asked.append(name)
        tls.context = serving(authority.issue_cert(shown), version)

    server.sni_callback = choose
    with RecordingUpstream(tls=server) as upstream:
        url = upstream.url.replace("127.0.0.1", "localhost")
        seen = exchange(loop, url, tlsfiles.context(*files(None)))
        assert set(asked) == {"localhost"}
        if shown == "localhost":
            assert seen.stage is Stage.BODY_COMPLETE
        else:
            assert seen == NOT_SENT
            assert upstream.count == 0


def test_the_environment_gets_no_keys_of_connections(
    loop: str,
    version: ssl.TLSVersion,
    authority: trustme.CA,
    files: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CLIENT-03: Python would write them to wherever a variable says."""
    log = tmp_path / "keys"
    server = serving(authority.issue_cert("127.0.0.1"), version)
    for place in (log, tmp_path / "nowhere" / "keys"):
        monkeypatch.setenv("SSLKEYLOGFILE", str(place))
        with RecordingUpstream(tls=server) as upstream:
            context = tlsfiles.context(*files(None))
            assert exchange(loop, upstream.url, context).stage is Stage.BODY_COMPLETE
            assert exchange(loop, upstream.url, None) == NOT_SENT
        assert not log.exists()


def test_nothing_in_a_policy_turns_verifying_off(authority: trustme.CA, files: Any) -> None:
    for context in (tlsfiles.context(*files(None)), tlsfiles.context(None, None, None)):
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_version_that_is_too_old_is_refused(loop: str, authority: trustme.CA, files: Any) -> None:
    server = serving(authority.issue_cert("127.0.0.1"), ssl.TLSVersion.TLSv1_2)
    with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
        server.minimum_version = server.maximum_version = ssl.TLSVersion.TLSv1_1
    with RecordingUpstream(tls=server) as upstream:
        assert exchange(loop, upstream.url, tlsfiles.context(*files(None))) == NOT_SENT


def test_the_gateway_presents_the_certificate_of_its_policy(
    postgres: Server, authority: trustme.CA, files: Any
) -> None:
    server = serving(authority.issue_cert("127.0.0.1"), ssl.TLSVersion.TLSv1_3, authority)
    ca, cert, key = files(authority.issue_cert("gateway.test"))
    head = f"ca_file = '{ca}'\nclient_cert_file = '{cert}'\nclient_key_file = '{key}'"
    with (
        RecordingUpstream(tls=server) as upstream,
        stack(postgres, lambda _: [policy(upstream.url, CAPTURE, head=head)]) as made,
    ):
        upstream.script = lambda _: respond(200, b"known")
        scene = made.scene()
        replies = [scene.send(), scene.caller.call("GET", "/pay/v1/report")]
        assert [reply.body for reply in replies] == [b"known", b"known"]
        assert [reply.outcome for reply in replies] == ["applied", "unguarded"]


def test_check_and_serve_name_the_file_the_field_and_the_mend(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.pem").write_text("no certificate", encoding="utf-8")
    text = policy("https://api.test", CAPTURE, head=f"client_cert_file = '{tmp_path}/bad.pem'")
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "pay.toml").write_text(text, encoding="utf-8")
    assert main(["check", "--policies", str(folder)]) == 1
    checked = capsys.readouterr().err
    ended = GatewayProcess(database, {"pay.toml": text}).refuses_to_start()
    assert ended.code != 0
    for said in (checked, ended.err):
        assert "pay.toml: client_cert_file: " in said
        assert "name a PEM file" in said
        assert "Traceback" not in said
