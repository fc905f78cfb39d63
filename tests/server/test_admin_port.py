"""`admin_port`: what operators do has a listener of its own, and no other port serves it, whoever asks."""

from __future__ import annotations

import pytest

import penstock
from penstock import operations as ops
from penstock.config import Settings, load
from penstock.errors import BadSettings, NotAuthorised
from penstock.server.public_bind import check_public_bind
from tests.server.test_serve_http import ask as ask_http
from tests.support.broker_process import Served

ALL = ("--http-port", "0", "--grpc-port", "off", "--admin-port", "0", "--admin-host", "127.0.0.1", "--profile")
BODY = {"name": "ann", "grants": ["push:*"]}


class Asked:
    """One port of a broker, as `ask` of the other tests wants it."""

    def __init__(self, served: Served, protocol: str) -> None:
        self._served, self._protocol = served, protocol

    def url(self, protocol: str) -> str:
        return self._served.url(self._protocol)


def ask(served: Served, protocol: str, path: str, body: object = None) -> tuple[int, str]:
    status, _, text = ask_http(Asked(served, protocol), path, body)  # type: ignore[arg-type]
    return status, text


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with Served(tmp_path_factory.mktemp("served"), *ALL) as served:
        yield served


def test_it_is_shown_at_the_start(served):
    assert list(served.ready["addresses"]) == ["tcp", "http", "admin"]
    assert served.url("admin").startswith("http://127.0.0.1:")
    assert served.url("admin") != served.url("http")


@pytest.mark.parametrize("path", ["/metrics", "/debug/threads", "/debug/profile?seconds=0.05", "/ui/"])
def test_what_is_for_operators_is_there_and_only_there(served, path):
    assert ask(served, "admin", path)[0] == 200
    assert ask(served, "http", path)[0] == 404


@pytest.mark.parametrize(
    ("path", "body"),
    [("/api/v1/keys", None), ("/api/v1/audit", None), ("/api/v1/sync", {}), ("/api/v1/profiles", {"what": "threads"})],
)
def test_operating_is_refused_on_the_public_port(served, path, body):
    assert ask(served, "admin", path, body)[0] == 200
    status, text = ask(served, "http", path, body)
    assert status == 403
    assert "admin_port" in text


def test_no_protocol_operates_but_the_admin_port(served):
    for protocol in ("tcp", "http"):
        with penstock.connect(served.url(protocol)) as ps:
            ps.queue("mail").push("a")  # everything else is as ever
            ps.create_queue(f"own-{protocol}")
            with pytest.raises(NotAuthorised, match="operate"):
                ps.sync()
            with pytest.raises(NotAuthorised, match="export"):
                ps.session.execute(ops.History())
    with penstock.connect(served.url("admin")) as ps:
        assert ps.sync() > 0
        assert ps.queue("mail").stats().ready == 2


def test_both_are_probed(served):
    for protocol in ("http", "admin"):
        assert ask(served, protocol, "/livez")[0] == ask(served, protocol, "/readyz")[0] == 200


def test_without_it_one_port_serves_all(tmp_path):
    with Served(tmp_path, "--http-port", "0", "--grpc-port", "off") as served:
        assert ask(served, "http", "/metrics")[0] == 200
        assert ask(served, "http", "/api/v1/sync", {})[0] == 200


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(BadSettings, match="admin_host has no effect without admin_port"):
        load(None, {}, {"admin_host": "127.0.0.1"})
    with pytest.raises(BadSettings, match="http_port and admin_port are both 7000"):
        load(None, {}, {"http_port": 7000, "admin_port": 7000})
    with pytest.raises(BadSettings, match="admin_host"):
        load(None, {}, {"auth": "off", "admin_port": 7000, "admin_host": "0.0.0.0"})
    with pytest.raises(BadSettings, match=r"admin_host: .* traffic to it is not encrypted"):
        check_public_bind(Settings(admin_port=0, admin_host="0.0.0.0"))
