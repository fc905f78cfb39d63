"""Encrypted queues as tables: a broker gives the keys to the tasks that read, and nobody else has them."""

from __future__ import annotations

from penstock import Message
from penstock import operations as ops
from penstock.access import encryption
from penstock.client.handles import Penstock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.spark.tables import table
from tests.support.brokers import BrokerThread
from tests.support.operations import run_operation

CANARY = "c4n4ry-5p4rk"


def test_spark_reads_encrypted_queues_and_no_plan_has_a_key(tmp_path, spark):
    key_file = tmp_path / "master.key"
    encryption.new_key_file(key_file)
    session = Session(tmp_path / "data", background=False, master_key=key_file)
    broker = BrokerThread(session)
    with Penstock(BlockingSession(session)) as ps:
        queue = ps.create_queue("secret", encryption=True)
        queue.push_many([Message(payload=f"{CANARY} {row}", key=CANARY) for row in range(3)])
        run_operation(session, ops.Seal())
        queue.push_many([Message(payload=f"{CANARY} {row}", key=CANARY) for row in range(3, 5)])
        assert session.key_ring is not None
        secrets = [secret.hex() for _, secret in session.key_ring.keys_of([1])]
        try:
            frame = table(spark, broker.url, "secret")
            rows = frame.select("offset", "payload", "key").orderBy("offset").collect()
            plan = frame._jdf.queryExecution().toString()
        finally:
            broker.stop()

    assert [(row.offset, bytes(row.payload).decode(), row.key) for row in rows] == [
        (row, f"{CANARY} {row}", CANARY) for row in range(5)
    ]
    assert secrets
    assert not any(secret in plan for secret in secrets)
