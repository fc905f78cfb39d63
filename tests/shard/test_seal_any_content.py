"""Whatever messages hold, they are sealed: any mix of contents in any batches, and everything is there afterwards."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock import operations as ops
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.model import ContentType, Message, MessageId
from penstock.model_tasks import TaskFilter
from penstock.verify import verify
from tests.support.dose import dose
from tests.support.forgetful import ForgetfulDisk
from tests.support.operations import run_operation

TASK = ContentType.TASK
TEXT = st.text(max_size=12)
IDS = [f"0190a5b4-7c1e-7{number:03d}-8000-000000000000" for number in range(4)]  # few, so that some come twice
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=4,
)
ID = st.sampled_from(IDS)
ENVELOPES = st.fixed_dictionaries(
    {"task_id": ID, "task_type": TEXT},
    optional={
        "args": st.lists(JSON, max_size=2),
        "kwargs": st.dictionaries(TEXT, JSON, max_size=2),
        "timeout_seconds": st.none() | st.floats() | st.integers(-(2**63), 2**64 - 1),
        "depends_on": st.lists(ID | TEXT, max_size=2),
        "takes": st.sampled_from(["none", "list", "one"]),
        "workflow": ID | TEXT,
        "schedule": TEXT,
    },
)
# Of the right fields with anything in them.
NEARLY = st.dictionaries(
    st.sampled_from(["task_id", "task_type", "args", "kwargs", "timeout_seconds", "depends_on", "workflow"]), JSON | ID
)
ODD = [b"", b"{}", b"\xff\xfe", b'"\\ud800"', b'{"task_id":"%s","task_type":"\\udc00"}' % IDS[0].encode(), b"[" * 500]
PAYLOADS = st.one_of((ENVELOPES | NEARLY | JSON).map(msgspec.json.encode), st.binary(max_size=20), st.sampled_from(ODD))
MESSAGES = st.builds(
    Message,
    payload=PAYLOADS,
    key=st.none() | TEXT,
    priority=st.integers(0, 255) | st.just(128),
    delay=st.sampled_from([0.0, 0.0, 0.5, 86_400.0]),
    ttl=st.none() | st.sampled_from([0.001, 60.0]),
    headers=st.none() | st.dictionaries(TEXT, TEXT, max_size=2),
    dedup_key=st.none() | st.sampled_from(["a", "b"]),
    max_attempts=st.none() | st.integers(1, 3),
    trace=st.none() | TEXT,
    content_type=st.sampled_from([*ContentType, TASK, None]),
)
STEPS = st.one_of(
    st.lists(MESSAGES, min_size=1, max_size=6).map(lambda messages: ("push", messages)),
    MESSAGES.map(lambda message: ("push", [message])),
    st.integers(1, 4).map(lambda count: ("lease", count)),
    st.sampled_from([("ack", None), ("nack", None), ("reject", None)]),
    st.sampled_from([("seal", None), ("list", None), ("wait", 1.0), ("wait", 100.0), ("crash", None), ("purge", None)]),
)


class Yard:
    """A directory with one queue of several partitions, and what was pushed there."""

    def __init__(self, partitions: int) -> None:
        self.clock = ManualClock()
        self.disk = ForgetfulDisk(1)
        self.pushed: dict[MessageId | None, Any] = {}
        self.leased: Any = None
        self._open()
        self.ps.create_queue("mail", partitions=partitions, dedup_seconds=60)

    def _open(self) -> None:
        self.session = Session(
            None,
            disk=self.disk,
            clock=self.clock,
            rng=random.Random(1),
            background=False,
            durability="os",
            journal_file_bytes=1 << 16,
        )
        self.ps = Penstock(BlockingSession(self.session))

    def push(self, messages: Sequence[Message]) -> None:
        for id, message in zip(self.ps.queue("mail").push_many(messages).ids, messages, strict=True):
            self.pushed.setdefault(id, message.payload)

    def lease(self, count: int) -> None:
        self.leased = self.ps.queue("mail").lease(count)

    def settle(self, how: str) -> None:
        if self.leased:
            getattr(self.leased, how)()
        self.leased = None

    def crash(self, _: None = None) -> None:
        self.disk.kill()
        self.leased = None
        self._open()

    def seal(self, _: None = None) -> None:
        run_operation(self.session, ops.Seal())
        assert self.session.shard.journal.full_files() == []
        assert self.everything() == self.pushed

    def everything(self) -> dict[MessageId | None, Any]:
        queue, found = self.ps.queue("mail"), dict[MessageId | None, Any]()
        for partition in self.session.shard.core.by_name["mail"].partitions:
            for message in queue.read(partition.id, offset=0, limit=1000):
                found[message.id] = message.payload
        return found

    def step(self, what: str, given: Any) -> None:
        if what in ("ack", "nack", "reject"):
            self.settle(what)
        elif what == "wait":
            self.clock.advance(given)
            self.leased = None
        elif what == "list":
            run_operation(self.session, ops.ListTasks(TaskFilter(limit=100)))
        elif what == "purge":
            self.ps.queue("mail").purge()
            self.leased = None
        else:
            getattr(self, what)(given)


NO_ID_OF_A_PARENT = b'{"task_id":"%s","task_type":"","depends_on":[""]}' % IDS[0].encode()


@settings(max_examples=dose(60, 3000), deadline=None)
@given(st.integers(1, 3), st.lists(STEPS, min_size=1, max_size=10))
@example(1, [("push", [Message(payload=b"{}", content_type=TASK)] * 2 + [Message(payload=b"plain")])])
@example(1, [("push", [Message(payload=NO_ID_OF_A_PARENT, content_type=TASK)])])
def test_any_mix_of_contents_is_sealed_and_read_back(partitions, steps):
    yard = Yard(partitions)
    for what, given_ in steps:
        yard.step(what, given_)
    yard.seal()
    run_operation(yard.session, ops.ListTasks(TaskFilter(limit=100)))
    yard.crash()
    assert yard.everything() == yard.pushed
    run_operation(yard.session, ops.ListTasks(TaskFilter(limit=100)))
    yard.ps.close()
    assert verify(yard.disk, yard.clock.now()).problems == []
