"""TLS on the ports of a broker, and in its clients: who is trusted, what is refused, and how it is said."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from websockets.sync.client import connect as connect_socket

import penstock
from penstock.access.tls import Files, ServerTls, peer_names, validity_of
from penstock.clock import Clock, ManualClock, SystemClock
from penstock.errors import BadRequest, BadSettings, InvalidField, PenstockError, TlsFailed, Unavailable
from penstock.server.tls_listener import TlsListener
from tests.support.broker_loop import on_uvloop
from tests.support.tls import SECONDS, Certificates, TlsBroker, handshake

TCP_AND_HTTP = ("tcp", "http")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory, certificates) -> Iterator[TlsBroker]:
    with TlsBroker(tmp_path_factory.mktemp("broker"), **certificates.server()) as running:
        yield running


# Each port, with a real client.


@pytest.mark.parametrize("protocol", TCP_AND_HTTP)
def test_a_blocking_client_pushes_and_leases(broker, certificates, protocol):
    with penstock.connect(broker.url(protocol), tls_ca=certificates.ca) as ps:
        queue = ps.queue(f"blocking-{protocol}")
        sent = [bytes([n]) * 40_000 for n in range(20)]
        queue.push_many(sent)
        for payload in (b"a", b"b"):
            queue.push(payload)

        received = [delivery.payload for delivery in queue.lease(max=100)]

    assert received == [*sent, b"a", b"b"]


@pytest.mark.parametrize("protocol", TCP_AND_HTTP)
def test_an_asyncio_client_pushes_and_leases(broker, certificates, protocol):
    async def work() -> list[bytes]:
        async with penstock.aio.connect(broker.url(protocol), tls_ca=certificates.ca) as ps:
            queue = ps.queue(f"asyncio-{protocol}")
            await ps.create_queue(queue.name)
            waiting = asyncio.create_task(queue.lease(max=1, wait=SECONDS))
            await asyncio.sleep(0)
            await asyncio.gather(*(queue.push(b"x" * n) for n in (1, 100_000, 3)))
            first = await waiting
            return [delivery.payload for delivery in [*first, *await queue.lease(max=10)]]

    assert sorted(map(len, asyncio.run(work()))) == [1, 3, 100_000]


@pytest.mark.parametrize("protocol", TCP_AND_HTTP)
def test_a_lease_that_is_given_up_releases_what_came_for_it(broker, certificates, protocol):
    async def work() -> bytes:
        async with penstock.aio.connect(broker.url(protocol), tls_ca=certificates.ca) as ps:
            queue = ps.queue(f"given-up-{protocol}")
            await ps.create_queue(queue.name)
            waiting = asyncio.create_task(queue.lease(max=1, wait=SECONDS))
            await queue.stats()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await queue.push(b"m")
            (delivery,) = await queue.lease(max=1, wait=SECONDS)
            assert delivery.attempt == 1
            return delivery.payload

    assert asyncio.run(work()) == b"m"


def test_plain_http_clients_and_websockets_work(broker, certificates):
    context = ssl.create_default_context(cafile=certificates.ca)
    with httpx.Client(verify=context, base_url=broker.url("http", "localhost")) as http:
        pushed = http.post("/api/v1/queues/web/messages", json={"messages": [{"payload": "hello"}]})
        again = http.get("/readyz")
        own_page = http.get("/api/v1/queues", headers={"origin": broker.url("http", "localhost")})
        other_page = http.get(
            "/api/v1/queues", headers={"origin": broker.url("http", "localhost").replace("https", "http")}
        )

    assert (pushed.status_code, again.json()["status"]) == (201, "ok")
    assert (own_page.status_code, other_page.status_code) == (200, 403)
    url = broker.url("http", "localhost").replace("https", "wss") + "/api/v1/stream"
    with connect_socket(url, ssl=context) as stream:
        assert stream.response is not None
        assert stream.response.status_code == 101


def test_the_certificate_expiry_is_a_metric(broker, certificates):
    context = ssl.create_default_context(cafile=certificates.ca)
    text = httpx.get(broker.url("http", "localhost") + "/metrics", verify=context).text

    value = next(line for line in text.splitlines() if line.startswith("penstock_tls_certificate_expiry_seconds"))
    assert 29 * 86_400 < float(value.split()[1]) <= 30 * 86_400


@pytest.mark.parametrize("protocol", TCP_AND_HTTP)
def test_a_client_that_stalls_before_the_handshake_is_cut_off(broker, protocol, monkeypatch):
    monkeypatch.setattr("penstock.server.tls_listener.HANDSHAKE_SECONDS", 0.2)
    for first in (b"", b"\x16\x03\x01"):
        with socket.create_connection(("127.0.0.1", broker.port(protocol)), timeout=SECONDS) as stalled:
            stalled.sendall(first)
            assert stalled.recv(100) == b""


# Versions.


@pytest.mark.parametrize("protocol", TCP_AND_HTTP)
def test_tls_1_2_is_refused_unless_it_is_asked_for(broker, certificates, tmp_path, protocol):
    older = {"maximum_version": ssl.TLSVersion.TLSv1_2}
    assert handshake(broker.port(protocol), certificates.ca)[0] == "TLSv1.3"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        handshake(broker.port(protocol), certificates.ca, **older)

    with TlsBroker(tmp_path, **certificates.server(), tls_minimum="1.2") as lenient:
        assert handshake(lenient.port(protocol), certificates.ca, **older)[0] == "TLSv1.2"


# What clients are told.


def connected(url: str, **options: Any) -> PenstockError:
    """The error of connecting, which must be the same for threads and for asyncio."""

    async def connect() -> None:
        async with penstock.aio.connect(url, **options):
            pass

    with pytest.raises(PenstockError) as blocking:
        penstock.connect(url, **options).close()
    with pytest.raises(PenstockError) as asynchronous:
        asyncio.run(connect())
    assert type(blocking.value) is type(asynchronous.value)
    return blocking.value


@pytest.mark.parametrize("protocol", TCP_AND_HTTP)
def test_a_certificate_that_is_not_trusted_says_to_pass_tls_ca(broker, protocol):
    error = connected(broker.url(protocol), connect_seconds=SECONDS)

    assert isinstance(error, TlsFailed)
    assert error.message.startswith("certificate not trusted")
    assert "tls_ca" in error.hint


@pytest.mark.parametrize("protocol", TCP_AND_HTTP)
def test_a_certificate_for_another_host_is_a_hostname_mismatch(certificates, tmp_path, protocol):
    with TlsBroker(tmp_path, **certificates.server("queue.example.org", file="elsewhere")) as broker:
        error = connected(broker.url(protocol), tls_ca=certificates.ca, connect_seconds=SECONDS)

    assert isinstance(error, TlsFailed)
    assert error.message.startswith("hostname mismatch")
    assert "127.0.0.1" in error.message


@pytest.mark.parametrize(("protocol", "scheme"), [("tcp", "penstocks"), ("http", "https")])
def test_a_client_without_tls_is_told_to_use_it(broker, protocol, scheme):
    plain = broker.url(protocol).replace(scheme, scheme.removesuffix("s"))
    error = connected(plain, connect_seconds=1.0)

    assert isinstance(error, BadRequest)
    assert error.message == "this port requires TLS"
    assert error.hint == f"use a URL that starts with {scheme}://"


@pytest.mark.parametrize("protocol", TCP_AND_HTTP)
def test_a_client_with_tls_is_told_that_the_broker_speaks_none(tmp_path, protocol):
    with TlsBroker(tmp_path) as broker:
        error = connected(broker.url(protocol), connect_seconds=SECONDS)

    assert isinstance(error, TlsFailed)
    assert "does not use TLS" in error.message
    assert error.hint in ("use a URL that starts with penstock://", "use a URL that starts with http://")


@pytest.mark.parametrize("scheme", ["penstocks", "https"])
def test_nobody_there_is_unavailable_as_without_tls(scheme):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"{scheme}://127.0.0.1:{taken.getsockname()[1]}"
    error = connected(url, connect_seconds=0.1)

    assert type(error) is Unavailable


def test_files_that_cannot_be_used_name_their_option(broker, certificates, tmp_path):
    (tmp_path / "empty.pem").write_text("nothing")
    url = broker.url("tcp")

    assert connected(url, tls_ca=str(tmp_path / "none.pem")).message.startswith("tls_ca: ")
    assert connected(url, tls_ca=str(tmp_path / "empty.pem")).message.startswith("tls_ca: ")
    mixed = {"tls_certificate": certificates.ca, "tls_key": certificates.client()["tls_key"]}
    assert connected(url, **mixed).message.startswith("tls_certificate, tls_key: ")
    with pytest.raises(InvalidField, match="no effect without tls_certificate"):
        penstock.connect(url, tls_key="client.key")
    with pytest.raises(InvalidField, match="does not use TLS"):
        penstock.connect("penstock://localhost", tls_ca=certificates.ca)


def test_the_files_may_be_in_the_url_or_in_the_environment(broker, certificates, monkeypatch):
    with penstock.connect(f"{broker.url('tcp')}?tls_ca={certificates.ca}") as ps:
        assert ps.queue("named").push(b"x") is not None
    monkeypatch.setenv("PENSTOCK_TLS_CA", certificates.ca)
    with penstock.connect(broker.url("http")) as ps:
        assert ps.queue("named").stats().messages == 1
    for url in ("penstock://h?tls_ca=x", "penstocks://h?verify=no", "https://h/path?tls_ca=x", "penstocks://h?tls_ca"):
        with pytest.raises(InvalidField, match="is not the URL of a broker"):
            penstock.connect(url)


# Certificates of clients.


@pytest.mark.parametrize("protocol", TCP_AND_HTTP)
def test_a_required_certificate_is_asked_of_everybody(certificates, tmp_path, protocol):
    stranger = Certificates(tmp_path / "stranger").client()
    settings = certificates.server() | {"tls_client_ca": certificates.ca, "tls_client": "required"}
    with TlsBroker(tmp_path, **settings) as broker:
        with penstock.connect(broker.url(protocol), **certificates.client()) as ps:
            ps.queue("mutual").push(b"x")
        without = connected(broker.url(protocol), tls_ca=certificates.ca, connect_seconds=1.0)
        unknown = connected(broker.url(protocol), **stranger | {"tls_ca": certificates.ca}, connect_seconds=1.0)

    for error in (without, unknown):
        assert isinstance(error, Unavailable)
        assert "tls_certificate" in error.hint


@on_uvloop
async def test_the_names_of_an_optional_certificate_are_known_and_nobody_needs_one(certificates):
    seen: asyncio.Queue[tuple[str, ...]] = asyncio.Queue()

    class Looking(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            seen.put_nowait(peer_names(transport))

    names = ("billing", "ops@example.org", "spiffe://example.org/billing", "10.0.0.7")
    files = certificates.server()
    tls = ServerTls(Files(files["tls_certificate"], files["tls_key"], certificates.ca), SystemClock())
    listener = TlsListener(asyncio.get_running_loop(), tls, Looking, 10, b"")
    await listener.listen("127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    for options in (certificates.client(*names, file="named"), None):
        context = ssl.create_default_context(cafile=certificates.ca)
        if options is not None:
            context.load_cert_chain(options["tls_certificate"], options["tls_key"])
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        assert await seen.get() == (names[:3] if options else ())
        writer.close()
    listener.close()


@on_uvloop
async def test_who_finishes_no_handshake_keeps_no_other_address_out(certificates):
    files = certificates.server()
    tls = ServerTls(Files(files["tls_certificate"], files["tls_key"]), SystemClock())
    listener = TlsListener(asyncio.get_running_loop(), tls, asyncio.Protocol, 4, b"")
    await listener.listen("127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]

    stalled = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
    assert await stalled[4][0].read() == b"", "one too many"
    context = ssl.create_default_context(cafile=certificates.ca)
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, local_addr=("127.0.0.2", 0))

    for _, open_writer in (*stalled, (None, writer)):
        open_writer.close()
    await listener.wait_closed()
    assert listener._budget.total == 0
    listener.close()


# What a broker refuses to start with.


def refused(
    certificates: Certificates, changes: dict[str, str] | None = None, clock: Clock | None = None
) -> BadSettings:
    files = certificates.server(file="refused") | {"tls_client_ca": ""} | (changes or {})
    with pytest.raises(BadSettings) as caught:
        ServerTls(Files(files["tls_certificate"], files["tls_key"], files["tls_client_ca"]), clock or SystemClock())
    return caught.value


def test_files_that_cannot_be_used_are_named_with_their_setting(certificates, tmp_path):
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("nothing")
    nothing.chmod(0o600)

    for setting in ("tls_certificate", "tls_key", "tls_client_ca"):
        error = refused(certificates, {setting: str(tmp_path / "none")})
        assert error.message == f"{setting}: there is no file {tmp_path / 'none'}"
        assert setting in refused(certificates, {setting: str(nothing)}).message
        assert refused(certificates, {setting: str(tmp_path)}).message.startswith(f"{setting}: {tmp_path} cannot be")


def test_a_key_of_another_certificate_is_refused(certificates):
    error = refused(certificates, {"tls_key": certificates.server(file="other")["tls_key"]})

    assert "is not the key of the certificate" in error.message


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_password(certificates, tmp_path):
    key = serialization.load_pem_private_key(Path(certificates.server()["tls_key"]).read_bytes(), None)
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    encrypted.chmod(0o600)

    assert "is encrypted" in refused(certificates, {"tls_key": str(encrypted)}).message


@pytest.mark.parametrize(("mode", "is_refused"), [(0o604, True), (0o602, True), (0o640, False), (0o400, False)])
def test_a_key_that_others_can_read_is_refused(certificates, mode, is_refused):
    files = certificates.server(file="exposed")
    Path(files["tls_key"]).chmod(mode)

    if is_refused:
        error = refused(certificates, files)
        assert "other users can read or change" in error.message
        assert "chmod 600" in error.hint
    else:
        ServerTls(Files(*files.values()), SystemClock())


def test_a_certificate_that_is_not_valid_now_is_refused(certificates):
    clock = ManualClock()
    clock.advance(seconds=SystemClock().now() / 1e6 - clock.now() / 1e6 + 31 * 86_400)
    assert "expired on" in refused(certificates, clock=clock).message

    clock = ManualClock()
    assert clock.now() < SystemClock().now()
    assert "is not valid before" in refused(certificates, clock=clock).message


def test_a_certificate_that_is_about_to_expire_is_a_problem_to_look_at(certificates):
    clock = ManualClock()
    clock.advance(seconds=(SystemClock().now() - clock.now()) / 1e6)
    tls = ServerTls(Files(*certificates.server(file="ending").values()), clock)

    assert [*tls.problems()] == []
    clock.advance(seconds=28 * 86_400)
    assert "expires on" in next(tls.problems())
    clock.advance(seconds=3 * 86_400)
    assert "expired on" in next(tls.problems())


def test_validity_is_read_as_a_library_reads_it(certificates):
    for days in (1, 3000, 9000):  # after 2049 the times are written otherwise
        path = certificates.server(days=days, file="dated")["tls_certificate"]
        known = x509.load_pem_x509_certificate(Path(path).read_bytes())

        validity = validity_of(Path(path).read_bytes())

        assert validity.start == known.not_valid_before_utc.timestamp() * 1e6
        assert validity.end == known.not_valid_after_utc.timestamp() * 1e6


# New certificates.


def serial(port: int, ca: str) -> str:
    return str(handshake(port, ca)[1]["serialNumber"])


def test_new_certificates_are_taken_while_pushes_go_on(certificates, tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.server.serve.RELOAD_SECONDS", 0.05)
    files = certificates.server(file="renewed")
    is_over = threading.Event()
    pushed: list[int] = []

    def push(url: str) -> None:
        with penstock.connect(url, tls_ca=certificates.ca) as ps:
            count = 0
            while not is_over.is_set():
                ps.queue("going-on").push(b"x")
                count += 1
            pushed.append(count)

    with TlsBroker(tmp_path, **files) as broker, ThreadPoolExecutor(2) as threads:
        work = [threads.submit(push, broker.url(protocol)) for protocol in TCP_AND_HTTP]
        try:
            for _ in range(3):
                before = serial(broker.port("tcp"), certificates.ca)
                certificates.server(file="renewed")
                wait_until(lambda: serial(broker.port("tcp"), certificates.ca) != before)  # noqa: B023 - called at once
                assert serial(broker.port("http"), certificates.ca) == serial(broker.port("tcp"), certificates.ca)
        finally:
            is_over.set()
        for done in work:
            done.result(SECONDS)
        with penstock.connect(broker.url("tcp"), tls_ca=certificates.ca) as ps:
            assert ps.queue("going-on").stats().messages == sum(pushed) > 0


def test_a_reload_that_fails_keeps_the_old_certificate_and_says_so(certificates, tmp_path, caplog):
    files = certificates.server(file="broken")
    with TlsBroker(tmp_path, **files) as broker:
        before = serial(broker.port("tcp"), certificates.ca)
        good = Path(files["tls_certificate"]).read_bytes()
        Path(files["tls_certificate"]).write_bytes(good[: len(good) // 2])
        broker.loop.call_soon_threadsafe(broker.server.reload)
        context = ssl.create_default_context(cafile=certificates.ca)
        wait_until(lambda: "the certificate was not reloaded" in caplog.text)

        ready = httpx.get(broker.url("http", "localhost") + "/readyz", verify=context).json()
        assert serial(broker.port("tcp"), certificates.ca) == before
        assert ready["status"] == "degraded"
        assert "tls_certificate" in ready["problems"][0]

        certificates.server(file="broken")
        broker.loop.call_soon_threadsafe(broker.server.reload)
        wait_until(lambda: serial(broker.port("tcp"), certificates.ca) != before)
        assert httpx.get(broker.url("http", "localhost") + "/readyz", verify=context).json()["status"] == "ok"


def wait_until(holds: Callable[[], bool]) -> None:
    tick = threading.Event()
    for _ in range(SECONDS * 50):
        if holds():
            return
        tick.wait(0.02)
    raise AssertionError("it did not come to that")
