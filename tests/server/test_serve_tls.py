"""`penstock serve` with TLS, as a process: every port, and listening to a network."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import grpc
import httpx
import pytest

import penstock
from penstock.broker.health import readyz
from penstock.config import Settings, load
from penstock.errors import BadSettings, NotAuthenticated, NotAuthorised
from penstock.server.public_bind import PLAINTEXT, check_public_bind, is_loopback
from penstock.server.serve import server_tls
from tests.support.broker_process import PATIENCE_SECONDS, Served
from tests.support.tls import Certificates, TlsBroker, handshake

HEALTH = "/grpc.health.v1.Health/Check"
LIST_QUEUES = "/penstock.v1.Queues/ListQueues"
SERVING = b"\x08\x01"
OLD_VERSIONS = ("ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1", "tls_1_2")
SCAN = Path(__file__).parent.parent / "support" / "tls_scan.py"
SCANNER = Path(sys.prefix) / "sslyze" / "bin" / "python"  # made by `make setup`


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def served(tmp_path_factory, certificates):
    files = certificates.server(file="served")
    with Served(tmp_path_factory.mktemp("served"), "--http-port", "0", "--grpc-port", "0", *flags(files)) as running:
        yield running


def flags(settings: dict[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in ("--" + name.replace("_", "-"), value)]


def check_health(port: int, ca: str, **client: str) -> bytes:
    """What gRPC's own health check answers, over TLS."""
    return call(port, HEALTH, ca, **client)


def call(port: int, method: str, ca: str, **client: str) -> bytes:
    """The answer of a method to an empty request, over TLS."""
    pair = {name: Path(path).read_bytes() for name, path in client.items()}
    credentials = grpc.ssl_channel_credentials(Path(ca).read_bytes(), pair.get("tls_key"), pair.get("tls_certificate"))
    with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
        answer: bytes = channel.unary_unary(method)(b"", timeout=PATIENCE_SECONDS)
        return answer


def test_every_port_speaks_tls_and_its_url_says_so(served, certificates):
    context = ssl.create_default_context(cafile=certificates.ca)

    assert check_health(served.port("grpc"), certificates.ca) == SERVING
    assert httpx.get(served.url("http") + "/readyz", verify=context).status_code == 200
    assert served.url("tcp").startswith("penstocks://")
    with penstock.connect(served.url("tcp"), tls_ca=certificates.ca) as ps:
        ps.queue("mail").push(b"x")


def test_the_command_line_speaks_tls(served, certificates):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    words = [sys.executable, "-m", "penstock", "queues", "list", "--json", "-u", served.url("http")]
    refused = subprocess.run(words, env=clean, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    trusting = clean | {"PENSTOCK_TLS_CA": certificates.ca}
    done = subprocess.run(words, env=trusting, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)

    assert (refused.returncode, json.loads(refused.stdout)["error"]["code"]) == (2, "tls_failed")
    assert "PENSTOCK_TLS_CA" in refused.stdout
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), list)


@pytest.mark.parametrize("protocol", ["tcp", "http", "grpc"])
def test_sslyze_finds_nothing_weak(served, certificates, protocol):
    # gRPC hangs up on a client that names no protocol, as the scan for early data does.
    more = [] if protocol == "grpc" else ["--early-data"]
    words = [str(SCANNER), "-P", str(SCAN), str(served.port(protocol)), *more]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    accepted = found.pop("accepted")
    assert {version: accepted[version] for version in OLD_VERSIONS} == {version: [] for version in OLD_VERSIONS}
    assert {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384"} <= set(accepted["tls_1_3"])
    assert found == {"heartbleed": False, "compression": False, "ccs_injection": False, "early_data": False}


def test_a_hangup_reads_the_certificate_again_on_every_port(tmp_path, certificates):
    files = certificates.server(file="hangup")
    with Served(tmp_path, "--http-port", "0", "--grpc-port", "0", *flags(files)) as broker:
        protocols = ("tcp", "http", "grpc")
        before = {handshake(broker.port(name), certificates.ca)[1]["serialNumber"] for name in protocols}
        certificates.server(file="hangup")
        broker.process.send_signal(signal.SIGHUP)
        while not any(line["event"] == "the certificate was reloaded" for line in broker.logs()):
            assert broker.process.poll() is None
        after = {handshake(broker.port(name), certificates.ca)[1]["serialNumber"] for name in protocols}

        assert len(before) == len(after) == 1
        assert before != after
        assert broker.stop() == 0


def test_grpc_asks_for_certificates_that_are_required(tmp_path, certificates):
    settings = certificates.server(file="mutual") | {"tls_client_ca": certificates.ca, "tls_client": "required"}
    with TlsBroker(tmp_path, tcp_port="off", http_port="off", grpc_port=0, **settings) as broker:
        known = certificates.client()
        pair = {name: known[name] for name in ("tls_certificate", "tls_key")}
        assert check_health(broker.port("grpc"), certificates.ca, **pair) == SERVING
        with pytest.raises(grpc.RpcError) as refused:
            check_health(broker.port("grpc"), certificates.ca)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


# Certificates that stand for somebody.


@pytest.fixture(scope="module")
def mutual(tmp_path_factory, certificates):
    """A broker on which the certificate `billing` may push to orders."""
    settings = certificates.server(file="mutual") | {"tls_client_ca": certificates.ca, "tls_client": "required"}
    with TlsBroker(tmp_path_factory.mktemp("mutual"), auth="on", grpc_port=0, **settings) as broker:
        assert broker.server.broker is not None
        access = broker.server.broker.session.access
        access.set_user("billing", grants=["push:orders", "monitor:*"], certificates=["billing"])
        yield broker


@pytest.mark.parametrize("protocol", ["tcp", "http"])
def test_a_certificate_proves_who_a_client_is(mutual, certificates, protocol):
    with penstock.connect(mutual.url(protocol), **certificates.client("billing")) as ps:
        ps.queue("orders").push(b"x")
        with pytest.raises(NotAuthorised, match="'billing' lacks the permission push"):
            ps.queue("other").push(b"x")
    with pytest.raises(NotAuthenticated):
        penstock.connect(mutual.url(protocol), **certificates.client("somebody", file="somebody"))


def test_a_certificate_counts_for_plain_http_and_grpc_but_a_token_counts_more(mutual, certificates):
    files = certificates.client("billing")
    context = ssl.create_default_context(cafile=certificates.ca)
    context.load_cert_chain(files["tls_certificate"], files["tls_key"])
    with httpx.Client(verify=context, base_url=mutual.url("http")) as http:
        message = {"messages": [{"payload": "x"}]}
        pushed = http.post("/api/v1/queues/orders/messages", json=message)
        denied = http.post("/api/v1/queues/other/messages", json=message)
        forged = http.post("/api/v1/queues/orders/messages", content=json.dumps(message).encode())
        wrong = http.get("/api/v1/queues", headers={"authorization": "Bearer wrong"})

    assert [answer.status_code for answer in (pushed, denied, forged, wrong)] == [201, 403, 400, 401]
    pair = {name: files[name] for name in ("tls_certificate", "tls_key")}
    assert call(mutual.port("grpc"), LIST_QUEUES, certificates.ca, **pair)
    stranger = certificates.client("somebody", file="somebody")
    with pytest.raises(grpc.RpcError) as refused:
        call(
            *(mutual.port("grpc"), LIST_QUEUES, certificates.ca),
            **{name: stranger[name] for name in ("tls_certificate", "tls_key")},
        )
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_certificate_that_stands_for_nobody_any_more_ends_its_connections(mutual, certificates):
    access = mutual.server.broker.session.access
    access.set_user("leaving", grants=["push:orders"], certificates=["leaving"])
    with penstock.connect(mutual.url("tcp"), **certificates.client("leaving", file="leaving")) as ps:
        ps.queue("orders").push(b"x")
        access.delete_user("leaving")
        with pytest.raises((NotAuthenticated, NotAuthorised)):
            ps.queue("orders").push(b"x")


# Listening to a network.


def test_loopback_is_this_machine_only():
    assert [is_loopback(host) for host in ("127.0.0.1", "127.3.2.1", "::1", "localhost")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "no-such-host.invalid")] == [False] * 4


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_network_needs_tls_or_a_word_that_it_is_not_wanted(host):
    with pytest.raises(BadSettings) as caught:
        check_public_bind(Settings(host=host))

    assert "can be reached from other machines" in caught.value.message
    for remedy in ("tls_certificate", "penstock tls init", 'tls = "proxy"', "trusted_proxies", "plaintext = true"):
        assert remedy in caught.value.hint
    check_public_bind(Settings(host=host, tls_certificate="server.pem", tls_key="server.key"))
    check_public_bind(Settings(host=host, tls="proxy", trusted_proxies=("10.0.0.7",)))
    check_public_bind(Settings(host=host, plaintext=True))
    check_public_bind(Settings(host="127.0.0.1", auth="off"))
    with pytest.raises(BadSettings, match="auth is 'off'"):
        check_public_bind(Settings(host=host, auth="off", plaintext=True))


def test_serve_refuses_a_network_before_it_opens_anything(tmp_path):
    words = [sys.executable, "-m", "penstock", "serve", "--host", "0.0.0.0", "--tcp-port", "0", "--http-port", "0"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    done = subprocess.run(
        words, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )

    assert done.returncode == 1
    assert "plaintext = true" in done.stderr
    assert not (tmp_path / "data").exists()


def test_plaintext_on_a_network_is_degraded_and_logged(tmp_path, caplog):
    with TlsBroker(tmp_path, host="0.0.0.0", auth="on", plaintext=True) as broker:
        ready = httpx.get(f"http://127.0.0.1:{broker.port('http')}/readyz")

        assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
        assert ready.json()["problems"] == [PLAINTEXT]
        assert PLAINTEXT in caplog.text
    with TlsBroker(tmp_path, plaintext=True) as broker:
        assert broker.server.broker is not None
        assert readyz(broker.server.broker).status == "ok"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"tls": "proxy"}, "trusted_proxies is empty"),
        ({"tls": "proxy", "trusted_proxies": "10.0.0.7", "tls_certificate": "a", "tls_key": "b"}, "tls is 'proxy'"),
        ({"tls": "on"}, "TLS needs tls_certificate and tls_key too"),
        ({"tls_certificate": "a"}, "TLS needs tls_key too"),
        ({"tls_key": "b"}, "tls_key: no effect without tls_certificate"),
        ({"tls_certificate": "a", "tls_key": "b", "tls_client": "required"}, "tls_client_ca is not set"),
        ({"tls_minimum": "1.1"}, "tls_minimum must be '1.3' or '1.2'"),
        ({"tls": "yes"}, "tls must be 'off', 'on', or 'proxy'"),
    ],
)
def test_settings_that_do_not_fit_each_other_are_refused(settings, problem):
    with pytest.raises(BadSettings) as caught:
        load(None, {}, settings)

    assert problem in caught.value.message


def test_a_missing_file_refuses_the_start_with_its_setting():
    with pytest.raises(BadSettings, match="tls_certificate: there is no file"):
        server_tls(Settings(tls_certificate="no-such.pem", tls_key="no-such.key"))
    assert server_tls(Settings()) is None
