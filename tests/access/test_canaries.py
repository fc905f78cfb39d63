"""Secrets stay where they belong: not in logs, errors, metrics, the profile, command lines, objects or the audit log.

One broker runs as a process at debug level. Every kind of secret is used there, rightly and wrongly; then everything
that it has written and answered is searched for them.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

import penstock
from penstock.access.discovery import Entry
from penstock.access.grants import Principal
from penstock.access.keys import make_key
from penstock.access.sessions import Sessions, SignedIn
from penstock.clock import SystemClock
from penstock.errors import NotAuthenticated
from penstock.model import AUDIT_QUEUE
from penstock.server.http.sign_in import Credentials
from penstock.wire.json_protocols import Auth, Login
from penstock.wire.requests import Hello, Welcome
from tests.support.broker_process import Served
from tests.support.dashboard import build_dashboard
from tests.support.issuer import AUDIENCE, ISSUER, claims, jwk, key_set, signed

PASSWORD = "canary-password-of-ann"
WRONG_PASSWORD = "canary-wrong-password"
WRONG_KEY = "penstock_0123456789ab_" + "canary-wrong-key-".ljust(43, "x")
WRONG_JWT = "eyJhbGciOiJIUzI1NiJ9.Y2FuYXJ5.canary-signature"


class Scene(NamedTuple):
    broker: Served
    secrets: dict[str, str]
    answers: list[str]  # of refused requests, and of the profile and the metrics
    environment: dict[str, str]


def command(scene_environment: dict[str, str], *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
        env=scene_environment,
    )


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("canaries")
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700)
    (folder / "keys.json").write_bytes(key_set(jwk("RS256")))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    environment["XDG_RUNTIME_DIR"] = str(runtime)
    flags = ("--auth", "on", "--log-level", "debug", "--http-port", "0", "--grpc-port", "off", "--profile")
    issuer = ("--jwt-issuer", ISSUER, "--jwt-audience", AUDIENCE, "--jwt-keys", str(folder / "keys.json"))
    with (
        pytest.MonkeyPatch.context() as patch,
        Served(folder, *flags, *issuer, XDG_RUNTIME_DIR=str(runtime)) as broker,
    ):
        patch.setenv("XDG_RUNTIME_DIR", str(runtime))
        secrets, answers = use_everything(broker, environment)
        yield Scene(broker, secrets, answers, environment)


def use_everything(broker: Served, environment: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Use every secret, rightly and wrongly."""
    tcp, url = broker.url("tcp"), broker.url("http")
    key = command(environment, "key", "create", "robot", "--grant", "push:mail", "-u", tcp).stdout.strip()
    user = ("user", "create", "ann", "--grant", "viewer", "--password-stdin", "-u", tcp)
    command(environment, *user, stdin=PASSWORD + "\n")
    link = command(environment, "dashboard", "-u", url).stdout.strip()
    header = Path(command(environment, "key", "file", "-u", url).stdout.strip()).read_text()
    token = signed("RS256", claims(SystemClock(), penstock=["push:mail"]))
    code = link.partition("#code=")[2]
    secrets = {"key": key, "password": PASSWORD, "code": code, "run key": header.split()[-1], "jwt": token}
    secrets |= {"wrong key": WRONG_KEY, "wrong jwt": WRONG_JWT, "wrong password": WRONG_PASSWORD}
    answers = []
    with httpx.Client(base_url=url, timeout=60) as http:
        begun = http.post("/api/v1/sessions", json={"code": code})
        assert begun.json()["name"] == "owner"
        secrets |= {"session": begun.headers["set-cookie"].partition("=")[2].partition(";")[0]}
        secrets |= {"tab": begun.json()["tab_secret"]}
        assert http.get("/api/v1/me", headers={"X-Penstock-Tab": secrets["tab"]}).json()["name"] == "owner"
        assert http.post("/api/v1/sessions", json={"user": "ann", "password": PASSWORD}).status_code == 201
        http.cookies.clear()
        for good in (key, token, header.split()[-1]):
            assert http.get("/api/v1/me", headers={"Authorization": f"Bearer {good}"}).status_code == 200
        wrongs = (WRONG_KEY, WRONG_JWT, key[:-1] + "x", token[:-4] + "AAAA")
        answers += [http.get("/api/v1/me", headers={"Authorization": f"Bearer {wrong}"}).text for wrong in wrongs]
        bodies = ({"user": "ann", "password": WRONG_PASSWORD}, {"user": PASSWORD, "password": "x"}, {"code": code})
        answers += [http.post("/api/v1/sessions", json=body).text for body in bodies]
        owner = {"Authorization": header.split(": ", 1)[1].strip()}
        answers.append(http.get("/debug/profile?seconds=1", headers=owner).text)
        answers.append(http.get("/metrics", headers=owner).text)
    for wrong in (WRONG_KEY, WRONG_JWT):
        with pytest.raises(NotAuthenticated) as caught:
            penstock.connect(tcp, token=wrong)
        answers.append(str(caught.value))
    with penstock.connect(tcp, token=key) as ps:
        ps.queue("mail").push(b"hello")
    return secrets, answers


def found(secrets: dict[str, str], text: str) -> list[str]:
    """The names of secrets that the text gives away, whole or for the most part."""
    assert all(len(secret) > 15 for secret in secrets.values())
    return [name for name, secret in secrets.items() if secret in text or secret[-15:] in text]


def test_no_secret_is_in_the_logs(scene):
    log = scene.broker.log_path.read_text()

    assert '"level": "debug"' in log.lower() or '"debug"' in log.lower()
    assert found(scene.secrets, log) == []


def test_no_secret_is_in_an_error_the_metrics_or_the_profile(scene):
    assert len(scene.answers) == 11
    assert "penstock_logins_total" in scene.answers[8]
    for answer in scene.answers:
        assert found(scene.secrets, answer) == []


def test_no_secret_is_in_the_command_lines_of_the_broker(scene):
    words = Path(f"/proc/{scene.broker.process.pid}/cmdline").read_bytes().decode()

    assert "serve" in words
    assert found(scene.secrets, words) == []


def test_no_secret_is_in_the_audit_log(scene):
    with penstock.connect(scene.broker.url("tcp")) as ps:
        records = [json.loads(message.payload) for message in ps.queue(AUDIT_QUEUE).read()]

    whats = {record["what"] for record in records}
    assert {"login", "failed_login", "create_key", "set_user"} <= whats
    assert {"owner", "key", "jwt", "password", "link"} <= {kind(record) for record in records}
    assert found(scene.secrets, json.dumps(records)) == []


def kind(record: dict[str, Any]) -> str:
    return str(record["credential"]).partition(":")[0]


def test_no_secret_is_stored_but_in_the_files_of_the_owner(scene):
    data = Path(scene.broker.ready["data"])
    folder = data if data.is_absolute() else scene.broker.log_path.parent / data
    for path in folder.rglob("*"):
        if path.is_file():
            assert found(scene.secrets, path.read_bytes().decode("latin-1")) == [], path


def test_no_object_shows_a_secret():
    sessions = Sessions(SystemClock())
    signed_in = sessions.begin(Principal("ann"), is_secure=False)
    key = make_key()
    canary = "canary-of-this-test"
    shown = [
        (key, key.text),
        (Entry("run1", canary), canary),
        (signed_in, signed_in.id),
        (signed_in, signed_in.tab_secret),
        (Credentials(user="ann", password=canary, code=canary), canary),
        (Login(token=canary, tab=canary), canary),
        (Auth(canary), canary),
        (Hello(1, "test", canary, proof=canary), canary),
        (Welcome(1, "server", 1, proof=canary, token=canary), canary),
    ]

    assert isinstance(signed_in, SignedIn)
    for thing, secret in shown:
        assert secret not in repr(thing)


# What curl needs, and links.


def test_curl_is_let_in_by_the_file_that_key_file_names(scene):
    path = command(scene.environment, "key", "file", "-u", scene.broker.url("http")).stdout.strip()

    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    said = subprocess.run(
        ["curl", "-sS", "-H", f"@{path}", f"{scene.broker.url('http')}/api/v1/me"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(said.stdout)["name"] == "owner"


def test_key_file_says_so_when_no_broker_of_ours_is_there(scene):
    words = [sys.executable, "-m", "penstock", "key", "file", "-u", "http://localhost:1"]
    said = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=scene.environment)

    assert said.returncode != 0
    assert "no broker of yours is running at http://localhost:1" in said.stderr


def test_a_link_signs_in_as_whoever_asked_for_it_and_strangers_get_none(scene):
    url = scene.broker.url("http")
    with httpx.Client(base_url=url, timeout=60) as http:
        assert http.post("/api/v1/sessions/links", json={}).status_code == 401
        headers = {"Authorization": f"Bearer {scene.secrets['key']}"}
        made = http.post("/api/v1/sessions/links", json={}, headers=headers)
        assert made.status_code == 201
        path = made.json()["path"]
        assert path.startswith("/ui/#code=")

        begun = http.post("/api/v1/sessions", json={"code": path.partition("=")[2]})
        tab = {"X-Penstock-Tab": begun.json()["tab_secret"]}
        assert http.get("/api/v1/me", headers=tab).json()["name"] == "robot"


def test_the_page_that_signs_in_needs_no_login_and_runs_only_its_own_script(scene):
    build_dashboard()
    with httpx.Client(base_url=scene.broker.url("http"), timeout=60) as http:
        assert http.get("/").headers["location"] == "ui/"
        page = http.get("/ui/")
        (name,) = re.findall(r'<script type="module" src="([^"]+)"></script>', page.text)
        script = http.get(f"/ui/{name}")

    assert page.status_code == script.status_code == 200
    assert page.text.count("<script") == 1
    policies = page.headers.get_list("content-security-policy")
    assert len(policies) == 1
    assert "script-src 'self'" in policies[0]
    assert "unsafe-inline" not in policies[0]
    assert script.headers["content-type"].startswith("text/javascript")
