"""https: a certificate that is trusted works, one that is not is a connection failure; proxies are opt-in."""

from __future__ import annotations

import datetime
import ipaddress
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from reward.utils.routes import parse_server
from tests.judge.samples import record, vqa


@pytest.fixture
def certificate(tmp_path):
    """Path of a self-signed certificate for 127.0.0.1, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test judge")])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "cert.pem"
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(built.public_bytes(serialization.Encoding.PEM) + pem)
    return str(path)


@pytest.fixture
def https_server(make_server, certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return make_server(tls=context)


async def test_trusted_certificate(https_server, make_client, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", certificate)
    outcome = await make_client(parse_server(https_server.url, "test")).judge(vqa(1))
    assert outcome.decision == "scored" and record(outcome)["server"] == https_server.address


async def test_untrusted_certificate(https_server, make_client, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    outcome = await make_client(parse_server(https_server.url, "test"), deadline_s=0.5).judge(vqa(1))
    assert outcome.decision == "judge_unavailable" and https_server.counts["chat"] == 0
    assert "certificate" in record(outcome)["error"].lower()


@pytest.mark.parametrize("use_proxy, decision", [(False, "scored"), (True, "judge_unavailable")])
async def test_proxy_of_the_environment_is_used_only_when_asked(
    make_server, make_client, monkeypatch, use_proxy, decision
):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    outcome = await make_client(make_server(), use_proxy=use_proxy, deadline_s=2.0).judge(vqa(1))
    assert outcome.decision == decision
