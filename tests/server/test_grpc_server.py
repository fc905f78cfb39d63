"""What surrounds the gRPC service: reflection, health, traces, the compiled form, and life without the extra."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from penstock.server.grpc.generated import queues_pb2
from penstock.server.grpc.messages import batch_of
from protos import compile as protos
from tests.server.test_grpc import serving
from tests.support.broker_loop import on_uvloop
from tests.test_cost import calls

pb: Any = queues_pb2


@on_uvloop
async def test_reflection_lists_the_service_and_health_answers():
    async with serving() as stub:
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        call = reflection_pb2_grpc.ServerReflectionStub(stub.channel).ServerReflectionInfo(iter([asked]))
        listed = {service.name for service in (await call.read()).list_services_response.service}
        check = health_pb2_grpc.HealthStub(stub.channel).Check
        health = await check(health_pb2.HealthCheckRequest(service="penstock.v1.Queues"))

        assert {"penstock.v1.Queues", "penstock.v1.Tasks", "grpc.health.v1.Health"} <= listed
        assert health.status == health_pb2.HealthCheckResponse.SERVING


@on_uvloop
async def test_a_server_that_is_about_to_end_says_so_to_those_who_check():
    async with serving() as stub:
        stub.server.stop_accepting()
        check = health_pb2_grpc.HealthStub(stub.channel).Check
        health = await check(health_pb2.HealthCheckRequest())

        assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING


@on_uvloop
async def test_the_trace_of_a_call_is_carried_to_the_consumer():
    parent, own = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-1"
    async with serving() as stub:
        metadata = (("traceparent", parent),)
        await stub.Push(pb.PushRequest(queue="q", payloads=[b"a"]), metadata=metadata)
        messages = [pb.NewMessage(payload=b"b"), pb.NewMessage(payload=b"c", trace=own)]
        await stub.Push(pb.PushRequest(queue="q", messages=messages), metadata=metadata)
        leased = await stub.Lease(pb.LeaseRequest(queue="q", max=3))

        assert [delivery.trace for delivery in leased.deliveries] == [parent, parent, own]


@pytest.mark.parametrize(
    ("request_of", "ceiling"),
    [
        (lambda payloads: pb.PushRequest(queue="q", payloads=payloads), 200),
        (lambda payloads: pb.PushRequest(queue="q", messages=[pb.NewMessage(payload=each) for each in payloads]), 300),
        (lambda payloads: pb.PushRequest(queue="q", messages=[pb.NewMessage(payload=b"", key="k")] * 1000), 4_500),
    ],
    ids=["payloads", "messages", "messages with keys"],
)
def test_a_thousand_messages_become_a_batch_without_work_for_each(request_of, ceiling):
    data = request_of([b"%0100d" % number for number in range(1_000)]).SerializeToString()
    request = pb.PushRequest.FromString(data)
    batch_of(request)

    assert calls(lambda _: batch_of(request), None) < ceiling  # type: ignore[arg-type]


@pytest.mark.parametrize("source", protos.SOURCES)
def test_the_compiled_form_is_that_of_the_sources(source):
    compiled = (protos.OUT / f"{source}.binpb").read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        fresh = protos.compile_descriptors(source, Path(folder) / f"{source}.binpb")
        types = protos.compile_types(source, Path(folder)).read_text(encoding="utf-8")
    read = descriptor_pb2.FileDescriptorSet.FromString

    assert read(compiled) == read(fresh), "run `make proto`"
    known = (protos.OUT / f"{source}_pb2.pyi").read_text(encoding="utf-8")
    assert [line for line in types.splitlines() if line.startswith("class ") and line not in known] == []


def test_every_method_has_a_handler():
    from penstock.server.grpc.service import METHODS

    for service, (messages, unary, traced, streamed) in METHODS.items():
        methods = {method.name for method in messages.DESCRIPTOR.services_by_name[service].methods}

        assert methods == {*unary, *traced, *streamed, *({"Stream"} if service == "Queues" else ())}


def test_without_the_extra_the_error_says_what_to_install():
    script = """
import asyncio, sys
sys.modules["grpc"] = None
import penstock.server, penstock.server.grpc
try:
    asyncio.run(penstock.server.grpc.start_grpc(None, "127.0.0.1", 0))
except penstock.PenstockError as error:
    print(error)
"""
    reported = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert "penstock-mq[grpc]" in reported
