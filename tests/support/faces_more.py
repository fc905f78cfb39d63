"""The faces that have no Python client: gRPC, by its stub, and the WebSocket, by its JSON."""

from __future__ import annotations

import json
from contextlib import ExitStack
from datetime import datetime
from itertools import count
from typing import Any

import grpc
import msgspec
from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp
from websockets.sync.client import connect as connect_socket

from penstock.batch import Batch
from penstock.errors import InputError, PenstockError
from penstock.model import ContentType, Message, MessageId, QueueOptions, Receipt, to_datetime, to_micros
from penstock.replies import Member, Membership
from penstock.server.grpc.generated import queues_pb2
from penstock.wire.errors import CLASSES, ErrorReply, to_error
from penstock.wire.json_options import OptionsChange, changes_of
from penstock.wire.json_shapes import json_name
from tests.support.faces import FACES, Face, HttpFace, RemoteFace
from tests.support.json_over_http.client import messages_of

pb: Any = queues_pb2
DEFAULTS = {"group": "default", "start": "earliest"}
RAW_HOWS = ("ack", "nack", "reject", "release", "snooze")


class Unsayable(Exception):
    """The protocol has no way to say this."""


class RawDelivery:
    """A delivery as a protocol without a client hands it out, with what a Python client would show."""

    def __init__(self, face: Any, lease: RawLease, fields: dict[str, Any]) -> None:
        self._face = face
        self._lease = lease
        self.__dict__.update(fields)
        self.id = MessageId.parse(fields["id"])
        self.proof = Receipt.parse(fields["receipt"])

    def __getattr__(self, name: str) -> Any:
        if name not in (*RAW_HOWS, "extend"):
            raise AttributeError(name)
        return lambda **args: self._face.end(name, [self.receipt], "", args)


class RawLease:
    """What was leased."""

    def __init__(self, face: Any, lease_id: str) -> None:
        self._face = face
        self.lease_id = lease_id
        self.deliveries: list[RawDelivery] = []

    def __len__(self) -> int:
        return len(self.deliveries)

    def __getitem__(self, index: int) -> RawDelivery:
        return self.deliveries[index]

    def __getattr__(self, name: str) -> Any:
        if name not in (*RAW_HOWS, "extend"):
            raise AttributeError(name)
        return lambda **args: self._face.end(name, [], self.lease_id, args)


def _millis(value: Any) -> int:
    """A duration that a protocol of whole milliseconds can say."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**50:
        raise Unsayable
    if value * 1000 != int(value * 1000):
        raise Unsayable
    return int(value * 1000)


def _number(value: Any, below: int = 2**32) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < below:
        raise Unsayable
    return value


def _place(value: Any) -> str:
    """A partition, which has a name here, whatever it is called by elsewhere."""
    if isinstance(value, int) and (isinstance(value, bool) or not 0 <= value < 2**31):
        raise Unsayable
    return _word(str(value) if isinstance(value, int) else value)


def _word(value: Any) -> str:
    """Text that is not empty: that would mean that there is none."""
    if not isinstance(value, str) or not value or not _is_utf8(value):
        raise Unsayable
    return value


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _instant(value: Any) -> Timestamp:
    try:
        micros = to_micros(value, "at")
    except InputError:
        raise Unsayable from None
    if not 0 <= micros < 253_402_300_800_000_000:
        raise Unsayable
    return Timestamp(seconds=micros // 1_000_000, nanos=micros % 1_000_000 * 1000)


class GrpcFace(RemoteFace):
    """gRPC, for all that it offers; TCP for the rest."""

    def open(self) -> None:
        super().open()
        from tests.support.grpc_stub import Stub

        self.channel = grpc.insecure_channel(self.served.url("grpc").removeprefix("grpc://"))
        self.stub = Stub(self.channel)

    def close(self) -> None:
        self.channel.close()
        super().close()

    def _ran(self, step: Any) -> Any:
        own = getattr(self, f"say_{step.op}", None)
        try:
            return super()._ran(step) if own is None else own(**step.args)
        except Unsayable:
            return super()._ran(step)
        except grpc.RpcError as error:
            raise _refusal(error) from None

    # messages

    def say_push_many(self, queue: Any, items: Any, durability: Any = None) -> Any:
        if durability is not None or not isinstance(items, list):
            raise Unsayable
        response = self.stub.Push(self._push_request(queue, items))
        return list(response.ids), list(response.duplicates)

    def _push_request(self, queue: Any, items: Any) -> Any:
        return pb.PushRequest(queue=_word(queue), messages=map(self._message, items))

    def say_push(self, queue: Any, payload: Any, durability: Any = None, **options: Any) -> Any:
        if durability is not None:
            raise Unsayable
        message = self._message(Message(payload=payload, **options))
        return self.stub.Push(pb.PushRequest(queue=_word(queue), messages=[message])).ids[0]

    def _message(self, item: Any) -> Any:
        message = item if isinstance(item, Message) else Message(payload=item)
        made = pb.NewMessage()
        try:
            batch = Batch.build([Message(payload=message.payload, content_type=message.content_type)])
        except PenstockError:
            raise Unsayable from None
        made.payload, made.content_type = batch.payload(0), int(batch.content_type_of(0))
        for name in ("key", "dedup_key", "trace"):
            if getattr(message, name) is not None:
                setattr(made, name, _word(getattr(message, name)))
        if message.partition is not None:
            made.partition = _place(message.partition)
        if message.priority != 128:
            made.priority = 0 if message.priority is not False and message.priority == 0 else _number(message.priority)
        made.delay_ms = _millis(message.delay)
        if message.ttl is not None:
            made.ttl_ms = _number(_millis(message.ttl), 2**50)
        if message.max_attempts is not None:
            made.max_attempts = _number(message.max_attempts)
        if message.deliver_at is not None:
            made.deliver_at.CopyFrom(_instant(message.deliver_at))
        self._add_headers(made, message.headers)
        return made

    def _add_headers(self, made: Any, headers: Any) -> None:
        if headers is None:
            return
        if not isinstance(headers, dict):
            raise Unsayable
        for name, value in headers.items():
            if not (isinstance(name, str) and isinstance(value, str) and _is_utf8(name + value)):
                raise Unsayable
            made.headers[name] = value

    def say_lease(self, queue: Any, max: Any = 1, group: Any = "default", **args: Any) -> Any:
        request = pb.LeaseRequest(queue=_word(queue), max=_number(max), group=_word(group))
        if args.get("start") is not None:
            request.start.CopyFrom(_position(args["start"]))
        if args.get("wait", 0) != 0 or not isinstance(args.get("auto_ack", False), bool):
            raise Unsayable
        request.auto_ack = args.get("auto_ack", False)
        if args.get("lease_seconds") is not None:
            request.lease_ms = _millis(args["lease_seconds"])
        if args.get("consumer"):
            request.consumer = _word(args["consumer"])
        if args.get("partitions") is not None:
            given = args["partitions"]
            if not isinstance(given, list) or not given:
                raise Unsayable
            request.partitions.extend(map(_place, given))
        return self._leased(self.stub.Lease(request))

    def _leased(self, response: Any) -> RawLease:
        lease = RawLease(self, response.lease_id)
        expires_at = _moment(response.expires_at)
        for each in response.deliveries:
            fields = {name: getattr(each, name) for name in ("id", "receipt", "payload", "attempt", "priority")}
            fields |= {"key": each.key or None, "trace": each.trace or None, "headers": dict(each.headers)}
            fields |= {"content_type": ContentType(each.content_type), "pushed_at": _moment(each.pushed_at)}
            lease.deliveries.append(RawDelivery(self, lease, fields | {"expires_at": expires_at, "dedup_key": None}))
        if lease:
            self.leases.append(lease)
        return lease

    def end(self, how: str, receipts: list[str], lease_id: str, args: dict[str, Any]) -> None:
        """Settle, or extend, as the client's deliveries do."""
        try:
            if how == "extend":
                self._extend(receipts, lease_id, args)
                return
            settlement = pb.Settlement(receipts=receipts, lease_id=lease_id)
            part = getattr(settlement, how)
            part.SetInParent()
            for name, value in args.items():
                if name in ("error", "reason"):
                    setattr(part, name, _word(value) if value != "" else "")
                elif value is not None or how == "snooze":
                    part.delay_ms = _millis(value)
        except Unsayable:
            self._end_elsewhere(how, receipts, lease_id, args)
            return
        result = self.stub.Settle(pb.SettleRequest(settlements=[settlement])).results[0]
        if result.HasField("error"):
            raise to_error(ErrorReply(result.error.code, result.error.message, result.error.hint))

    def _extend(self, receipts: list[str], lease_id: str, args: dict[str, Any]) -> None:
        ids = [lease_id] if lease_id else []
        request = pb.ExtendRequest(receipts=receipts, lease_ids=ids, lease_ms=_millis(args["seconds"]))
        result = self.stub.Extend(request).results[0]
        if result.HasField("error"):
            raise to_error(ErrorReply(result.error.code, result.error.message, result.error.hint))

    def _end_elsewhere(self, how: str, receipts: list[str], lease_id: str, args: dict[str, Any]) -> None:
        end_with_client(self.ps.session, how, receipts, lease_id, args)

    # looking

    def say_stats(self, queue: Any) -> Any:
        found = self.stub.GetStats(pb.GetStatsRequest(queue=_word(queue)))
        groups = {}
        for each in found.groups:
            names = ("name", "messages", "ready", "leased", "waiting", "acked", "dead", "dropped", "lag", "paused")
            groups[each.name] = {name: getattr(each, name) for name in names} | {
                "dropped_by": dict(each.dropped_by),
                "oldest_unsettled_at": _moment(each.oldest_unsettled_at)
                if each.HasField("oldest_unsettled_at")
                else None,
            }
        rest = {
            name: getattr(found, name) for name in ("messages", "partitions", "bytes_stored", "paused", "push_paused")
        }
        return {"name": found.queue, "groups": groups, **rest}

    def say_read(self, queue: Any, partition: Any, limit: Any, offset: Any = None, timestamp: Any = None) -> Any:
        request = pb.ReadRequest(queue=_word(queue), partition=_place(partition), limit=_number(limit))
        if offset is not None:
            request.offset = 0 if offset == 0 and offset is not False else _number(offset, 2**64)
        if timestamp is not None:
            request.timestamp.CopyFrom(_instant(timestamp))
        return _messages(self.stub.Read(request))

    def say_peek(self, queue: Any, limit: Any) -> Any:
        return _messages(self.stub.Peek(pb.PeekRequest(queue=_word(queue), limit=_number(limit))))

    def say_delayed(self, queue: Any, limit: Any) -> Any:
        return _messages(self.stub.ListDelayed(pb.ListDelayedRequest(queue=_word(queue), limit=_number(limit))))

    def say_why(self, queue: Any, id: Any) -> Any:
        found = self.stub.Why(pb.WhyRequest(id=_id(id)))
        return [
            (
                each.group,
                each.code,
                each.text,
                each.outcome,
                each.error,
                _moment(each.due_at) if each.HasField("due_at") else None,
            )
            for each in found.reasons
        ]

    def say_cancel(self, queue: Any, id: Any) -> None:
        self.stub.Cancel(pb.CancelRequest(id=_id(id)))

    # queues

    def say_create_queue(self, queue: Any, exist_ok: Any = True, **options: Any) -> None:
        if not isinstance(exist_ok, bool):
            raise Unsayable
        self.stub.CreateQueue(pb.CreateQueueRequest(queue=_word(queue), options=_options(options), exist_ok=exist_ok))

    def say_update_queue(self, queue: Any, **changes: Any) -> None:
        self.stub.UpdateQueue(pb.UpdateQueueRequest(queue=_word(queue), options=_options(changes)))

    def say_options(self, queue: Any) -> Any:
        found = self.stub.GetQueue(pb.GetQueueRequest(queue=_word(queue)))
        return QueueOptions(**changes_of(msgspec.convert(MessageToDict(found.options), OptionsChange, strict=False)))

    def say_queues(self) -> Any:
        return list(self.stub.ListQueues(pb.ListQueuesRequest()).queues)

    def say_resume(self, queue: Any) -> None:
        self.stub.Resume(pb.ResumeRequest(queue=_word(queue)))

    def say_transaction(self, parts: Any) -> Any:
        request = pb.TransactRequest()
        for what, args in parts:
            if what in ("push", "push_many"):
                items = args["items"] if what == "push_many" else [Message(**_without(args, "queue"))]
                if not items:
                    raise Unsayable  # which is no step of a transaction
                request.operations.add().push.CopyFrom(self._push_request(args["queue"], items))
            elif self.leases:
                leased = self.leases[args["lease"] % len(self.leases)]
                settlement = pb.Settlement(receipts=[str(leased[args["row"] % len(leased)].proof)])
                getattr(settlement, what).SetInParent()
                request.operations.add().settle.CopyFrom(settlement)
        answer = self.stub.Transact(request)
        return [list(each.ids) for each in answer.pushes]

    # groups

    def say_groups(self, queue: Any) -> Any:
        found = self.stub.ListGroups(pb.ListGroupsRequest(queue=_word(queue))).groups
        names = ("partition", "start_offset", "committed_offset", "end_offset", "lag")
        return {group.name: [[getattr(lag, name) for name in names] for lag in group.partitions] for group in found}

    def say_members(self, queue: Any, group: Any) -> Any:
        found = self.stub.ListMembers(pb.ListMembersRequest(queue=_word(queue), group=_word(group))).members
        return [Member(e.member, e.generation, list(e.partitions), _moment(e.last_heartbeat_at)) for e in found]

    def say_join(self, queue: Any, group: Any, member: Any, session_seconds: Any, start: Any = None) -> Any:
        request = pb.JoinRequest(queue=_word(queue), group=_word(group), member=_word(member))
        request.session_ms = _millis(session_seconds)
        if start is not None:
            request.start.CopyFrom(_position(start))
        reported = _assignment(self.stub.Join(request))
        self.joined.append((queue, group, member, reported.generation))
        return reported

    def say_heartbeat(self, of: int, held: Any) -> Any:
        if not self.joined:
            return None
        queue, group, member, generation = self.joined[of % len(self.joined)]
        about = {"queue": queue, "group": group, "member": member, "generation": generation}
        return _assignment(self.stub.Heartbeat(pb.HeartbeatRequest(**about, held=held)))

    def say_leave(self, of: int) -> None:
        if self.joined:
            queue, group, member, generation = self.joined[of % len(self.joined)]
            about = {"queue": queue, "group": group, "member": member, "generation": generation}
            self.stub.Leave(pb.LeaveRequest(**about))

    def say_lease_as_member(self, of: int, max: int) -> Any:
        if not self.joined:
            return None
        queue, group, member, generation = self.joined[of % len(self.joined)]
        about = {"queue": queue, "group": group, "member": member, "generation": generation}
        return self._leased(self.stub.Lease(pb.LeaseRequest(**about, max=max, lease_ms=60_000)))

    def say_create_group(self, queue: Any, name: Any, start: Any = "earliest", observes: Any = False) -> None:
        if not isinstance(observes, bool):
            raise Unsayable
        request = pb.CreateGroupRequest(queue=_word(queue), group=_word(name), observes=observes)
        request.start.CopyFrom(_position(start))
        self.stub.CreateGroup(request)

    def say_delete_group(self, queue: Any, name: Any) -> None:
        self.stub.DeleteGroup(pb.DeleteGroupRequest(queue=_word(queue), group=_word(name)))

    def say_seek(self, queue: Any, group: Any, to: Any, partition: Any = None) -> None:
        request = pb.SeekRequest(queue=_word(queue), group=_word(group), to=_position(to))
        if partition is not None:
            request.partition = _place(partition)
        self.stub.Seek(request)

    def say_delete_queue(self, queue: Any) -> None:
        self.stub.DeleteQueue(pb.DeleteQueueRequest(queue=_word(queue)))

    def say_pause(self, queue: Any) -> None:
        self.stub.Pause(pb.PauseRequest(queue=_word(queue)))

    def say_purge(self, queue: Any) -> None:
        self.stub.Purge(pb.PurgeRequest(queue=_word(queue)))

    def say_purge_letters(self, queue: Any) -> None:
        self.stub.PurgeDeadLetters(pb.PurgeDeadLettersRequest(queue=_word(queue)))

    def say_redrive(self, queue: Any, limit: Any = None, rate: Any = None, letters: Any = None, **filters: Any) -> Any:
        if filters.get("ids") is not None or letters == []:
            raise Unsayable
        request = pb.RedriveRequest(queue=_word(queue), filter=_filter(filters))
        request.filter.ids.extend(f"{queue}.dlq/0/{offset}" for offset in letters or ())
        if limit is not None:
            request.limit = _number(limit, 2**64)
        if rate is not None:
            if isinstance(rate, bool) or not isinstance(rate, int | float):
                raise Unsayable
            request.per_second = rate
        return self.stub.Redrive(request).count

    def say_letters(self, queue: Any, limit: Any = 100, **filters: Any) -> Any:
        request = pb.ListDeadLettersRequest(queue=_word(queue), filter=_filter(filters), limit=_number(limit))
        return _messages(self.stub.ListDeadLetters(request))


def _options(given: dict[str, Any]) -> Struct:
    """Options as gRPC has them, which are those of HTTP: durations in milliseconds."""
    made = Struct()
    for name, value in given.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number:
            made[json_name(name)] = _option_number(name, value)
        elif value is None or isinstance(value, bool) or (isinstance(value, str) and _is_utf8(value)):
            made[json_name(name)] = value
        else:
            raise Unsayable
    return made


def _option_number(name: str, value: Any) -> float:
    if not abs(value) < 2**53:
        raise Unsayable
    if name.endswith("_seconds"):
        return float(value * 1000)
    if isinstance(value, float) and value.is_integer():
        raise Unsayable  # it has one kind of numbers only
    return float(value)


def _assignment(found: Any) -> Membership:
    return Membership(
        found.member, found.generation, list(found.assigned), list(found.revoking), found.heartbeat_ms / 1000
    )


def _without(args: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in args.items() if name not in names}


def _filter(given: dict[str, Any]) -> Any:
    made = pb.LetterFilter()
    for name, value in given.items():
        if name in ("since", "until"):
            getattr(made, name).CopyFrom(_instant(value))
        elif isinstance(value, str) and _is_utf8(value):
            setattr(made, name, value)
        else:
            raise Unsayable
    return made


def _position(value: Any) -> Any:
    if value in ("earliest", "latest") and isinstance(value, str):
        return pb.Position(**{value: True})
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64:
        return pb.Position(offset=value)
    if isinstance(value, dict) and value:
        if not all(isinstance(n, str) and isinstance(v, int) and 0 <= v < 2**64 for n, v in value.items()):
            raise Unsayable
        return pb.Position(offsets=pb.PartitionOffsets(offsets=value))
    return pb.Position(timestamp=_instant(value))


def _id(value: Any) -> str:
    return _word(str(value) if isinstance(value, MessageId) else value)


def _messages(response: Any) -> list[dict[str, Any]]:
    found = []
    for each in response.messages:
        fields = {name: getattr(each, name) for name in ("id", "payload", "priority")}
        fields |= {name: getattr(each, name) or None for name in ("key", "dedup_key", "max_attempts", "trace")}
        fields |= {"content_type": ContentType(each.content_type), "headers": dict(each.headers)}
        for name in ("pushed_at", "available_at", "expires_at"):
            fields[name] = _moment(getattr(each, name)) if each.HasField(name) else None
        found.append(fields | {"partition": each.id.split("/")[1], "retry": None})  # asked for in lists of retries only
    return found


def _moment(value: Timestamp) -> datetime:
    return to_datetime(value.seconds * 1_000_000 + value.nanos // 1000)


def _refusal(error: Any) -> PenstockError:
    reported = dict(error.trailing_metadata())
    code = reported.get("penstock-code", "")
    if code not in CLASSES:
        raise AssertionError(f"gRPC says {error.code()}: {error.details()}")
    return to_error(ErrorReply(code, error.details(), ""))


def end_with_client(session: Any, how: str, receipts: list[str], lease_id: str, args: dict[str, Any]) -> None:
    """Settle through the Python client, whose deliveries check their arguments."""
    from penstock import validation
    from penstock.model import Outcome

    outcomes = {"ack": Outcome.ACKED, "nack": Outcome.RETRIED, "reject": Outcome.REJECTED,
                "release": Outcome.RELEASED, "snooze": Outcome.SNOOZED}  # fmt: skip
    nonce = int(lease_id, 16) if lease_id else Receipt.parse(receipts[0]).nonce
    if how == "extend":
        session.extend(nonce, validation.extension(args["seconds"]))
        return
    delay = args.get("delay", args.get("seconds"))
    if how == "snooze":
        settling = validation.settling(Outcome.SNOOZED, args["seconds"])
    else:
        settling = validation.settling(outcomes[how], delay, args.get("error", args.get("reason", "")))
    if lease_id:
        session.settle_lease(nonce, settling)
    else:
        session.settle([Receipt.parse(each) for each in receipts], settling)


class SocketFace(HttpFace):
    """Pushes, settles and extends over a WebSocket; HTTP for the rest."""

    def open(self) -> None:
        super().open()
        url = self.served.url("http").replace("http://", "ws://") + "/api/v1/stream"
        self.stack = ExitStack()
        self.socket = self.stack.enter_context(connect_socket(url))
        self.numbers = count(1)

    def close(self) -> None:
        self.stack.close()
        super().close()

    def _ask(self, kind: str, **fields: Any) -> Any:
        id = next(self.numbers)
        self.socket.send(msgspec.json.encode({"type": kind, "id": id, **fields}).decode())
        answer = json.loads(self.socket.recv(timeout=60))
        assert answer["id"] == id
        if answer["type"] == "error":
            raise _json_error(answer["error"])
        return answer

    def _ran(self, step: Any) -> Any:
        own = getattr(self, f"say_{step.op}", None)
        try:
            return super()._ran(step) if own is None else own(**step.args)
        except Unsayable:
            return super()._ran(step)

    def say_push(self, queue: Any, payload: Any, durability: Any = None, partition: Any = None, **options: Any) -> Any:
        ids, _ = self._push(queue, [Message(payload=payload, partition=partition, **options)], durability)
        return ids[0]

    def say_push_many(self, queue: Any, items: Any, durability: Any = None) -> Any:
        return self._push(queue, items, durability)

    def _push(self, queue: Any, items: Any, durability: Any) -> Any:
        try:
            batch = Batch.build(items)
        except PenstockError:
            raise Unsayable from None
        if not isinstance(queue, str) or not _is_utf8(queue):
            raise Unsayable
        extra = {} if durability is None else {"durability": durability}
        answer = self._ask("push", queue=queue, messages=messages_of(batch, batch.partitions), **extra)
        results = answer["results"]
        places = [place for place, result in enumerate(results) if result["status"] == "duplicate"]
        return [result["id"] for result in results], places

    def say_settle(self, lease: int, row: int | None, how: str, **args: Any) -> None:
        if not self.leases:
            return
        leased = self.leases[lease % len(self.leases)]
        proof = {"lease_id": leased.lease_id} if row is None else {"receipts": [leased[row % len(leased)].receipt]}
        fields: dict[str, Any] = {}
        for name, value in args.items():
            if name in ("error", "reason"):
                if not isinstance(value, str) or not _is_utf8(value):
                    raise Unsayable
                fields[name] = value
            elif isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
                raise Unsayable
            else:
                fields["lease_ms" if how == "extend" else "delay_ms"] = value * 1000
        result = self._ask(how, **proof, **fields)["results"][0]
        if result["status"] == "error":
            raise _json_error(result["error"])


def _json_error(error: dict[str, Any]) -> PenstockError:
    return to_error(ErrorReply(error["code"], error["message"], error["hint"]))


ALL_FACES: dict[str, type[Face]] = {**FACES, "grpc": GrpcFace, "websocket": SocketFace}
