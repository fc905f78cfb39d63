"""What a gRPC client can make the broker hold or look at is bounded, as far as gRPC lets it be."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import grpc
import grpc.aio
import pytest

from penstock import limits
from penstock.server.grpc import start_grpc
from penstock.server.grpc.generated import queues_pb2, tasks_pb2
from penstock.server.grpc.values import COUNTS_MAX
from tests.server.test_grpc import refused
from tests.server.test_grpc_tasks import tasking
from tests.support.broker_loop import broker_on, on_uvloop
from tests.support.grpc_stub import Stub

pb: Any = tasks_pb2
COUNTED_ELSEWHERE = {"PushRequest", "SettleRequest", "ExtendRequest"}  # see `check_count` and `_check_count`
SETTINGS, STREAMS_MAX = 4, 3  # of HTTP/2: the type of a frame, and what a setting is about


def test_every_list_in_a_request_has_a_limit():
    requests = {
        method.input_type
        for file in (queues_pb2, tasks_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
        if not method.client_streaming
    }
    lists = {
        (request.name, field.name)
        for request in requests
        for field in request.fields
        if field.is_repeated and not (field.message_type and field.message_type.GetOptions().map_entry)
    }

    assert {(name, field) for name, field in lists if name not in COUNTED_ELSEWHERE} == {
        (name, field) for name, counts in COUNTS_MAX.items() for field in counts
    }


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("ClaimTasks", pb.ClaimTasksRequest(worker_id="w", queues=["q"] * 101)),
        ("ClaimTasks", pb.ClaimTasksRequest(worker_id="w", queues=["q"] * 1_000_000)),
        ("ClaimTasks", pb.ClaimTasksRequest(worker_id="w", queues=["q"], max=10_001)),
        ("HeartbeatWorker", pb.HeartbeatWorkerRequest(receipts=[""] * (limits.lease_messages_max + 1))),
        ("HeartbeatWorker", pb.HeartbeatWorkerRequest(progress=[pb.RunProgress()] * 10_001)),
        ("GetStats", pb.GetTaskStatsRequest(queues=["q"] * 10_001)),
    ],
    ids=["queues", "very many queues", "tasks", "receipts", "progress", "stats"],
)
@on_uvloop
async def test_a_request_with_too_many_values_is_refused(method, request_):
    async with tasking() as stub:
        assert await refused(getattr(stub, method)(request_)) == ("INVALID_ARGUMENT", "invalid_field")


@on_uvloop
async def test_a_stream_for_too_many_tasks_is_refused():
    async with tasking() as stub:
        call = stub.StreamTaskUpdates(pb.StreamTaskUpdatesRequest(task_ids=["x"] * 10_001))

        assert await refused(call.read()) == ("INVALID_ARGUMENT", "invalid_field")


@on_uvloop
async def test_a_connection_is_reported_how_many_calls_it_may_have_at_a_time():
    async with broker_on() as broker:
        server = await start_grpc(broker, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + struct.pack(">IBI", SETTINGS, 0, 0)[:9])
        head = await reader.readexactly(9)
        body = await reader.readexactly(int.from_bytes(head[:3], "big"))
        writer.close()
        await server.close()

    assert head[3] == SETTINGS
    assert dict(struct.iter_unpack(">HI", body))[STREAMS_MAX] == limits.grpc_streams_max


@on_uvloop
async def test_there_are_no_more_connections_than_allowed():
    async with broker_on() as broker:
        server = await start_grpc(broker, "127.0.0.1", 0, connections_max=2)
        channels = [
            grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=[("grpc.use_local_subchannel_pool", 1)])
            for _ in range(3)
        ]
        first, second, third = (Stub(channel) for channel in channels)
        asked: Any = queues_pb2.ListQueuesRequest
        await first.ListQueues(asked())
        await second.ListQueues(asked())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await third.ListQueues(asked())
        await channels[0].close()
        while True:  # the place is free once the server has noticed
            try:
                await third.ListQueues(asked())
                break
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0)
        for channel in channels[1:]:
            await channel.close()
        await server.close()

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
