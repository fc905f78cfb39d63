"""Callables for every method of the gRPC service, on any channel: what a generated stub would be."""

from __future__ import annotations

from typing import Any

from penstock.server.grpc.generated import queues_pb2, tasks_pb2

MESSAGES = {"Queues": queues_pb2, "Tasks": tasks_pb2}


class Stub:
    """`Stub(channel).Push(request)`; the channel may be a blocking one or one of asyncio."""

    def __init__(self, channel: Any, service: str = "Queues") -> None:
        pb: Any = MESSAGES[service]
        for method in pb.DESCRIPTOR.services_by_name[service].methods:
            kind = ("stream" if method.client_streaming else "unary", "stream" if method.server_streaming else "unary")
            call = getattr(channel, "_".join(kind))(
                f"/penstock.v1.{service}/{method.name}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=getattr(pb, method.output_type.name).FromString,
            )
            setattr(self, method.name, call)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)
