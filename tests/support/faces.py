"""The faces of Penstock, driven by the same steps: embedded, TCP and HTTP, each blocking and asyncio; JSON; gRPC;
WebSocket.

Every face has a system of its own, with a clock that is moved by hand. A step is the name of an operation and its
arguments in the words of the Python client; `Face.do` answers what came of it in a form that can be compared: the
result, or the code of the error and the field that it names. What gRPC and the WebSocket cannot say (an operation that
they do not have, a value of another type) is done by the Python client that stands beside them.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, NamedTuple

import msgspec

import penstock
from penstock import aio
from penstock import operations as ops
from penstock.client._async.delivery import Leased as AsyncLeased
from penstock.client._sync.delivery import Leased
from penstock.client.member import MemberState
from penstock.client.values import BaseLeased, PushResult
from penstock.clock import ManualClock
from penstock.embedded.asynchronous import AsyncSession
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import PenstockError
from penstock.model import Message, MessageId, check_name
from penstock.remote.settings import settings
from penstock.replies import Membership
from penstock.requests import LeaseRequest
from tests.support.faces_served import Served
from tests.support.forgetful import ForgetfulDisk
from tests.support.json_over_http.session import JsonSession

_FIELD = re.compile(r"(?:item \d+: |\w+\[\d+\]\.)*(\w+)(?:\[\d+\])?: ")
_UNITS = re.compile(r"_(ms|seconds)\Z")
_RENAMED = {"payload_base64": "payload", "to": "start", "name": "queue", "seconds": "lease"}
QUIET: dict[str, Any] = {"rate_limit_seconds": 0}
SECONDS = 60.0
TICKS_MAX = 100


class Step(NamedTuple):
    """One operation: its name, and its arguments."""

    op: str
    args: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.op}({', '.join(f'{name}={value!r}' for name, value in self.args.items())})"


class Outcome(NamedTuple):
    """What came of a step: `ok` and the result, `refused` and (code, field), or `crashed` and the exception."""

    what: str
    value: Any


def field_of(error: PenstockError) -> str:
    """The field that an error of the caller names, the same word for every face."""
    found = _FIELD.match(error.message)
    if found is None or not isinstance(error, penstock.errors.InputError):
        return ""
    name = _UNITS.sub("", found[1])
    return _RENAMED.get(name, name)


class Face:
    """A blocking client, of whatever session."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.clock = ManualClock()
        self.session = Session(
            None,
            disk=ForgetfulDisk(seed),
            clock=self.clock,
            rng=random.Random(seed),
            background=False,
            journal_file_bytes=1 << 15,
        )
        self.leases: list[Any] = []
        self.joined: list[tuple[str, str, str, int]] = []  # queue, group, member and generation
        self.open()

    def open(self) -> None:
        self.ps: Any = penstock.Penstock(BlockingSession(self.session))

    def close(self) -> None:
        self.session.close()

    # doing

    def do(self, step: Step) -> Outcome:
        """One step."""
        try:
            return Outcome("ok", plain(self._ran(step)))
        except PenstockError as error:
            return Outcome("refused", (error.code, field_of(error)))
        except Exception as error:  # noqa: BLE001 - whatever else it is, it is a fault
            return Outcome("crashed", f"{type(error).__name__}: {error}")
        finally:
            self._keep_time()

    def _ran(self, step: Step) -> Any:
        own = getattr(self, f"do_{step.op}", None)
        return own(**step.args) if own is not None else self._of_queue(step.op, **step.args)

    def wait(self, work: Any) -> Any:
        """The result of what a client answered; a coroutine of the asyncio one."""
        return work

    def _of_queue(self, op: str, queue: Any, **args: Any) -> Any:
        return self.wait(getattr(self.ps.queue(queue), op)(**args))

    # operations that are not simply a method of a queue

    def do_create_queue(self, queue: Any, **options: Any) -> None:
        self.wait(self.ps.create_queue(queue, **options))

    def do_update_queue(self, queue: Any, **changes: Any) -> None:
        self.wait(self.ps.update_queue(queue, **changes))

    def do_delete_queue(self, queue: Any) -> None:
        self.wait(self.ps.delete_queue(queue))

    def do_queues(self) -> Any:
        return self.wait(self.ps.queues())

    def do_options(self, queue: Any) -> Any:
        return self.wait(self.ps.queue(queue).options())

    def do_lease(self, queue: Any, **args: Any) -> Any:
        leased = self.wait(self.ps.queue(queue).lease(**args))
        if leased:
            self.leases.append(leased)
        return leased

    def do_settle(self, lease: int, row: int | None, how: str, **args: Any) -> None:
        """End one delivery of a lease, or with `row` None all of it."""
        if self.leases:
            leased = self.leases[lease % len(self.leases)]
            target = leased if row is None else leased[row % len(leased)]
            self.wait(getattr(target, how)(**args))

    def do_transaction(self, parts: Sequence[tuple[str, dict[str, Any]]]) -> Any:
        tx = self.ps.transaction()
        self._gather(tx, parts)
        tx.__enter__()
        tx.__exit__(None, None, None)
        return tx.ids

    def _gather(self, tx: Any, parts: Sequence[tuple[str, dict[str, Any]]]) -> None:
        for what, args in parts:
            if what in ("push", "push_many"):
                getattr(tx, what)(**args)
            elif self.leases:
                leased = self.leases[args["lease"] % len(self.leases)]
                getattr(tx, what)(leased[args["row"] % len(leased)])

    # membership, which the clients have no methods for: a subscription uses their sessions

    def do_join(self, queue: str, group: str, member: str, session_seconds: Any, start: Any = None) -> Any:
        check_name(queue)
        place = MemberState(
            queue, group, member, start, 1, None, session_seconds
        )  # checks what a subscription is given
        reported = self._of_session(ops.Join(queue, group, member, session_seconds, place.start))
        self.joined.append((queue, group, member, reported.generation))
        return reported

    def do_heartbeat(self, of: int, held: Sequence[str]) -> Any:
        """By the assignment that some join was told, which may be an old one."""
        return self._of_session(ops.Heartbeat(*self.joined[of % len(self.joined)], [*held])) if self.joined else None

    def do_leave(self, of: int) -> None:
        if self.joined:
            self._of_session(ops.Leave(*self.joined[of % len(self.joined)]))

    def do_lease_as_member(self, of: int, max: int) -> Any:
        if not self.joined:
            return None
        queue, group, member, generation = self.joined[of % len(self.joined)]
        leased = self._leased_by(queue, group, LeaseRequest(max, 60.0, member=member, generation=generation))
        if leased:
            self.leases.append(leased)
        return leased

    def _of_session(self, operation: ops.Operation[Any]) -> Any:
        """What the session of the client replies."""
        return self.wait(self.ps._session.execute(operation))

    def _leased_by(self, queue: str, group: str, request: LeaseRequest) -> Any:
        session = self.ps._session
        reply = session.lease(queue, group, request, 0.0)
        return Leased(session, reply)

    def do_letters(self, queue: Any, **args: Any) -> Any:
        return self.wait(self.ps.queue(queue).dlq.list(**args))

    def do_redrive(self, queue: Any, letters: Sequence[int] | None = None, **args: Any) -> Any:
        """`letters` are offsets of dead letters, which become ids."""
        dlq = self.ps.queue(queue).dlq
        if letters is not None:
            args["ids"] = [MessageId(f"{queue}.dlq", "0", offset) for offset in letters]
        return self.wait(dlq.redrive(**args))

    def do_purge_letters(self, queue: Any) -> None:
        self.wait(self.ps.queue(queue).dlq.purge())

    def do_seal(self) -> None:
        self.wait(self.ps.seal())

    def do_advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def _keep_time(self) -> None:
        """What is due by now is done, as the thread of a session would: in slices, as many as it takes."""
        for _ in range(TICKS_MAX):
            if self.session.timekeeper.tick() != 0:
                return
        raise AssertionError("something is due for ever")

    # what is left in the end

    def picture(self) -> dict[str, Any]:
        """Everything that can be seen from outside, read by the system itself."""
        ps = penstock.Penstock(BlockingSession(self.session))
        return {name: _queue_picture(ps.queue(name)) for name in sorted(ps.queues())}


def _queue_picture(queue: Any) -> dict[str, Any]:
    groups = queue.groups()
    names = [lag.partition for lag in groups["default"]]
    return {
        "stats": plain(queue.stats()),
        "groups": plain(groups),
        "options": plain(queue.options()),
        "messages": [plain(queue.read(partition=name, limit=10_000)) for name in names],
        "letters": plain(queue.dlq.list(limit=10_000)) if not queue.name.endswith(".dlq") else [],
    }


class AsyncFace(Face):
    """An asyncio client over the session in this process."""

    def open(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.ps = aio.Penstock(lambda: AsyncSession(self.session))
        self.wait(self.ps.__aenter__())

    def close(self) -> None:
        self.loop.close()
        self.session.close()

    def wait(self, work: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, SECONDS)) if asyncio.iscoroutine(work) else work

    def do_options(self, queue: Any) -> Any:
        return self.wait(self.ps.queue(queue).options())

    def do_transaction(self, parts: Sequence[tuple[str, dict[str, Any]]]) -> Any:
        tx = self.ps.transaction()
        self._gather(tx, parts)
        self.wait(tx.__aexit__(None, None, None))
        return tx.ids

    def _leased_by(self, queue: str, group: str, request: LeaseRequest) -> Any:
        return AsyncLeased(self.ps._session, self.wait(self.ps._session.lease(queue, group, request, 0.0)))


class RemoteFace(Face):
    """A blocking client of a broker."""

    protocol = "penstock"

    def open(self) -> None:
        self.served = Served(self.session)
        self.ps = penstock.connect(self.served.url(self.protocol), **QUIET)

    def close(self) -> None:
        self.ps.close()
        self.served.stop()
        self.session.close()


class HttpFace(RemoteFace):
    """The blocking client over HTTP."""

    protocol = "http"


class JsonFace(RemoteFace):
    """The JSON routes, which programs in other languages use."""

    def open(self) -> None:
        self.served = Served(self.session)
        self.ps = penstock.Penstock(JsonSession(settings(self.served.url("http"), **QUIET)))


class AsyncRemoteFace(AsyncFace):
    """An asyncio client of a broker."""

    protocol = "penstock"

    def open(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.served = Served(self.session)
        self.ps = aio.connect(self.served.url(self.protocol), **QUIET)
        self.wait(self.ps.__aenter__())

    def close(self) -> None:
        self.wait(self.ps.close())
        self.served.stop()
        super().close()


class AsyncHttpFace(AsyncRemoteFace):
    """The asyncio client over HTTP."""

    protocol = "http"


# results in a form that can be compared


def plain(value: Any) -> Any:
    """A result without what differs between two systems: nonces, and the classes that hold it."""
    if isinstance(value, Message):
        return _message(value)
    if isinstance(value, BaseLeased) or hasattr(value, "lease_id"):
        return [_delivery(each) for each in value]
    if isinstance(value, PushResult):
        return [[str(id) for id in value.ids], value.duplicates]
    if isinstance(value, MessageId):
        return str(value)
    if isinstance(value, Membership):  # gRPC knows no part of a millisecond
        value = msgspec.structs.replace(value, heartbeat_seconds=round(value.heartbeat_seconds, 3))
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, msgspec.Struct):
        return plain(msgspec.structs.asdict(value))
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def _message(message: Message) -> dict[str, Any]:
    found = {name: getattr(message, name) for name in Message.__slots__ if name not in ("delay", "deliver_at", "ttl")}
    found |= {"id": str(message.id), "headers": dict(message.headers or {}), "priority": int(message.priority)}
    return _without_empty_text(found)


def _delivery(delivery: Any) -> dict[str, Any]:
    proof = delivery.proof
    assert proof[:3] == tuple(delivery.id)
    assert proof.attempt == delivery.attempt
    names = ("payload", "key", "attempt", "priority", "trace", "content_type", "pushed_at", "expires_at")
    found = {name: getattr(delivery, name) for name in names} | {"id": str(delivery.id)}
    return _without_empty_text(found | {"headers": dict(delivery.headers)})


def _without_empty_text(found: dict[str, Any]) -> dict[str, Any]:
    """gRPC has no other word for none."""
    return found | {name: None for name in ("key", "trace", "dedup_key") if found.get(name) == ""}


FACES: dict[str, type[Face]] = {
    "embedded": Face,
    "embedded asyncio": AsyncFace,
    "tcp": RemoteFace,
    "tcp asyncio": AsyncRemoteFace,
    "http": HttpFace,
    "http asyncio": AsyncHttpFace,
    "json": JsonFace,
}
