"""TLS in front and to workers, with certificates made here and clients that are not ours."""

from __future__ import annotations

import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import trustme

from tests.support import MakeWorkers, Serve, Served

CHAT = {"model": "mock", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


class Identity:
    """A certificate and its key, as files."""

    def __init__(self, directory: Path, ca: trustme.CA, name: str) -> None:
        directory.mkdir(exist_ok=True)
        self.cert, self.key = directory / f"{name}.pem", directory / f"{name}.key"
        self.renew(ca)

    def renew(self, ca: trustme.CA) -> None:
        """Put a new certificate in its place."""
        made = ca.issue_cert("127.0.0.1", "localhost")
        self.key.write_bytes(made.private_key_pem.bytes())
        self.cert.write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))

    def flags(self, of: str) -> list[str]:
        """Return the flags that set it for `of`: "tls" or "worker-tls"."""
        return [f"--{of}-cert", str(self.cert), f"--{of}-key", str(self.key)]


class Authority:
    """A certificate authority, its own certificate as a file, and the identity that it gave to the gateway."""

    def __init__(self, directory: Path) -> None:
        self.ca, self.file, self._directory = trustme.CA(), directory / "ca.pem", directory
        self.ca.cert_pem.write_to_path(self.file)
        self.server = self.issue("server")

    def issue(self, name: str) -> Identity:
        """Give somebody a certificate."""
        return Identity(self._directory / name, self.ca, name)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def trusting(ca: trustme.CA, client: Identity | None = None) -> ssl.SSLContext:
    """Return a client's context."""
    context = ssl.create_default_context()
    ca.configure_trust(context)
    if client is not None:
        context.load_cert_chain(client.cert, client.key)
    return context


def client_of(served: Served, context: ssl.SSLContext, *, http2: bool) -> httpx2.Client:
    return httpx2.Client(base_url=served.url, verify=context, http2=http2, timeout=30, trust_env=False)


def serial(served: Served, context: ssl.SSLContext) -> str:
    """Return the serial number of the certificate that a new connection gets."""
    with (
        socket.create_connection(("127.0.0.1", served.port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        found = secured.getpeercert()
        assert found is not None
        return str(found["serialNumber"])


@pytest.mark.parametrize(("http2", "version"), [(True, "HTTP/2"), (False, "HTTP/1.1")])
def test_a_client_chooses_its_protocol(
    serve: Serve, make_workers: MakeWorkers, authority: Authority, *, http2: bool, version: str
) -> None:
    served = serve(make_workers(2), *authority.server.flags("tls"))
    assert served.url.startswith("https://127.0.0.1:")
    with client_of(served, trusting(authority.ca), http2=http2) as client:
        for number in range(5):
            answer = client.post("/v1/chat/completions", json=CHAT | {"n": 1, "user": str(number)})
            assert (answer.status_code, answer.http_version) == (200, version)
            assert answer.headers["x-trunkline-worker"]
        with client.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True}) as answer:
            assert answer.read().endswith(b"data: [DONE]\n\n")
        assert client.post("/v1/completions", content=b"x" * 3_000_000).status_code < 500


def test_plain_text_is_not_answered_where_tls_is_set(
    serve: Serve, make_workers: MakeWorkers, authority: Authority
) -> None:
    served = serve(make_workers(1), *authority.server.flags("tls"))
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as plain:
        plain.sendall(b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n")
        assert b"HTTP/" not in plain.recv(1000)
    with pytest.raises(ssl.SSLError):
        serial(served, trusting(trustme.CA()))
    assert served.metric("trunkline_tls_handshake_failures_total") == 2
    assert serial(served, trusting(authority.ca))


@pytest.mark.parametrize("http2", [True, False])
def test_clients_show_a_certificate_where_one_is_wanted(
    serve: Serve,
    make_workers: MakeWorkers,
    authority: Authority,
    tmp_path: Path,
    *,
    http2: bool,
) -> None:
    served = serve(make_workers(1), *authority.server.flags("tls"), "--tls-client-ca", str(authority.file))
    ours, strange = authority.issue("ours"), Identity(tmp_path / "strange", trustme.CA(), "a")
    for shown in (None, strange):
        with (
            client_of(served, trusting(authority.ca, shown), http2=http2) as client,
            pytest.raises((httpx2.TransportError, ssl.SSLError)),
        ):
            client.get("/v1/models")
    with client_of(served, trusting(authority.ca, ours), http2=http2) as client:
        assert client.get("/v1/models").status_code == 200


@pytest.mark.parametrize("protocol", ["http1", "h2"])
def test_workers_behind_tls_that_want_our_certificate(
    serve: Serve,
    make_workers: MakeWorkers,
    authority: Authority,
    protocol: str,
) -> None:
    [worker] = make_workers(1)
    # A gateway is a worker with TLS, client certificates and both protocols.
    inner = serve([worker], *authority.server.flags("tls"), "--tls-client-ca", str(authority.file))
    ours = authority.issue("ours")
    trust = ("--worker-tls-ca", str(authority.file), "--worker-protocol", protocol)
    outer = serve([f"HTTPS://127.0.0.1:{inner.port}/"], *ours.flags("worker-tls"), *trust)
    for number in range(10):
        reply = outer.chat("hello", user=str(number))
        assert (reply.status, reply.headers["x-trunkline-worker"]) == (200, inner.url)
    assert worker.stats().requests == 10
    state = outer.call("GET", "/admin/workers", admin=True).json()["workers"]
    assert [(row["url"], row["healthy"], row["in_flight"]) for row in state] == [(inner.url, True, 0)]

    for flags in (trust, (*ours.flags("worker-tls"), "--worker-protocol", protocol)):
        # Without our certificate, and without trust in theirs.
        refused = serve([inner.url], *flags).chat("hello")
        assert refused.status in (502, 503)
        assert refused.json()["error"]["message"]
    assert worker.stats().requests == 10


@pytest.fixture
def listener(authority: Authority) -> Iterator[tuple[int, list[str | None]]]:
    """Take TLS handshakes only; the protocols that were agreed upon."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.server.cert, authority.server.key)
    context.set_alpn_protocols(["h2", "http/1.1"])
    agreed: list[str | None] = []

    def accept(server: socket.socket) -> None:
        while True:
            try:
                plain, _ = server.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(plain, server_side=True) as secured:
                    agreed.append(secured.selected_alpn_protocol())
            except OSError:
                plain.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept, args=(server,))
        thread.start()
        yield server.getsockname()[1], agreed
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


@pytest.mark.parametrize(("protocol", "wanted"), [("http1", "http/1.1"), ("h2", "h2")])
def test_a_worker_is_asked_for_the_protocol_of_the_setting(
    serve: Serve, listener: tuple[int, list[str | None]], authority: Authority, protocol: str, wanted: str
) -> None:
    port, agreed = listener
    served = serve([f"https://localhost:{port}"], "--worker-tls-ca", str(authority.file), "--worker-protocol", protocol)
    assert served.chat("hello").status in (502, 503)
    assert set(agreed) == {wanted}


def test_a_renewed_certificate_is_used_and_no_connection_is_dropped(
    serve: Serve, make_workers: MakeWorkers, authority: Authority
) -> None:
    served = serve(make_workers(1, time_scale=1.0), *authority.server.flags("tls"))
    context = trusting(authority.ca)
    before = serial(served, context)
    request = CHAT | {"stream": True, "max_tokens": 40}
    for http2 in (True, False):
        with (
            client_of(served, context, http2=http2) as client,
            client.stream("POST", "/v1/chat/completions", json=request) as answer,
        ):
            pieces = answer.iter_bytes()
            begun = next(pieces)
            authority.server.renew(authority.ca)
            served.log.clear()
            served.signal(signal.SIGHUP)
            served.wait_for_log("reloaded")
            assert serial(served, context) != before
            assert (begun + b"".join(pieces)).endswith(b"data: [DONE]\n\n")
            before = serial(served, context)


def test_a_bad_certificate_is_refused_and_the_old_one_stays(
    serve: Serve, make_workers: MakeWorkers, authority: Authority
) -> None:
    served = serve(make_workers(1), *authority.server.flags("tls"))
    context = trusting(authority.ca)
    before = serial(served, context)
    for text in ("", "-----BEGIN CERTIFICATE-----\nno\n", trustme.CA().cert_pem.bytes().decode()):
        served.log.clear()
        authority.server.cert.write_text(text)
        served.signal(signal.SIGHUP)
        line = served.wait_for_log("reload refused")
        assert "tls_cert" in line or "tls_key" in line
        assert serial(served, context) == before
    assert served.metric('trunkline_config_reloads_total{result="refused"}') >= 3
    authority.server.renew(authority.ca)
    served.signal(signal.SIGHUP)
    served.wait_for_log("reloaded")
    assert serial(served, context) != before
