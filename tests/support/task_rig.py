"""A shard with tasks on it, driven by hand: submit, lease, finish; what is known of a task is read from its message."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.clock import ManualClock
from penstock.delivery.entries import Entry, decode
from penstock.envelopes import parse_envelope
from penstock.errors import PenstockError
from penstock.model import MessageId, Receipt
from penstock.model_tasks import Finish, Submitted, TaskState, TaskSubmission, id_text
from penstock.requests import LeaseRequest, ParentFound
from penstock.shard.opening import open_in_memory
from penstock.shard.shard import Shard
from penstock.shard.tasks import finish as task_finish
from penstock.shard.tasks import submit as task_submit


def id_of(name: str) -> str:
    """The id of a task that tests call by a name."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


def task(name: str, *parents: str, queue: str = "q", **more: Any) -> TaskSubmission:
    return TaskSubmission(
        task_id=id_of(name), task_type=name, queue=queue, depends_on=tuple(map(id_of, parents)), **more
    )


class Run:
    """A task in a worker's hands."""

    def __init__(self, task_type: str, task_id: str, receipt: Receipt) -> None:
        self.task_type = task_type
        self.task_id = task_id
        self.receipt = receipt

    def finish(self, outcome: Any = "completed", **more: Any) -> Finish:
        return Finish(receipt=self.receipt, task_id=self.task_id, outcome=outcome, **more)


class Rig:
    """See the module's rules."""

    def __init__(self, shard: Shard | None = None, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.shard = shard or open_in_memory(self.clock, random.Random(1))

    def submit(self, *tasks: TaskSubmission, parents: Mapping[str, ParentFound] | None = None) -> list[Submitted]:
        found, ticket = task_submit.submit_tasks(self.shard, tasks, parents or {})
        self.shard.confirm(ticket)
        return found

    def lease(self, queue: str = "q", count: int = 100, worker: str = "w") -> list[Run]:
        if queue not in self.shard.core.by_name:
            return []
        reply, ticket = self.shard.lease(queue, "default", LeaseRequest(count_max=count, consumer=worker))
        self.shard.confirm(ticket)
        runs = []
        for piece in self.shard.loaded(reply.pieces):
            for index, payload in enumerate(piece.payloads()):
                envelope = parse_envelope(payload)
                place = (queue, piece.partition(index), piece.offsets[index], piece.attempt(index), reply.nonce)
                runs.append(Run(envelope.task_type, envelope.task_id, Receipt(*place)))
        return runs

    def finish(self, *finishes: Finish) -> list[PenstockError | None]:
        answers, ticket = task_finish.finish_tasks(self.shard, finishes)
        self.shard.confirm(ticket)
        return answers

    def complete(self, *runs: Run) -> None:
        assert self.finish(*(run.finish() for run in runs)) == [None] * len(runs)

    def tick(self, seconds: float = 0.0) -> None:
        if seconds:
            self.clock.advance(seconds)
        self.shard.look(lambda now: None)

    def work_off(self, queue: str = "q") -> list[str]:
        """Run everything there is, one by one; the names in the order in which they ran."""
        ran = []
        while runs := self.lease(queue, 1):
            ran.append(runs[0].task_type)
            self.complete(runs[0])
        return ran

    def held(self) -> set[str]:
        return {id_text(each) for each in self.shard.core.tasks.held}

    def frames(self) -> list[list[Entry]]:
        """All that the journal holds."""
        return [list(decode(data)) for _, data in self.shard.journal.replay(0)]


def names(runs: Iterable[Run]) -> list[str]:
    return [run.task_type for run in runs]


def found(state: TaskState, run: Run | None = None) -> ParentFound:
    """What a task index would say."""
    place = None if run is None else MessageId(run.receipt.queue, run.receipt.partition, run.receipt.offset)
    return ParentFound(place, state)


def kinds(frame: Sequence[Entry]) -> list[str]:
    return [type(each).__name__ for each in frame]
