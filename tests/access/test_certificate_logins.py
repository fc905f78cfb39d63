"""A client certificate as a credential: its name stands for a principal, over TCP, HTTP and gRPC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

import penstock
from penstock.errors import NotAuthenticated, NotAuthorised
from penstock.server.grpc.generated import queues_pb2 as pb
from tests.support.tls import Certificates, TlsBroker


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def serve(certificates: Certificates, folder: Path, **settings: Any) -> TlsBroker:
    given = certificates.server() | {"tls_client_ca": certificates.ca, "auth": "on"}
    broker = TlsBroker(folder, **given | settings)
    assert broker.server.broker is not None
    access = broker.server.broker.session.access
    access.set_user("billing", grants=["producer:orders"], certificates=["billing"])
    return broker


@pytest.mark.parametrize("protocol", ["tcp", "http"])
def test_the_name_in_a_certificate_stands_for_a_principal(certificates, tmp_path, protocol):
    with serve(certificates, tmp_path) as broker:
        with penstock.connect(broker.url(protocol), **certificates.client("billing", file="billing")) as ps:
            ps.queue("orders").push(b"one")
            with pytest.raises(NotAuthorised, match="'billing' lacks the permission consume"):
                ps.queue("orders").lease()
        with pytest.raises(NotAuthenticated):
            penstock.connect(broker.url(protocol), **certificates.client("stranger", file="stranger"))


def test_the_same_over_grpc(certificates, tmp_path):
    with serve(certificates, tmp_path, grpc_port=0, tls_client="required") as broker:  # else gRPC asks for none
        files = certificates.client("billing", file="billing")
        credentials = grpc.ssl_channel_credentials(
            *(Path(files[name]).read_bytes() for name in ("tls_ca", "tls_key", "tls_certificate"))
        )
        with grpc.secure_channel(f"localhost:{broker.port('grpc')}", credentials) as channel:
            push = channel.unary_unary(
                "/penstock.v1.Queues/Push", lambda m: m.SerializeToString(), pb.PushResponse.FromString
            )
            assert push(pb.PushRequest(queue="orders", messages=[pb.NewMessage(payload=b"one")]), timeout=30).ids
            with pytest.raises(grpc.RpcError, match="PERMISSION_DENIED"):
                push(pb.PushRequest(queue="mail", messages=[pb.NewMessage(payload=b"one")]), timeout=30)


def push_on(ps: penstock.Penstock) -> None:
    for _ in range(1000):
        ps.queue("orders").push(b"two")


@pytest.mark.parametrize("protocol", ["tcp", "http"])
def test_a_certificate_that_stands_for_nobody_any_more_is_cut_off(certificates, tmp_path, protocol):
    with serve(certificates, tmp_path) as broker:
        options = certificates.client("billing", file="billing") | {"timeout": 5}
        with penstock.connect(broker.url(protocol), **options) as ps:
            ps.queue("orders").push(b"one")
            assert broker.server.broker is not None
            broker.server.broker.session.access.set_user("billing", certificates=[])
            with pytest.raises(NotAuthenticated):
                push_on(ps)
