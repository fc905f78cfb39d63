"""Commits of sinks: the messages of staged files into a queue, and in the same frame that they are in.

One call does one frame, so that the lock is never held for long and no caller waits for a large batch in one go: who
commits calls again until the batch is in. A batch that fits a frame becomes visible at once; one that does not goes in
over several, and before the first of them its files are made durable. Each frame says which files are in, so whoever
calls next, after a crash too, goes on after them. Commits are always synced, whatever the queue's durability: the files
are removed once the last frame is durable, and with them whatever the same sink staged before and never committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from penstock import limits
from penstock.batch import Batch
from penstock.delivery.entries import SinkCommitted
from penstock.delivery.sinks import Todo, check_commit
from penstock.errors import StorageError
from penstock.model import bare_name
from penstock.replies import SinkState
from penstock.requests import SinkCommit
from penstock.shard.transactions import Plan, Prepared, Pushes
from penstock.storage.staging import Staging, check_staged

if TYPE_CHECKING:
    from penstock.shard.engine import Ticket
    from penstock.shard.shard import Shard

T = TypeVar("T")

# Of a frame, for messages; the rest is for the names of files and the like.
ROOM_BYTES: Final = limits.frame_bytes_max - 2 * limits.MIB
# What a message may take beside its place in the batch: its partition and a time to live, and a partition that is new.
ROW_BYTES: Final = 16
NAMED_ROW_BYTES: Final = 32


class _Moved(Exception):
    """Somebody else has gone on with the batch meanwhile."""


def commit_sink(shard: Shard, staging: Staging, request: SinkCommit, client: str = "") -> tuple[SinkState, Ticket]:
    """Put in as much of a batch as fits one frame; nothing when it is in already. Returns how far the sink is."""
    check_commit(request)
    for name in request.staged:
        check_staged(name)
    shard.throttle.wait()
    while True:
        with suppress(_Moved):
            return _commit(shard, staging, request, client)


def sink_state(shard: Shard, queue: str, sink: str) -> tuple[SinkState, Ticket]:
    """How far a sink of a queue is."""
    return shard.look(lambda now: _state(shard, queue, sink))


def discard_staged(shard: Shard, staging: Staging, names: Sequence[str]) -> None:
    """Remove staged files, but for those that an unfinished batch needs."""
    needed, _ = shard.look(lambda now: shard.core.sinks.needed())
    staging.remove([name for name in names if check_staged(name) not in needed])


def _commit(shard: Shard, staging: Staging, request: SinkCommit, client: str) -> tuple[SinkState, Ticket]:
    (todo, state), ticket = shard.look(lambda now: (_todo(shard, request), _state(shard, request.queue, request.sink)))
    if todo is None:
        shard.confirm(ticket)  # before they go: what was confirmed must be durable
        discard_staged(shard, staging, request.staged)
        _sweep(shard, staging, request, request.staged)
        return state, ticket
    batches = _reading(shard, request, todo, lambda: _next(shard, staging, request.queue, todo))
    end = todo.done + len(batches)
    if todo.done == 0 and end < len(todo.staged):
        _reading(shard, request, todo, lambda: staging.sync(todo.staged))
    ticket = shard.run(lambda: _put(shard, request, todo, batches, client))
    if end < len(todo.staged):
        return shard.look(lambda now: _state(shard, request.queue, request.sink))
    shard.confirm(ticket)
    staging.remove(todo.staged if todo.batch != request.batch else {*todo.staged, *request.staged})
    _sweep(shard, staging, request, todo.staged)
    return SinkState(todo.batch), ticket


def _sweep(shard: Shard, staging: Staging, request: SinkCommit, staged: Sequence[str]) -> None:
    """Remove what earlier attempts of the sink have left, now that a batch with these files is in."""
    needed, _ = shard.look(lambda now: shard.core.sinks.needed())
    staging.sweep_before(request.queue, request.sink, staged, {*needed, *request.staged})


def _todo(shard: Shard, request: SinkCommit) -> Todo | None:
    return shard.core.sinks.todo(request, shard.core.by_name.get(request.queue))


def _state(shard: Shard, queue: str, sink: str) -> SinkState:
    known = shard.core.sinks.find(shard.core.by_name.get(queue), sink)
    return SinkState() if known is None else SinkState(known.batch, known.done, len(known.staged))


def _reading(shard: Shard, request: SinkCommit, todo: Todo, read: Callable[[], T]) -> T:
    """Read staged files, which may go under our hands when somebody else commits them."""
    try:
        return read()
    except FileNotFoundError as error:
        if shard.look(lambda now: _todo(shard, request))[0] != todo:
            raise _Moved from None
        raise StorageError(
            f"sink {bare_name(request.sink)!r}, batch {todo.batch}: the staged file {error.filename} is gone",
            hint="stage the batch again"
            if not todo.done
            else "set resetSink=true to start over; part of the batch is stored",
        ) from None


def stored_bytes(shard: Shard, queue: str, name: str, position: int, data: bytes) -> bytes:
    """Bytes of a staged file as they are stored, and back: encrypted for an encrypted queue."""
    number = shard.number_of(queue)
    if shard.frame_seals is None or number is None or number not in shard.core.encrypted:
        return data
    return shard.frame_seals.seals.stream(number, name, position, data)


def _next(shard: Shard, staging: Staging, queue: str, todo: Todo) -> list[Batch]:
    """The batches of as many files as fit one frame, one at least."""
    batches: list[Batch] = []
    room = ROOM_BYTES
    for name in todo.staged[todo.done :]:
        room -= staging.size(name)
        if batches and room < 0:
            break
        batch = staging.read(name, partial(stored_bytes, shard, queue, name, 0))
        room -= batch.count * (ROW_BYTES if batch.partitions is None else NAMED_ROW_BYTES)
        if batches and room < 0:
            break
        batches.append(batch)
    return batches


def _put(shard: Shard, request: SinkCommit, todo: Todo, batches: Sequence[Batch], client: str) -> Ticket:
    if _todo(shard, request) != todo:
        raise _Moved
    now = shard.begin_push()
    shard.tick(now, shard.clock.monotonic())
    pushes = [
        Pushes(request.queue, batch, batch.partitions, [batch.count], [number]) for number, batch in enumerate(batches)
    ]
    plan = Plan(shard, Prepared(pushes, {}), now, client)
    queue = plan.queue(request.queue)
    done = todo.done + len(batches)
    is_whole = todo.done == 0 and done == len(todo.staged)
    files = ([], 0) if is_whole else (list(todo.staged), done)
    committed = SinkCommitted(queue.id, request.sink, todo.batch, now, request.origin, request.is_once, *files)
    # First, so that the push is last: its batch need not be copied then.
    return plan.commit([committed, *plan.entries], "fsync")
