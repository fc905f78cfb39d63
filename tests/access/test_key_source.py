"""Where keys come from: files that change, URLs that misbehave, and a reader that nobody waits for."""

from __future__ import annotations

import datetime as dt
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from penstock.access import token_keys
from penstock.access.token_keys import KEYS_BYTES_MAX, RETRY_SECONDS, URL_SECONDS, KeySource, fetch, open_keys
from penstock.clock import Clock, ManualClock, SystemClock
from penstock.errors import BadSettings, InvalidField
from tests.support.issuer import SECRET, encoded, jwk, key_set

GOOD, NEWER = key_set(jwk("RS256")), key_set(jwk("RS256"), jwk("ES256"))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


class Place:
    """What a source reads; an error is raised."""

    def __init__(self, content: bytes | Exception = GOOD) -> None:
        self.content = content
        self.readings = 0

    def __call__(self) -> token_keys.TokenKeysText:
        self.readings += 1
        if isinstance(self.content, Exception):
            raise self.content
        return self.content, lambda keys: None


# Keeping keys up to date.


def test_new_keys_replace_the_old_ones_and_the_same_ones_stay_the_same_object(clock):
    place = Place()
    source = KeySource("there", place, clock, URL_SECONDS)
    assert source.tick() == URL_SECONDS
    first = source.keys
    source.tick()
    assert source.keys is first

    place.content = NEWER
    source.tick()

    assert (len(first), len(source.keys)) == (1, 2)


@pytest.mark.parametrize("trouble", [InvalidField("down"), b"<html>", b'{"keys": []}', key_set(jwk("RS256-short"))])
def test_a_failure_keeps_the_old_keys_says_why_and_is_tried_again_soon(clock, trouble):
    place = Place()
    source = KeySource("there", place, clock, URL_SECONDS)
    source.tick()
    keys, refreshed_at = source.keys, source.refreshed_at
    clock.advance(seconds=600)

    place.content = trouble
    assert source.tick() == RETRY_SECONDS

    assert source.keys is keys
    assert source.last_error
    assert source.refreshed_at == refreshed_at

    place.content = GOOD
    assert source.tick() == URL_SECONDS
    assert (source.last_error, source.refreshed_at) == ("", clock.now())


def test_a_failure_is_logged_once(clock, caplog):
    source = KeySource("there", Place(InvalidField("down")), clock, URL_SECONDS)
    for _ in range(5):
        source.tick()

    assert [record.getMessage() for record in caplog.records] == ["JWT keys could not be loaded"]


def test_a_thread_reads_until_it_is_closed(clock):
    ten = threading.Event()
    place = Place()

    def read() -> token_keys.TokenKeysText:
        if place.readings == 10:
            ten.set()
        return place()

    source = KeySource("there", read, clock, 0.001)
    source.start()
    assert ten.wait(60)
    source.close()
    source._thread.join(60)
    assert not source._thread.is_alive()


def test_a_source_that_was_never_started_can_be_closed(clock):
    KeySource("there", Place(), clock, 1).close()


# Files.


def test_a_file_is_read_at_once_and_again(tmp_path, clock):
    path = tmp_path / "keys.json"
    path.write_bytes(GOOD)
    source = open_keys(str(path), clock)
    assert len(source.keys) == 1

    path.write_bytes(NEWER)
    source.tick()
    assert len(source.keys) == 2

    path.unlink()
    source.tick()
    assert len(source.keys) == 2
    assert "No such file" in source.last_error


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: No such file"),
        (b"", "not a JSON Web Key Set"),
        (b"-----BEGIN PUBLIC KEY-----\n", "not a JSON Web Key Set"),
        (b" " * (KEYS_BYTES_MAX + 1), "more than 262,144 bytes"),
        (key_set(jwk("HS256", k=encoded(SECRET[:31]))), "shorter than 32 bytes"),
    ],
)
def test_a_file_of_no_use_is_refused_at_the_start(tmp_path, clock, content, problem):
    path = tmp_path / "keys.json"
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o600)

    with pytest.raises(BadSettings, match=rf"jwt_keys: .*keys\.json: .*{problem}"):
        open_keys(str(path), clock)


def test_a_directory_is_refused_at_the_start(tmp_path, clock):
    with pytest.raises(BadSettings, match="cannot be read"):
        open_keys(str(tmp_path), clock)


@pytest.mark.parametrize(("mode", "is_taken"), [(0o600, True), (0o400, True), (0o640, False), (0o604, False)])
def test_a_secret_that_others_can_read_is_refused(tmp_path, clock, mode, is_taken):
    path = tmp_path / "keys.json"
    path.write_bytes(key_set(jwk("HS256")))
    path.chmod(mode)

    if is_taken:
        assert open_keys(str(path), clock).keys.is_secret
    else:
        with pytest.raises(BadSettings, match=r"other users can read it.*chmod 600"):
            open_keys(str(path), clock)


def test_public_keys_may_be_read_by_anybody(tmp_path, clock):
    path = tmp_path / "keys.json"
    path.write_bytes(GOOD)
    path.chmod(0o644)

    assert len(open_keys(str(path), clock).keys) == 1


# URLs.


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    """A certificate for 127.0.0.1 with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path: Path = tmp_path_factory.mktemp("issuer") / "certificate.pem"
    pem = serialization.Encoding.PEM
    path.write_bytes(
        made.public_bytes(pem) + key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return path


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        sent = {"/keys": GOOD, "/large": b" " * (KEYS_BYTES_MAX + 1), "/endless": b" " * 64}.get(self.path)
        self.send_response(200 if sent else 302 if self.path.startswith("/to-") else 503)
        if self.path.startswith("/to-"):
            self.send_header("Location", {"/to-http": "http://127.0.0.1:1/", "/to-keys": "/keys"}[self.path])
        self.end_headers()
        self.wfile.write(sent or b"")

    def log_message(self, *args: object) -> None:
        return None


@pytest.fixture(scope="module")
def issuer(certificate) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"https://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def trusting(certificate) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificate)


def test_keys_are_fetched_over_https(issuer, trusting):
    assert fetch(f"{issuer}/keys", SystemClock(), trusting) == GOOD


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/down", "it answered HTTP 503"),
        ("/large", "more than 262,144 bytes"),
        ("/to-http", "it redirects elsewhere"),
        ("/to-keys", "it redirects elsewhere"),
    ],
)
def test_an_answer_that_is_not_the_keys_is_refused(issuer, trusting, path, problem):
    with pytest.raises(InvalidField, match=problem):
        fetch(issuer + path, SystemClock(), trusting)


def test_an_issuer_whose_certificate_is_not_trusted_is_refused(issuer):
    with pytest.raises(InvalidField, match=r"cannot be fetched: .*certificate"):
        fetch(f"{issuer}/keys", SystemClock())


def test_an_answer_that_takes_too_long_is_refused(issuer, trusting):
    class Hurried(ManualClock):
        def monotonic(self) -> int:
            self.advance(seconds=11)
            return super().monotonic()

    with pytest.raises(InvalidField, match="longer than 10 seconds"):
        fetch(f"{issuer}/endless", Hurried(), trusting)


@pytest.mark.parametrize("url", ["http://127.0.0.1/keys", "file:///etc/passwd", "ftp://127.0.0.1/", "HTTPS://x", ""])
def test_nothing_but_https_is_fetched(url, clock):
    with pytest.raises(InvalidField, match="not an https URL"):
        fetch(url, clock)


@pytest.mark.parametrize("url", ["https://127.0.0.1:1/keys", "https://[bad/", "https://127.0.0.1:99999/", "https:///x"])
def test_an_issuer_that_cannot_be_reached_is_an_error_with_the_reason(url):
    with pytest.raises(InvalidField, match="cannot be fetched"):
        fetch(url, SystemClock())


def test_a_url_is_not_fetched_before_it_is_started(clock, monkeypatch):
    fetched: list[str] = []

    def fake(url: str, clock: Clock) -> bytes:
        fetched.append(url)
        return GOOD

    monkeypatch.setattr(token_keys, "fetch", fake)
    source = open_keys("https://issuer.example/keys", clock)
    assert (len(source.keys), fetched) == (0, [])

    source.tick()
    assert (len(source.keys), fetched) == (1, ["https://issuer.example/keys"])


def test_a_secret_that_is_published_is_not_used(clock, monkeypatch):
    monkeypatch.setattr(token_keys, "fetch", lambda url, clock: key_set(jwk("HS256")))
    source = open_keys("https://issuer.example/keys", clock)
    source.tick()

    assert len(source.keys) == 0
    assert "publishes a secret" in source.last_error
