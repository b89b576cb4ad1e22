"""TLS and mTLS on both ports, over real connections."""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
import ssl
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import grpc
import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from omruntime.errors import CallError, ConfigError, RequestError
from server.client import AsyncClient, Client
from server.client.messages import tls_hint
from server.client.security import ClientSecurity
from server.security import tls
from server.security.tls import CertificateNews, ServerTls, TlsFiles
from server.settings import Settings
from tests.server.certificates import Authority, Certificate
from tests.server.wire_fakes import FakeServer, settings_of


@dataclass
class Files:
    """The server's files, and the authority that made them."""

    authority: Authority
    cert: Path
    key: Path
    client_ca: Path

    def install(self, pair: Certificate) -> None:
        shutil.copy(pair.cert, self.cert)
        shutil.copy(pair.key, self.key)

    def settings(self, demand_clients: bool = False) -> Settings:
        return settings_of(
            http_port=0,
            tls_cert=self.cert,
            tls_key=self.key,
            tls_client_ca=self.client_ca if demand_clients else None,
        )


@pytest.fixture
def files(tmp_path: Path) -> Files:
    authority = Authority(tmp_path / "made")
    found = Files(authority, *(tmp_path / name for name in ("cert.pem", "key.pem", "ca.pem")))
    found.install(authority.sign("server"))
    shutil.copy(authority.path, found.client_ca)
    return found


def security(authority: Authority, pair: Certificate | None = None) -> ClientSecurity:
    if pair is None:
        return ClientSecurity(tls_ca=authority.path)
    return ClientSecurity(tls_ca=authority.path, tls_cert=pair.cert, tls_key=pair.key)


def ask_grpc(server: FakeServer, given: ClientSecurity) -> str:
    """The answer, or the code of the failure."""
    try:
        with Client(f"localhost:{server.port}", given) as client:
            return client.generate("x").answers[0].text
    except CallError as error:
        return error.code


def ask_http(server: FakeServer, given: ClientSecurity) -> str:
    assert given.tls_ca is not None
    context = ssl.create_default_context(cafile=str(given.tls_ca))
    if given.tls_cert is not None:
        context.load_cert_chain(given.tls_cert, given.tls_key)
    try:
        reply = httpx.post(
            f"{server.url}/v1/completions", json={"prompt": "x"}, verify=context, trust_env=False
        )
    except httpx.TransportError:
        return "UNAVAILABLE"
    return str(reply.json()["choices"][0]["text"])


def ask_both(server: FakeServer, given: ClientSecurity) -> tuple[str, str]:
    return ask_grpc(server, given), ask_http(server, given)


SERVED = ("Hi!", "Hi!")
REFUSED = ("UNAVAILABLE", "UNAVAILABLE")


def test_both_ports_speak_tls_and_nothing_else(files: Files) -> None:
    with FakeServer(files.settings()) as server:
        assert ask_both(server, security(files.authority)) == SERVED
        assert ask_grpc(server, ClientSecurity()) == "UNAVAILABLE"
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://localhost:{server.http_port}/health", trust_env=False)


CLOSED = (
    "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:7: Socket closed"
)
REFUSED_V6 = (
    "failed to connect to all addresses; last error: UNKNOWN: ipv6:%5B::1%5D:7: "
    "Failed to connect to remote host: connect: Connection refused (111)"
)
REFUSED_V4 = (
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:7: "
    "Failed to connect to remote host: Connection refused"
)


@pytest.mark.parametrize(
    ("details", "target", "hints"),
    [
        (CLOSED, "localhost:7", True),
        (CLOSED, "127.0.0.1:7", True),
        (REFUSED_V6, "localhost:7", True),
        (REFUSED_V4, "dns:localhost:7", True),
        (REFUSED_V6, "[::1]:7", False),
        (REFUSED_V6, "ipv6:[::1]:7", False),
        (REFUSED_V4, "127.0.0.1:7", False),
        (REFUSED_V4, "ipv4:127.0.0.1:7", False),
        ("errors resolving nohost:7: Domain name not found", "nohost:7", False),
    ],
)
def test_tls_is_hinted_at_whenever_an_address_may_have_answered_so(
    details: str, target: str, hints: bool
) -> None:
    """gRPC names one address of a name's: which one depends on the machine and on chance."""
    assert bool(re.search(r"if the server uses TLS.*--tls-ca", tls_hint(details, target))) is hints


def test_tls_is_hinted_at_by_a_call_without_it(files: Files) -> None:
    with FakeServer(files.settings()) as server:
        for target in (f"localhost:{server.port}", f"127.0.0.1:{server.port}"):
            with (
                Client(target) as client,
                pytest.raises(CallError, match=r"no server answers.*if the server uses TLS"),
            ):
                client.generate("x")


def test_a_call_to_what_speaks_otherwise_says_what_it_speaks(files: Files) -> None:
    def answer(port: int, given: ClientSecurity) -> str:
        with Client(f"localhost:{port}", given) as client, pytest.raises(CallError) as caught:
            client.generate("x")
        return str(caught.value)

    trusting = security(files.authority)
    with FakeServer(settings_of(http_port=0)) as plain:
        assert "this speaks HTTP" in answer(plain.http_port, ClientSecurity())
        assert "the server uses no TLS" in answer(plain.port, trusting)
    with FakeServer(files.settings()) as server:
        assert "this speaks HTTP" in answer(server.http_port, trusting)


def test_a_server_of_another_authority_is_refused_by_clients(files: Files, tmp_path: Path) -> None:
    with FakeServer(files.settings()) as server:
        assert ask_both(server, security(Authority(tmp_path / "other"))) == REFUSED


def test_an_expired_certificate_is_refused_by_clients(files: Files) -> None:
    files.install(files.authority.sign("late", lives=-timedelta(days=1)))
    with FakeServer(files.settings()) as server:
        assert ask_both(server, security(files.authority)) == REFUSED


def test_mtls_wants_a_client_certificate_of_its_authority(files: Files, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "other").sign("stranger")
    late = files.authority.sign("late", lives=-timedelta(days=1))
    with FakeServer(files.settings(demand_clients=True)) as server:
        assert ask_both(server, security(files.authority, files.authority.sign("me"))) == SERVED
        for pair in (None, stranger, late):
            assert ask_both(server, security(files.authority, pair)) == REFUSED


def test_a_swapped_certificate_is_shown_to_new_connections(files: Files, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    with (
        FakeServer(files.settings()) as server,
        Client(f"localhost:{server.port}", security(files.authority)) as old,
    ):
        assert old.generate("x").answers[0].text == "Hi!"
        files.install(other.sign("server-2"))
        assert ask_both(server, security(other)) == SERVED
        assert ask_both(server, security(files.authority)) == REFUSED
        assert old.generate("x").answers[0].text == "Hi!", "an open connection was dropped"


def test_a_client_waits_for_a_slow_handshake(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one over half of the world, which takes three ways there and back."""
    monkeypatch.setattr(tls, "SETTLE_S", 0.3)
    with FakeServer(files.settings()) as server:
        files.install(files.authority.sign("server-2"))
        assert ask_grpc(server, security(files.authority)) == "Hi!"


def test_grpc_is_told_of_a_certificate_once() -> None:
    """It frees what it has for each one it is told, under other threads: the process ends."""
    first, second = (grpc.ssl_server_certificate_configuration([(b"key", b"cert")]) for _ in "12")
    current = [first]
    news = CertificateNews(first, lambda: current[0])
    assert news.next() is None
    current = [second]
    assert news.next() is second
    assert news.next() is None


def test_swapped_roots_of_clients_count_for_new_connections(files: Files, tmp_path: Path) -> None:
    """Roots that were taken away must not go on counting."""
    other = Authority(tmp_path / "other")
    mine, theirs = files.authority.sign("me"), other.sign("them")
    with FakeServer(files.settings(demand_clients=True)) as server:
        assert ask_both(server, security(files.authority, mine)) == SERVED
        shutil.copy(other.path, files.client_ca)
        assert ask_both(server, security(files.authority, theirs)) == SERVED
        assert ask_both(server, security(files.authority, mine)) == REFUSED


def test_a_damaged_new_certificate_keeps_the_old_one(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    with FakeServer(files.settings()) as server:
        files.cert.write_text("junk")
        assert ask_both(server, security(files.authority)) == SERVED
        files.cert.unlink()
        assert ask_both(server, security(files.authority)) == SERVED
        # As while two files are replaced one after the other.
        shutil.copy(files.authority.sign("server-2").cert, files.cert)
        assert ask_both(server, security(files.authority)) == SERVED
    errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 3
    assert all("the old ones stay" in error for error in errors)


def test_the_async_client_speaks_tls_by_another_name(files: Files) -> None:
    async def run(port: int) -> str:
        given = ClientSecurity(tls_ca=str(files.authority.path), tls_server_name="localhost")
        async with AsyncClient(f"ipv4:127.0.0.1:{port}", given) as client:
            await client.wait_ready(10)
            return (await client.generate("x")).answers[0].text

    with FakeServer(files.settings()) as server:
        assert asyncio.run(run(server.port)) == "Hi!"


@pytest.mark.parametrize("name", ["cert", "key", "client_ca"])
@pytest.mark.parametrize("content", [None, b"", b"junk"])
def test_damaged_files_are_refused_at_start(files: Files, name: str, content: bytes | None) -> None:
    path = getattr(files, name)
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        ServerTls(TlsFiles(files.cert, files.key, files.client_ca))
    assert str(path) in str(caught.value)


def test_a_key_of_another_certificate_is_refused_at_start(files: Files) -> None:
    shutil.copy(files.authority.sign("server-2").key, files.key)
    with pytest.raises(ConfigError, match=r"(?i)key.values.mismatch"):
        ServerTls(TlsFiles(files.cert, files.key))


def test_a_key_with_a_passphrase_is_refused_and_not_asked_for(files: Files) -> None:
    key = load_pem_private_key(files.key.read_bytes(), None)
    files.key.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x"))
    )
    with pytest.raises(ConfigError, match="passphrase"):
        ServerTls(TlsFiles(files.cert, files.key))


@pytest.mark.parametrize(
    ("curve", "name"), [(Ed25519PrivateKey, "Ed25519"), (Ed448PrivateKey, "Ed448")]
)
def test_a_key_that_grpc_cannot_use_is_refused_at_start(
    files: Files, curve: type[Ed25519PrivateKey] | type[Ed448PrivateKey], name: str
) -> None:
    files.key.write_bytes(
        curve.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    with pytest.raises(ConfigError, match=rf"is an {name} key.*ECDSA"):
        ServerTls(TlsFiles(files.cert, files.key))


def test_roots_may_be_named_in_any_script_and_are_never_der(files: Files) -> None:
    pem = files.client_ca.read_bytes()
    files.client_ca.write_bytes("Főtanúsítvány\n".encode() + pem)
    ServerTls(TlsFiles(files.cert, files.key, files.client_ca))
    files.client_ca.write_bytes(ssl.PEM_cert_to_DER_cert(pem.decode()))
    with pytest.raises(ConfigError, match=r"tls_client_ca .* wanted PEM certificates"):
        ServerTls(TlsFiles(files.cert, files.key, files.client_ca))


def test_files_that_a_client_cannot_use_are_refused_before_it_connects(files: Files) -> None:
    pair, other = files.authority.sign("one"), files.authority.sign("two")
    with pytest.raises(RequestError, match=r"tls_ca .*one\.key cannot be used.*wanted PEM"):
        Client("localhost:1", ClientSecurity(tls_ca=pair.key))
    mixed = ClientSecurity(tls_ca=files.authority.path, tls_cert=pair.cert, tls_key=other.key)
    with pytest.raises(RequestError, match=r"(?i)tls_key .*two\.key cannot.*values.mismatch"):
        Client("localhost:1", mixed)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tls_ca": Path("a"), "tls_cert": Path("c")}, "belong together"),
        ({"tls_cert": Path("c"), "tls_key": Path("k")}, "need tls_ca"),
        ({"tls_server_name": "n"}, "need tls_ca"),
        ({"api_key": ""}, "has 0 characters"),
        ({"api_key": "a b"}, "visible ASCII"),
        ({"api_key": "schlüssel\n"}, "visible ASCII"),
    ],
)
def test_parts_of_a_clients_security_go_together(given: dict[str, object], words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        ClientSecurity(**given)  # type: ignore[arg-type]
    assert not given.get("api_key") or str(given["api_key"]) not in str(caught.value)


def test_a_clients_key_is_not_shown_by_repr() -> None:
    assert "secret" not in repr(ClientSecurity(api_key="secret"))


def test_a_missing_file_of_a_client_is_named() -> None:
    with pytest.raises(RequestError, match=r"cannot read absent\.pem"):
        Client("localhost:1", ClientSecurity(tls_ca=Path("absent.pem")))
