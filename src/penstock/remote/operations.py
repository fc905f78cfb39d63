"""What a session offers over the wire, but for single pushes; the shells say how a request is sent and awaited.

`_told` makes a call that answers with something, `_done` one that does not. For the blocking shell that is (result,
ticket) or a ticket, for the asyncio shell an awaitable: so everything here answers with `Any`. `asking`, a module, and
`_call` make the request in the language of the protocol.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from penstock.batch import Batch
from penstock.model import Durability, MessageId, Position, Receipt, check_option_values, queue_options
from penstock.remote import request as tcp_requests
from penstock.remote.request import Request, call, instant, position
from penstock.remote.task_operations import TaskOperations
from penstock.replies import Piece
from penstock.requests import LeaseRequest, LetterFilter, Operation, PartitionChoice, Settling, SinkCommit
from penstock.wire import calls


class Operations(TaskOperations):
    """See the module's rules."""

    asking: Any = tcp_requests

    @abstractmethod
    def _told(self, request: Request) -> Any: ...

    @abstractmethod
    def _done(self, request: Request) -> Any: ...

    @abstractmethod
    def _plainly(self, request: Request) -> Any:
        """The result with no ticket."""

    def _call(self, arguments: calls.Arguments) -> Request:
        return call(arguments)

    # messages

    def push(self, queue: str, batch: Batch, partition: PartitionChoice, durability: Durability | None) -> Any:
        return self._told(self.asking.push(queue, batch, partition, durability))

    def lease(self, queue: str, group: str, request: LeaseRequest, wait_seconds: float = 0.0) -> Any:
        return self._told(self.asking.lease(queue, group, request, wait_seconds))

    def settle(self, receipts: Sequence[Receipt], how: Settling) -> Any:
        return self._done(self.asking.settle(receipts, 0, how))

    def settle_lease(self, nonce: int, how: Settling) -> Any:
        return self._done(self.asking.settle((), nonce, how))

    def extend(self, nonce: int, seconds: float) -> Any:
        return self._plainly(self.asking.extend(nonce, seconds))

    def loaded(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """What came over the wire is here."""
        return pieces

    def transact(self, operations: Sequence[Operation]) -> Any:
        return self._told(self.asking.transact(operations))

    # browsing

    def read(self, queue: str, partition: int | str, offset: int | None, timestamp: int | None, limit: int) -> Any:
        return self._told(self._call(calls.Read(queue, partition, offset, instant(timestamp), limit)))

    def peek(self, queue: str, limit: int) -> Any:
        return self._told(self._call(calls.Peek(queue, limit)))

    def delayed(self, queue: str, limit: int) -> Any:
        return self._told(self._call(calls.Delayed(queue, limit)))

    def cancel(self, id: MessageId) -> Any:
        return self._done(self._call(calls.Cancel(str(id))))

    def why(self, id: MessageId) -> Any:
        return self._told(self._call(calls.Why(str(id))))

    def stats(self, queue: str) -> Any:
        return self._told(self._call(calls.Stats(queue)))

    # queues and groups

    def create_queue(self, name: str, options: Mapping[str, Any], *, exist_ok: bool) -> Any:
        queue_options(options)  # refused here, in words about the value as it was given
        return self._done(self._call(calls.CreateQueue(name, dict(options), exist_ok)))

    def update_queue(self, name: str, changes: Mapping[str, Any]) -> Any:
        check_option_values(changes)  # whether they go with the others, only the broker knows
        return self._done(self._call(calls.UpdateQueue(name, dict(changes))))

    def delete_queue(self, name: str) -> Any:
        return self._done(self._call(calls.DeleteQueue(name)))

    def queues(self) -> Any:
        return self._told(self._call(calls.Queues()))

    def options(self, name: str) -> Any:
        return self._told(self._call(calls.Options(name)))

    def pause(self, name: str, paused: bool) -> Any:
        return self._done(self._call(calls.Pause(name, paused)))

    def purge(self, name: str) -> Any:
        return self._done(self._call(calls.Purge(name)))

    def create_group(self, queue: str, group: str, start: Position, *, observes: bool = False) -> Any:
        return self._done(self._call(calls.CreateGroup(queue, group, position(start), observes)))

    def delete_group(self, queue: str, group: str) -> Any:
        return self._done(self._call(calls.DeleteGroup(queue, group)))

    def seek(self, queue: str, group: str, to: Position, partition: int | str | None) -> Any:
        return self._done(self._call(calls.Seek(queue, group, position(to), partition)))

    def groups(self, queue: str) -> Any:
        return self._told(self._call(calls.Groups(queue)))

    # members of groups

    def join(self, queue: str, group: str, member: str, session_seconds: float, start: Position | None = None) -> Any:
        begin = None if start is None else position(start)
        return self._told(self._call(calls.Join(queue, group, member, session_seconds, begin)))

    def heartbeat(self, queue: str, group: str, member: str, generation: int, held: Sequence[str]) -> Any:
        return self._told(self._call(calls.Heartbeat(queue, group, member, generation, list(held))))

    def leave(self, queue: str, group: str, member: str, generation: int) -> Any:
        return self._done(self._call(calls.Leave(queue, group, member, generation)))

    def members(self, queue: str, group: str) -> Any:
        return self._told(self._call(calls.Members(queue, group)))

    # dead letters

    def dead_letters(self, queue: str, wanted: LetterFilter) -> Any:
        return self._told(self._call(calls.DeadLetters(queue, wanted)))

    def redrive(self, queue: str, wanted: LetterFilter, per_second: float | None) -> Any:
        return self._told(self._call(calls.Redrive(queue, wanted, per_second)))

    def replace_letters(self, queue: str, ids: Sequence[MessageId], batch: Batch) -> Any:
        return self._done(self._call(calls.ReplaceLetters(queue, [str(id) for id in ids], bytes(batch.data))))

    def purge_dead_letters(self, queue: str) -> Any:
        return self._done(self._call(calls.PurgeDeadLetters(queue)))

    # the broker itself

    def compact(self) -> Any:
        return self._plainly(self._call(calls.Compact()))

    def seal(self) -> Any:
        return self._plainly(self._call(calls.Seal()))

    def info(self) -> Any:
        """Who answers."""
        return self._plainly(self._call(calls.Info()))

    # sinks: TCP only

    def stage(self, queue: str, name: str, position: int, data: bytes) -> Any:
        return self._done(self._call(calls.Stage(queue, name, position, data)))

    def discard_staged(self, queue: str, names: Sequence[str]) -> Any:
        return self._done(self._call(calls.DiscardStaged(queue, list(names))))

    def commit_sink(self, wanted: SinkCommit) -> Any:
        return self._told(self._call(calls.CommitSink(**{**structs.asdict(wanted), "staged": list(wanted.staged)})))

    def sink_state(self, queue: str, sink: str) -> Any:
        return self._told(self._call(calls.SinkStateOf(queue, sink)))

    # stored files: TCP only

    def history(self) -> Any:
        return self._plainly(self._call(calls.History()))

    def list_files(self, directory: str) -> Any:
        return self._plainly(self._call(calls.ListFiles(directory)))

    def fetch(self, name: str, position: int, length: int) -> Any:
        """Bytes of a file, or None when it is not there."""
        return self._plainly(self._call(calls.Fetch(name, position, length)))

    def pin(self, name: str, files: Sequence[str] | None) -> Any:
        return self._plainly(self._call(calls.Pin(name, None if files is None else list(files))))

    def unpin(self, name: str) -> Any:
        return self._plainly(self._call(calls.Unpin(name)))
