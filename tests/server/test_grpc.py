"""gRPC: every method, over a real socket, with a blocking client and one of asyncio."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import struct_pb2
from google.protobuf.timestamp_pb2 import Timestamp

from penstock.batch import Batch
from penstock.errors import NotAuthorised
from penstock.server.grpc import start_grpc
from penstock.server.grpc.generated import queues_pb2
from tests.support.broker_loop import broker_on, on_uvloop, until
from tests.support.grpc_stub import Stub

pb: Any = queues_pb2


@asynccontextmanager
async def serving(path=None, **options):
    """A broker, and a stub of asyncio for it."""
    async with broker_on(path, **options) as broker:
        server = await start_grpc(broker, "127.0.0.1", 0)
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
                stub: Any = Stub(channel)
                stub.channel, stub.port, stub.broker, stub.server = channel, server.port, broker, server
                yield stub
        finally:
            await server.close()


def options(**values):
    struct = struct_pb2.Struct()
    struct.update(values)
    return struct


def code_of(error):
    return dict(error.trailing_metadata())["penstock-code"]


async def refused(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code().name, code_of(caught.value)


@pytest.mark.parametrize("where", ["memory", "disk"])
@on_uvloop
async def test_what_is_pushed_is_leased_with_all_its_fields_and_settled(where, tmp_path):
    async with serving(tmp_path / "data" if where == "disk" else None) as stub:
        message = pb.NewMessage(
            payload=b"one", key="k", priority=200, headers={"a": "b"}, trace="00-1-2-3", content_type=1
        )
        pushed = await stub.Push(pb.PushRequest(queue="q", messages=[message, pb.NewMessage(payload=b"two")]))
        leased = await stub.Lease(pb.LeaseRequest(queue="q", max=10, lease_ms=60_000, consumer="me"))
        first, second = leased.deliveries

        assert pushed.ids == ["q/0/0", "q/0/1"]
        assert (first.id, first.payload, first.key, first.priority) == ("q/0/0", b"one", "k", 200)
        assert (dict(first.headers), first.trace, first.content_type) == ({"a": "b"}, "00-1-2-3", 1)
        assert (second.payload, second.priority, second.attempt) == (b"two", 128, 1)
        assert not second.key
        assert first.pushed_at.seconds > 1_700_000_000
        assert leased.expires_at.seconds > first.pushed_at.seconds

        settled = await stub.Settle(
            pb.SettleRequest(settlements=[pb.Settlement(receipts=[first.receipt], ack=pb.Ack())])
        )
        rest = await stub.Settle(pb.SettleRequest(settlements=[pb.Settlement(lease_id=leased.lease_id, ack=pb.Ack())]))
        stats = await stub.GetStats(pb.GetStatsRequest(queue="q"))

        assert [result.HasField("error") for result in (*settled.results, *rest.results)] == [False, False]
        assert (stats.groups[0].name, stats.groups[0].acked, stats.groups[0].ready) == ("default", 2, 0)


@on_uvloop
async def test_a_thousand_payloads_go_in_as_one_batch_and_a_batch_goes_in_as_it_is():
    async with serving() as stub:
        payloads = [b"%d" % number for number in range(1000)]
        pushed = await stub.Push(pb.PushRequest(queue="q", payloads=payloads))
        sent = await stub.Push(pb.PushRequest(queue="q", batch=bytes(Batch.build([b"a", b"b"]).data)))
        leased = await stub.Lease(pb.LeaseRequest(queue="q", max=2000))

        assert len(pushed.ids) == 1000
        assert sent.ids == ["q/0/1000", "q/0/1001"]
        assert [delivery.payload for delivery in leased.deliveries] == [*payloads, b"a", b"b"]


@on_uvloop
async def test_duplicates_and_partitions_are_reported():
    async with serving() as stub:
        await stub.CreateQueue(pb.CreateQueueRequest(queue="q", options=options(partitions=4)))
        first = await stub.Push(pb.PushRequest(queue="q", messages=[pb.NewMessage(payload=b"a", dedup_key="x")]))
        again = await stub.Push(
            pb.PushRequest(
                queue="q", messages=[pb.NewMessage(payload=b"b"), pb.NewMessage(payload=b"a", dedup_key="x")]
            )
        )
        placed = await stub.Push(pb.PushRequest(queue="q", payloads=[b"c"], partition="3", durability=3))
        apart = await stub.Push(pb.PushRequest(queue="q", messages=[pb.NewMessage(payload=b"d", partition="2")]))

        assert again.ids[1] == first.ids[0]
        assert again.duplicates == [1]
        assert [placed.ids[0][:4], apart.ids[0][:4]] == ["q/3/", "q/2/"]


@on_uvloop
async def test_a_lease_waits_for_a_push():
    async with serving() as stub:
        await stub.CreateQueue(pb.CreateQueueRequest(queue="q"))
        waiting = asyncio.ensure_future(stub.Lease(pb.LeaseRequest(queue="q", wait_ms=20_000)))
        await until(lambda: stub.broker.waiting)
        await stub.Push(pb.PushRequest(queue="q", payloads=[b"a"]))

        assert [delivery.payload for delivery in (await waiting).deliveries] == [b"a"]
        assert not (await stub.Lease(pb.LeaseRequest(queue="q", wait_ms=1))).lease_id


@on_uvloop
async def test_a_cancelled_or_late_lease_stops_waiting_and_holds_nothing():
    async with serving() as stub:
        await stub.CreateQueue(pb.CreateQueueRequest(queue="q"))
        waiting = stub.Lease(pb.LeaseRequest(queue="q", wait_ms=60_000))
        await until(lambda: stub.broker.waiting)
        waiting.cancel()
        late = asyncio.ensure_future(stub.Lease(pb.LeaseRequest(queue="q", wait_ms=60_000), timeout=0.05))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await late
        await until(lambda: all(pending.is_over for pending in stub.broker.waiting))
        await stub.Push(pb.PushRequest(queue="q", payloads=[b"a"]))

        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert (await stub.Lease(pb.LeaseRequest(queue="q"))).deliveries[0].attempt == 1


@on_uvloop
async def test_a_lease_that_would_be_too_large_is_cut_and_the_rest_given_back():
    async with serving() as stub:
        await stub.Push(pb.PushRequest(queue="q", payloads=[bytes(100)] * 10))
        leased = await stub.Lease(pb.LeaseRequest(queue="q", max=10, max_bytes=900))
        rest = await stub.Lease(pb.LeaseRequest(queue="q", max=10))

        assert len(leased.deliveries) == 3
        assert [delivery.attempt for delivery in rest.deliveries] == [1] * 7


@on_uvloop
async def test_every_way_to_settle_and_a_result_for_each_receipt():
    async with serving() as stub:
        await stub.Push(pb.PushRequest(queue="q", payloads=[b"%d" % number for number in range(6)]))
        leased = await stub.Lease(pb.LeaseRequest(queue="q", max=6))
        proofs = [delivery.receipt for delivery in leased.deliveries]
        answer = await stub.Settle(
            pb.SettleRequest(
                settlements=[
                    pb.Settlement(receipts=[proofs[0], "nonsense", "q:0:0:1:00000000000000ff"], ack=pb.Ack()),
                    pb.Settlement(receipts=[proofs[1]], nack=pb.Nack(delay_ms=60_000, error="no")),
                    pb.Settlement(receipts=[proofs[2]], reject=pb.Reject(reason="bad")),
                    pb.Settlement(receipts=[proofs[3]], release=pb.Release()),
                    pb.Settlement(receipts=[proofs[4]], snooze=pb.Snooze(delay_ms=60_000)),
                ]
            )
        )
        extended = await stub.Extend(pb.ExtendRequest(receipts=[proofs[5], proofs[5][:-1]], lease_ms=60_000))
        dead = await stub.ListDeadLetters(pb.ListDeadLettersRequest(queue="q"))

        assert [result.error.code for result in answer.results] == ["", "bad_receipt", "lease_lost", "", "", "", ""]
        assert [result.error.code for result in extended.results] == ["", "lease_lost"]
        assert extended.results[0].expires_at.seconds >= leased.expires_at.seconds
        assert [letter.payload for letter in dead.messages] == [b"2"]
        assert (await stub.Lease(pb.LeaseRequest(queue="q", max=6))).deliveries[0].payload == b"3"


@on_uvloop
async def test_queues_are_made_changed_listed_paused_purged_and_deleted():
    async with serving() as stub:
        made = await stub.CreateQueue(pb.CreateQueueRequest(queue="q", options=options(partitions=2, lease_ms=5000)))
        changed = await stub.UpdateQueue(pb.UpdateQueueRequest(queue="q", options=options(max_length=7, ttl_ms=None)))
        shown = await stub.GetQueue(pb.GetQueueRequest(queue="q"))
        await stub.Push(pb.PushRequest(queue="q", payloads=[b"a"]))
        await stub.Pause(pb.PauseRequest(queue="q"))
        held = await stub.Lease(pb.LeaseRequest(queue="q"))
        await stub.Resume(pb.ResumeRequest(queue="q"))
        await stub.Purge(pb.PurgeRequest(queue="q"))
        purged = await stub.Lease(pb.LeaseRequest(queue="q"))
        listed = await stub.ListQueues(pb.ListQueuesRequest())
        await stub.DeleteQueue(pb.DeleteQueueRequest(queue="q"))

        assert (made.options["partitions"], made.options["lease_ms"]) == (2, 5000)
        assert (changed.options["max_length"], changed.options["partitions"]) == (7, 2)
        assert shown == changed
        assert not held.deliveries
        assert not purged.deliveries
        assert listed.queues == ["q"]
        assert not (await stub.ListQueues(pb.ListQueuesRequest())).queues


@on_uvloop
async def test_reading_peeking_delayed_cancelling_and_why():
    async with serving() as stub:
        later = Timestamp()
        later.FromDatetime(datetime(2100, 1, 1, tzinfo=UTC))
        messages = [pb.NewMessage(payload=b"a", ttl_ms=100_000), pb.NewMessage(payload=b"b", deliver_at=later)]
        pushed = await stub.Push(pb.PushRequest(queue="q", messages=messages))
        read = await stub.Read(pb.ReadRequest(queue="q", offset=0, limit=1))
        since = await stub.Read(pb.ReadRequest(queue="q", timestamp=later))
        peeked = await stub.Peek(pb.PeekRequest(queue="q", limit=5))
        delayed = await stub.ListDelayed(pb.ListDelayedRequest(queue="q"))
        why = await stub.Why(pb.WhyRequest(id=pushed.ids[1]))
        await stub.Cancel(pb.CancelRequest(id=pushed.ids[1]))

        assert [(message.id, message.payload) for message in read.messages] == [("q/0/0", b"a")]
        assert read.messages[0].expires_at.seconds - read.messages[0].pushed_at.seconds in (100, 99)
        assert not since.messages
        assert len(peeked.messages) == 2
        assert [message.payload for message in delayed.messages] == [b"b"]
        assert delayed.messages[0].available_at == later
        assert why.reasons[0].group == "default"
        assert not (await stub.ListDelayed(pb.ListDelayedRequest(queue="q"))).messages


@on_uvloop
async def test_groups_are_made_moved_listed_and_deleted():
    async with serving() as stub:
        await stub.Push(pb.PushRequest(queue="q", payloads=[b"a", b"b", b"c"]))
        for name, start in (("early", pb.Position(earliest=True)), ("late", pb.Position(latest=True))):
            await stub.CreateGroup(pb.CreateGroupRequest(queue="q", group=name, start=start))
        await stub.CreateGroup(pb.CreateGroupRequest(queue="q", group="plain"))
        await stub.Seek(pb.SeekRequest(queue="q", group="early", to=pb.Position(offset=2)))
        at = pb.Position(offsets=pb.PartitionOffsets(offsets={"0": 1}))
        await stub.Seek(pb.SeekRequest(queue="q", group="plain", to=at, partition="0"))
        groups = (await stub.ListGroups(pb.ListGroupsRequest(queue="q"))).groups
        await stub.Seek(pb.SeekRequest(queue="q", group="late", to=pb.Position(timestamp=Timestamp(seconds=1))))
        leased = await stub.Lease(pb.LeaseRequest(queue="q", group="late", max=9))
        await stub.DeleteGroup(pb.DeleteGroupRequest(queue="q", group="late"))

        assert {group.name: group.partitions[0].lag for group in groups} == {
            "default": 3, "early": 1, "late": 0, "plain": 2,
        }  # fmt: skip
        assert len(leased.deliveries) == 3
        assert len((await stub.ListGroups(pb.ListGroupsRequest(queue="q"))).groups) == 3


@on_uvloop
async def test_leases_that_are_held_are_listed():
    async with serving() as stub:
        await stub.Push(pb.PushRequest(queue="q", payloads=[b"a", b"b"]))
        leased = await stub.Lease(pb.LeaseRequest(queue="q", max=2, consumer="w-1"))
        (held,) = (await stub.ListLeases(pb.ListLeasesRequest(queue="q"))).leases

        assert (held.lease_id, held.group, held.consumer) == (leased.lease_id, "default", "w-1")
        assert (held.messages, list(held.partitions)) == (2, ["0"])
        assert held.leased_at.ToMicroseconds() < held.expires_at.ToMicroseconds()
        assert await refused(stub.ListLeases(pb.ListLeasesRequest(queue="q", group="none"))) == (
            "NOT_FOUND", "group_not_found",
        )  # fmt: skip


@on_uvloop
async def test_members_join_are_assigned_partitions_and_leave():
    async with serving() as stub:
        await stub.CreateQueue(pb.CreateQueueRequest(queue="q", options=options(partitions=2)))
        joined = await stub.Join(
            pb.JoinRequest(queue="q", group="g", member="m", session_ms=5000, start=pb.Position(earliest=True))
        )
        kept = await stub.Heartbeat(
            pb.HeartbeatRequest(queue="q", group="g", member="m", generation=joined.generation, held=joined.assigned)
        )
        members = (await stub.ListMembers(pb.ListMembersRequest(queue="q", group="g"))).members
        await stub.Push(pb.PushRequest(queue="q", payloads=[b"a"]))
        mine = pb.LeaseRequest(queue="q", group="g", member="m", generation=kept.generation)
        leased = await stub.Lease(mine)
        await stub.Leave(pb.LeaveRequest(queue="q", group="g", member="m", generation=kept.generation))

        assert sorted(kept.assigned) == ["0", "1"]
        assert kept.heartbeat_ms > 0
        assert [(member.member, sorted(member.partitions)) for member in members] == [("m", ["0", "1"])]
        assert [delivery.payload for delivery in leased.deliveries] == [b"a"]
        assert await refused(stub.Lease(mine)) == ("FAILED_PRECONDITION", "member_fenced")


@on_uvloop
async def test_a_dead_letter_is_replaced_by_an_edited_message():
    async with serving() as stub:
        await stub.Push(pb.PushRequest(queue="q", payloads=[b"bad"]))
        (delivery,) = (await stub.Lease(pb.LeaseRequest(queue="q"))).deliveries
        how = pb.Settlement(receipts=[delivery.receipt], reject=pb.Reject(reason="no"))
        await stub.Settle(pb.SettleRequest(settlements=[how]))
        edited = pb.ReplaceDeadLettersRequest(
            queue="q", ids=["q.dlq/0/0"], messages=[pb.NewMessage(payload=b"good", key="k")]
        )
        await stub.ReplaceDeadLetters(edited)
        (back,) = (await stub.Lease(pb.LeaseRequest(queue="q"))).deliveries

        assert (back.id, back.payload, back.key) == ("q/0/1", b"good", "k")
        assert not (await stub.ListDeadLetters(pb.ListDeadLettersRequest(queue="q"))).messages
        assert await refused(stub.ReplaceDeadLetters(edited)) == ("NOT_FOUND", "message_not_found")
        none = pb.ReplaceDeadLettersRequest(queue="q", messages=[pb.NewMessage(payload=b"good")])
        assert await refused(stub.ReplaceDeadLetters(none)) == ("INVALID_ARGUMENT", "invalid_field")


def search_request(text: str | None = None, cursor: str | None = None) -> pb.SearchMessagesRequest:
    return pb.SearchMessagesRequest(queue="q", filter=pb.MessageFilter(text=text), state="dead", cursor=cursor)


@on_uvloop
async def test_the_timeline_of_a_message():
    async with serving() as stub:
        await stub.Push(pb.PushRequest(queue="q", messages=[pb.NewMessage(payload=b"a", key="k")]))
        (delivery,) = (await stub.Lease(pb.LeaseRequest(queue="q", consumer="ann"))).deliveries
        how = pb.Settlement(receipts=[delivery.receipt], reject=pb.Reject(reason="bad"))
        await stub.Settle(pb.SettleRequest(settlements=[how]))
        details = await stub.GetMessage(pb.GetMessageRequest(id="q/0/0"))
        events = (await stub.ListMessageEvents(pb.ListMessageEventsRequest(id="q/0/0"))).events
        found = await stub.FindMessages(pb.FindMessagesRequest(queue="q", key="k"))

        assert (details.message.payload, [group.state for group in details.groups]) == (b"a", ["dead"])
        assert [event.what for event in events] == ["pushed", "leased", "rejected"]
        assert (events[2].consumer, events[2].error, events[2].letter) == ("ann", "bad", "q.dlq/0/0")
        assert [timeline.id for timeline in found.timelines] == ["q/0/0"]
        assert (list(found.timelines[0].events), found.examined, found.is_complete) == (list(events), 1, True)
        assert list((await stub.SearchMessages(search_request(text="a"))).messages) == [details.message]
        empty = await stub.SearchMessages(search_request(text="b"))
        assert (list(empty.messages), empty.examined, empty.HasField("cursor")) == ([], 1, False)
        assert await refused(stub.SearchMessages(search_request(cursor="x"))) == ("INVALID_ARGUMENT", "invalid_field")
        assert await refused(stub.FindMessages(pb.FindMessagesRequest(queue="q"))) == (
            "INVALID_ARGUMENT",
            "invalid_field",
        )


@on_uvloop
async def test_a_retry_is_listed_with_its_error():
    async with serving() as stub:
        await stub.Push(pb.PushRequest(queue="q", payloads=[b"a"]))
        (delivery,) = (await stub.Lease(pb.LeaseRequest(queue="q"))).deliveries
        how = pb.Settlement(receipts=[delivery.receipt], nack=pb.Nack(delay_ms=60_000, error="no luck"))
        await stub.Settle(pb.SettleRequest(settlements=[how]))
        (listed,) = (await stub.ListDelayed(pb.ListDelayedRequest(queue="q", include="retries"))).messages
        (reason,) = (await stub.Why(pb.WhyRequest(id="q/0/0"))).reasons

        assert (listed.retry.reason, listed.retry.error, listed.retry.attempt) == ("retried", "no luck", 2)
        assert (reason.outcome, reason.error, reason.due_at) == ("retried", "no luck", listed.retry.due_at)


@on_uvloop
async def test_dead_letters_are_found_sent_back_and_purged():
    async with serving() as stub:
        await stub.Push(pb.PushRequest(queue="q", payloads=[b"a", b"b"]))
        leased = await stub.Lease(pb.LeaseRequest(queue="q", max=2))
        for delivery in leased.deliveries:
            how = pb.Settlement(receipts=[delivery.receipt], reject=pb.Reject(reason=f"bad {delivery.id}"))
            await stub.Settle(pb.SettleRequest(settlements=[how]))
        chosen = pb.LetterFilter(error_contains="q/0/1")
        found = await stub.ListDeadLetters(pb.ListDeadLettersRequest(queue="q", filter=chosen))
        redriven = await stub.Redrive(pb.RedriveRequest(queue="q", filter=chosen))
        back = await stub.Lease(pb.LeaseRequest(queue="q", max=2))
        await stub.PurgeDeadLetters(pb.PurgeDeadLettersRequest(queue="q"))

        assert [letter.payload for letter in found.messages] == [b"b"]
        assert redriven.count == 1
        assert [(delivery.payload, delivery.attempt) for delivery in back.deliveries] == [(b"b", 1)]
        assert not (await stub.ListDeadLetters(pb.ListDeadLettersRequest(queue="q"))).messages


@on_uvloop
async def test_a_transaction_happens_whole_or_not_at_all():
    async with serving() as stub:
        await stub.Push(pb.PushRequest(queue="q", payloads=[b"a"]))
        delivery = (await stub.Lease(pb.LeaseRequest(queue="q"))).deliveries[0]
        push = pb.Operation(push=pb.PushRequest(queue="next", messages=[pb.NewMessage(payload=b"b", key="k")]))
        done = pb.Operation(settle=pb.Settlement(receipts=[delivery.receipt], ack=pb.Ack()))
        answer = await stub.Transact(pb.TransactRequest(operations=[push, done]))

        assert [push.ids for push in answer.pushes] == [["next/0/0"]]
        assert await refused(stub.Transact(pb.TransactRequest(operations=[push, done]))) == (
            "FAILED_PRECONDITION",
            "lease_lost",
        )
        assert (await stub.GetStats(pb.GetStatsRequest(queue="next"))).messages == 1


@on_uvloop
async def test_a_blocking_client_works_too():
    def scenario(port):
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = Stub(channel)
            stub.Push(pb.PushRequest(queue="q", payloads=[b"a", b"b"]))
            leased = stub.Lease(pb.LeaseRequest(queue="q", max=2))
            stub.Settle(pb.SettleRequest(settlements=[pb.Settlement(lease_id=leased.lease_id, ack=pb.Ack())]))
            stub.Push(pb.PushRequest(queue="q", payloads=[b"c"]))
            consumed = [
                delivery.payload
                for lease in stub.Consume(pb.StreamOpen(queue="q", credit=1))
                for delivery in lease.deliveries
            ]
            with pytest.raises(grpc.RpcError) as caught:
                stub.GetStats(pb.GetStatsRequest(queue="none"))
            return len(leased.deliveries), consumed, code_of(caught.value)

    async with serving() as stub:
        assert await asyncio.to_thread(scenario, stub.port) == (2, [b"c"], "queue_not_found")


WRONG = "INVALID_ARGUMENT"
BAD = {
    "no name": ("Push", pb.PushRequest(queue="no name", payloads=[b"a"]), WRONG, "invalid_name"),
    "two kinds": ("Push", pb.PushRequest(queue="q", payloads=[b"a"], batch=b"b"), WRONG, "invalid_field"),
    "no batch": ("Push", pb.PushRequest(queue="q", batch=b"nonsense"), WRONG, "bad_batch"),
    "a level": ("Push", pb.PushRequest(queue="q", payloads=[b"a"], durability=9), WRONG, "invalid_field"),
    "priority": (
        "Push", pb.PushRequest(queue="q", messages=[pb.NewMessage(priority=256)]), WRONG, "invalid_field",
    ),
    "content": (
        "Push", pb.PushRequest(queue="q", messages=[pb.NewMessage(content_type=9)]), WRONG, "invalid_field",
    ),
    "instant": (
        "Push",
        pb.PushRequest(queue="q", messages=[pb.NewMessage(deliver_at=Timestamp(seconds=-(2**40)))]),
        WRONG,
        "invalid_field",
    ),
    "large": (
        "Push", pb.PushRequest(queue="q", payloads=[bytes(11 * 2**20)]), WRONG, "too_large",
    ),
    "max": ("Lease", pb.LeaseRequest(queue="q", max=2**31), WRONG, "invalid_field"),
    "wait": ("Lease", pb.LeaseRequest(queue="q", wait_ms=2**60), WRONG, "invalid_field"),
    "group": ("Lease", pb.LeaseRequest(queue="q", group="*"), WRONG, "invalid_name"),
    "no queue": ("Lease", pb.LeaseRequest(queue="q"), "NOT_FOUND", "queue_not_found"),
    "no how": (
        "Settle", pb.SettleRequest(settlements=[pb.Settlement(receipts=["a"])]), WRONG, "invalid_field",
    ),
    "no receipts": (
        "Settle", pb.SettleRequest(settlements=[pb.Settlement(ack=pb.Ack())]), WRONG, "invalid_field",
    ),
    "option": (
        "CreateQueue", pb.CreateQueueRequest(queue="q", options=options(colour=1)), WRONG, "unknown_option",
    ),
    "value": (
        "CreateQueue", pb.CreateQueueRequest(queue="q", options=options(partitions=-1)), WRONG, "invalid_field",
    ),
    "id": ("Why", pb.WhyRequest(id="nonsense"), WRONG, "invalid_field"),
    "position": ("Seek", pb.SeekRequest(queue="q", to=pb.Position()), WRONG, "invalid_field"),
    "limit": ("Read", pb.ReadRequest(queue="q", limit=2**31), WRONG, "invalid_field"),
    "empty step": ("Transact", pb.TransactRequest(operations=[pb.Operation()]), WRONG, "invalid_field"),
    "interval": ("WatchEvents", pb.WatchEventsRequest(interval_ms=1), WRONG, "invalid_field"),
    "consume": ("Consume", pb.StreamOpen(queue="none"), "NOT_FOUND", "queue_not_found"),
}  # fmt: skip


@on_uvloop
async def test_bad_requests_are_refused_by_code_and_change_nothing():
    async with serving() as stub:
        found = {}
        for name, (method, request, *_) in BAD.items():
            call = getattr(stub, method)(request)
            found[name] = await refused(call.read() if hasattr(call, "read") else call)

        assert found == {name: (status, code) for name, (_, _, status, code) in BAD.items()}
        assert not (await stub.ListQueues(pb.ListQueuesRequest())).queues


@on_uvloop
async def test_bytes_that_are_no_message_are_a_bad_request():
    async with serving() as stub:
        call = stub.channel.unary_unary("/penstock.v1.Queues/Push")
        invalid_text = b"\x0a\x01\xff"

        assert await refused(call(b"\xff\xff\xff")) == (WRONG, "bad_request")
        assert await refused(call(invalid_text)) == (WRONG, "bad_request")


@on_uvloop
async def test_a_request_over_the_limit_is_refused_by_size_before_it_is_read():
    async with broker_on() as broker:
        server = await start_grpc(broker, "127.0.0.1", 0, request_bytes_max=1024)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await Stub(channel).Push(pb.PushRequest(queue="q", payloads=[bytes(2000)]))
        await server.close()

        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


@on_uvloop
async def test_whoever_may_not_is_refused():
    def nobody(principal, action, queue):
        raise NotAuthorised(f"{principal.name} may not {action}")

    async with serving(authorise=nobody) as stub:
        denied = ("PERMISSION_DENIED", "not_authorised")

        assert await refused(stub.Push(pb.PushRequest(queue="q", payloads=[b"a"]))) == denied
        assert await refused(stub.GetStats(pb.GetStatsRequest(queue="q"))) == denied
        assert await refused(stub.Consume(pb.StreamOpen(queue="q")).read()) == denied
        assert await refused(stub.WatchEvents(pb.WatchEventsRequest()).read()) == denied
