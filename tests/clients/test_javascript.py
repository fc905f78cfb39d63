"""JavaScript: a client generated from OpenAPI, and one of gRPC, against a broker that asks who they are.

Both push, receive by a stream, settle, are refused what they may not, and run a task on the JSON frames of TCP. What
they need comes from npm by the lock file in examples/javascript; nothing that it brings is run at installation.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.config import Settings
from penstock.server.http import openapi
from penstock.server.http.routes import ROUTES
from penstock.server.serve import Server
from penstock.wire.json_messages import encode

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples" / "javascript"
SECONDS_MAX = 120
GRANTS = ["push:mail", "consume:mail", "push:jobs", "consume:jobs", "read:jobs", "consume:*"]
GRPC_PERMISSION_DENIED = 7


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("javascript") / "project"
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("node_modules", "generated"))
    (folder / "openapi.json").write_bytes(encode(openapi.document(ROUTES)))
    npm = shutil.which("npm")
    assert npm is not None, "npm is needed: apt-get install nodejs npm"
    run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"], folder)
    run([npm, "run", "--silent", "generate"], folder)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def run(words: list[str], folder: Path) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def play(project: Path, data: Path, script: str) -> Any:
    """What a script prints, with a broker that has access control to talk to."""

    async def life() -> str:
        ports: dict[str, Any] = {"tcp_port": 0, "http_port": 0, "grpc_port": 0}
        server = Server(Settings(data=str(data), **ports))
        started = await server.start()
        try:
            assert server.broker is not None
            _, token = server.broker.session.access.create_key("node", GRANTS)
            by_protocol = {address.protocol: address for address in started.addresses}
            target = {
                "http": by_protocol["http"].url,
                "tcp": {"host": "127.0.0.1", "port": by_protocol["tcp"].port},
                "grpc": f"127.0.0.1:{by_protocol['grpc'].port}",
                "protos": str(ROOT / "protos"),
                "token": token,
            }
            return await asyncio.to_thread(run, ["node", script, json.dumps(target)], project)
        finally:
            await server.stop()

    return json.loads(asyncio.run(life()))


def test_a_client_generated_from_openapi_pushes_receives_and_works(project, tmp_path):
    said = play(project, tmp_path / "data", "openapi_client.mjs")

    assert said["pushed"] == ["mail/0/0", "mail/0/1"]
    assert said["payloads"] == [{"order": 7}, {"order": 8}]
    assert said["keys"] == ["ann", None]
    assert said["acked"] == ["ok", "ok"]
    assert said["refused"] == [403, "not_authorised"]
    assert said["submitted"] == [True]
    assert said["runs"][0]["leases"][0]["status"] == "ok"
    assert said["task"] == ["completed", 5]


def test_a_grpc_client_pushes_receives_and_works(project, tmp_path):
    said = play(project, tmp_path / "data", "grpc_client.mjs")

    assert said["pushed"] == ["mail/0/0", "mail/0/1"]
    assert said["payloads"] == ["one", "two"]
    assert said["keys"][0] == "ann"
    assert said["settled"] == ["ok", "ok"]
    assert said["refused"] == GRPC_PERMISSION_DENIED
    assert said["runs"][0]["leases"][0]["status"] == "ok"
    assert said["task"]["task_id"] == said["runs"][0]["task_id"]
