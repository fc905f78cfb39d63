"""Every metric moves: a broker is driven through all that it counts, over its own listener."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock import operations as ops
from penstock.config import Settings
from penstock.envelopes import new_task_id
from penstock.model import Receipt
from penstock.model_access import Quotas
from penstock.model_tasks import Finish, TaskSubmission, WorkerInfo
from penstock.server.serve import Server
from penstock.telemetry.metrics import FAMILIES, Metrics
from penstock.wire.frames import Type
from penstock.wire.requests import Call, Settle, encode
from tests.support.broker_process import Caller

REJECTED, RETRIED = 4, 2


def shown(metrics: Metrics) -> dict[str, dict[str, float]]:
    """Family → its samples, by name and labels."""
    families = text_string_to_metric_families(metrics.render()[0].decode())
    return {
        family.name: {f"{sample.name}{sorted(sample.labels.items())}": sample.value for sample in family.samples}
        for family in families
    }


def call(caller: Caller, operation: ops.Operation[Any]) -> int:
    return caller.send(Type.CALL, encode(Call(operation.spec.name, msgspec.Raw(encode(operation)))))


def work_on_tasks(caller: Caller, waiting: Caller) -> None:
    first, second, child = (
        TaskSubmission(task_id=new_task_id(number), task_type="send", queue="chores") for number in range(3)
    )
    child = msgspec.structs.replace(child, depends_on=(second.task_id,))
    assert caller.answer(call(caller, ops.SubmitTasks([first, second, child])))[0] == Type.OK
    leased = caller.lease("chores")
    finish = Finish(
        receipt=Receipt("chores", "0", 0, 1, leased.nonce),
        task_id=first.task_id,
        outcome="completed",
        task_type="send",
        run_seconds=0.5,
    )
    assert caller.answer(call(caller, ops.FinishTasks([finish])))[0] == Type.OK
    assert caller.answer(call(caller, ops.HeartbeatWorker(WorkerInfo(worker_id="w1", abandoned=1))))[0] == Type.OK
    assert caller.answer(call(caller, ops.CountTasks()))[0] == Type.OK  # whoever looks has the index follow
    call(waiting, ops.WaitTask(second.task_id, 60.0))
    waiting.send(Type.PING, b"")
    assert waiting.receive()[0] == Type.PONG  # so somebody waits by now


def work(port: int, key: str, look: threading.Event, looked: threading.Event) -> None:
    """Everything that is counted, and then hold still until it was looked at."""
    with Caller(port, key) as caller, Caller(port, key) as waiting:
        for number in range(5):
            caller.push("mail", b"%d" % number)
        acked, rejected, retried = caller.lease("mail"), caller.lease("mail"), caller.lease("mail")
        caller.settle(acked.nonce)
        caller.settle(rejected.nonce, REJECTED)
        late = Settle(RETRIED, delay_seconds=600.0, lease=retried.nonce)
        assert caller.answer(caller.send(Type.SETTLE, encode(late)))[0] == Type.OK
        assert caller.answer(caller.send(Type.CALL, encode(Call("seal"))))[0] == Type.OK
        assert caller.answer(caller.ask_lease("nowhere"))[0] == Type.ERROR
        caller.lease("mail")  # and holds it
        caller.push("empty", b"x")
        caller.settle(caller.lease("empty").nonce)
        waiting.ask_lease("empty", wait_seconds=60)
        waiting.send(Type.PING, b"")
        assert waiting.receive()[0] == Type.PONG  # so the lease waits by now
        work_on_tasks(caller, waiting)
        look.set()
        looked.wait()


def test_every_metric_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look, looked = threading.Event(), threading.Event()

    async def life() -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
        ports: dict[str, Any] = {"tcp_port": 0, "http_port": "off", "grpc_port": "off"}
        keys = tmp_path / "jwks.json"
        keys.write_text('{"keys": [{"kty": "oct", "kid": "k", "alg": "HS256", "k": "%s"}]}' % ("A" * 43))
        keys.chmod(0o600)
        jwt: dict[str, Any] = {"jwt_issuer": "tests", "jwt_audience": "penstock", "jwt_keys": str(keys)}
        server = Server(Settings(data=str(tmp_path / "data"), **ports, **jwt))
        started = await server.start()
        assert server.broker is not None
        metrics = Metrics(server.broker.session, server.broker.meter)
        before = await asyncio.to_thread(shown, metrics)
        _, key = server.broker.session.access.create_key("test", ["owner"])
        working = asyncio.create_task(asyncio.to_thread(work, started.addresses[0].port, key, look, looked))
        await asyncio.to_thread(look.wait)
        keys.write_text("no keys")
        source: Any = server.broker.meter.key_source
        source.tick()
        server.broker.session.access.set_namespace("team-a", Quotas(queues=3))
        await asyncio.to_thread(server.broker.session.run, ops.PauseNamespace("team-a"))
        shard = server.broker.shard
        with shard.lock:  # so that the sealer has to wait with the file that is full now
            monkeypatch.setattr(shard.journal, "check_space", lambda: False)
            shard.journal.rotate()
            shard.journal.disk_full = True  # as if it were
            server.broker.meter.certificate_expires_at = shard.clock.now() + 1_000_000  # as if it spoke TLS
            server.broker.session.timekeeper.sleeper.failures += 1  # as if it had
            metrics._tasks._totals_until = 0  # as if it were time to count tasks again
            after = await asyncio.to_thread(shown, metrics)
            shard.journal.disk_full = False
        looked.set()
        await working
        await server.stop()
        return before, after

    before, after = asyncio.run(life())

    # The first says 1 for ever; the others need segments in object storage, and move in tests/segments/test_s3.py.
    counted = set(FAMILIES) - {"penstock_build", "penstock_segment_cache_bytes", "penstock_segment_cache_reads"}
    assert set(after) >= counted
    assert sorted(name for name in counted if before.get(name) == after[name]) == []
    assert set(after["penstock_build_info"].values()) == {1.0}
