"""The pages on gRPC and the WebSocket: their examples run, and they name everything there is."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import get_args

import grpc_tools

from penstock.broker.events import CHANGES
from penstock.broker.sampled_topics import SAMPLES
from penstock.wire import json_protocols
from penstock.wire.errors import CLASSES, grpc_status
from tests.server import test_grpc, test_websocket
from tests.support.broker_loop import on_uvloop

ROOT = Path(__file__).parent.parent
GRPC = (ROOT / "docs" / "grpc.md").read_text(encoding="utf-8")
WEBSOCKET = (ROOT / "docs" / "websocket.md").read_text(encoding="utf-8")


def example(page: str) -> str:
    found = re.search(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


async def run(*words: str, cwd: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    reported, _ = await process.communicate()
    assert process.returncode == 0, reported.decode()
    return reported.decode()


@on_uvloop
async def test_the_example_of_grpc_runs(tmp_path):
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    folders = [f"-I{ROOT / 'protos' / 'penstock' / 'v1'}", f"-I{well_known}"]
    await run(
        "-m", "grpc_tools.protoc", *folders, "--python_out=.", "--grpc_python_out=.", "queues.proto", cwd=tmp_path
    )
    async with test_grpc.serving() as stub:
        code = example(GRPC).replace("localhost:7712", f"127.0.0.1:{stub.port}").replace("os.environ['KEY']", "'key'")
        await run("-c", code, cwd=tmp_path)

        assert stub.broker.shard.core.by_name["mail"].groups[0].backlog == 0
        assert stub.broker.shard.core.by_name["mail"].messages() == 1


@on_uvloop
async def test_the_example_of_the_websocket_runs(tmp_path):
    async with test_websocket.serving() as (broker, _, talk):
        code = example(WEBSOCKET).replace("ws://localhost:7711/api/v1/stream", talk.url)
        reported = await run("-c", code, cwd=tmp_path)

        assert '"id":"mail/0/0"' in reported
        assert '"settled"' in reported
        assert broker.shard.core.by_name["mail"].groups[0].backlog == 0


def test_every_message_of_the_websocket_is_documented():
    types = {kind.__struct_config__.tag for kind in get_args(json_protocols.ClientMessage)}
    section = WEBSOCKET.split("## From the client", 1)[1].split("## From the broker", 1)[0]

    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == types


def test_every_live_event_is_documented():
    section = WEBSOCKET.split("## Live events", 1)[1].split("## ", 1)[0]
    cells = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}

    assert named == {*CHANGES, "counters", "task", "worker", *SAMPLES}


def test_the_statuses_of_grpc_are_documented():
    statuses = {grpc_status(code) for code in CLASSES}

    assert [status for status in statuses if f"`{status}`" not in GRPC] == []
