"""Nodes of one store as processes: takeover, handover, and what a spare answers."""

from __future__ import annotations

import json
import signal
import threading

import grpc
import httpx
import psycopg
import pytest

import penstock
from penstock.cli import main
from penstock.cli.exits import SERVER_ERROR
from penstock.errors import DirectoryInUse
from penstock.server.grpc.generated import queues_pb2
from tests.support.grpc_stub import Stub

PATIENCE_SECONDS = 60


def until(check, patience=PATIENCE_SECONDS):
    """Wait for something that another process does."""
    turn = threading.Event()
    for _ in range(patience * 20):
        if check():
            return
        turn.wait(0.05)
    raise AssertionError("it did not happen")


def test_a_spare_takes_over_from_a_killed_owner_and_nothing_confirmed_is_lost(start_node):
    first, second = start_node("a"), start_node("b")
    assert (first.ready["role"], second.ready["role"]) == ("owner", "spare")
    with penstock.connect([first.url(), second.url()]) as ps:
        queue = ps.queue("orders")
        confirmed = [queue.push(b"%d" % number) for number in range(20)]
        held = queue.lease(max=5)
        held[0].ack()
        first.kill()

        confirmed += [queue.push(b"after")]
        until(lambda: second.status() == "ok")
        assert queue.stats().messages == len(confirmed) == 21
        # The ack that was confirmed holds; the leases of the dead owner ended, and their attempts count.
        again = queue.lease(max=100)
        assert {delivery.payload for delivery in again}.isdisjoint({b"0"})
        for delivery in again:
            delivery.ack()


def test_clients_of_every_protocol_learn_where_the_owner_is(run_node):
    owner, spare = run_node("a"), run_node("b")
    with penstock.connect(owner.url()) as ps:
        ps.queue("orders").push(b"1")

    with penstock.connect(spare.url()) as ps:  # over TCP it follows
        assert ps.queue("orders").stats().messages == 1
    with penstock.connect(spare.url("http")) as ps:  # over HTTP too
        assert ps.queue("orders").push(b"2")

    answer = httpx.get(f"{spare.url('http')}/api/v1/queues/orders")
    assert answer.status_code == 421
    assert answer.json()["error"]["code"] == "moved"
    assert answer.json()["error"]["address"] == owner.url("http")

    ready = httpx.get(f"{spare.url('http')}/readyz")
    assert (ready.status_code, ready.json()["status"]) == (503, "spare")

    channel = grpc.insecure_channel(spare.url("grpc"))
    with channel, pytest.raises(grpc.RpcError) as refused:
        Stub(channel).ListQueues(queues_pb2.ListQueuesRequest(), timeout=20)
    metadata = dict(refused.value.trailing_metadata())
    assert metadata["penstock-code"] == "moved"
    assert metadata["penstock-address"] == owner.url("grpc")


def test_sigterm_hands_over_and_costs_nobody_an_attempt(start_node):
    first, second = start_node("a"), start_node("b")
    with penstock.connect([first.url(), second.url()]) as ps:
        queue = ps.queue("orders")
        queue.push(b"1")
        delivery = queue.lease()[0]
        first.signal(signal.SIGTERM)
        delivery.ack()
        assert first.process.wait(PATIENCE_SECONDS) == 0
        queue.push(b"2")
        until(lambda: second.status() == "ok")
        again = queue.lease()[0]
        assert (again.payload, again.attempt) == (b"2", 1)


def test_a_drained_node_becomes_a_spare_and_goes_on(run_node, url, monkeypatch, capsys):
    first, second = run_node("a"), run_node("b")
    monkeypatch.setenv("PENSTOCK_STORE", url)
    assert main(["node", "drain", "a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"node": "a", "owner": "b"}
    until(lambda: second.status() == "ok" and first.status() == "spare")
    with penstock.connect(first.url()) as ps:
        assert ps.queue("orders").push(b"1")
    assert main(["node", "drain", "b"]) == 1
    assert "no other node can take over" in capsys.readouterr().err
    assert main(["store", "status", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["owner"], [(node["node"], node["is_alive"]) for node in status["nodes"]]) == (
        "b",
        [("a", True), ("b", True)],
    )


def test_a_stopped_owner_that_wakes_up_is_fenced_and_becomes_a_spare(start_node):
    first, second = start_node("a"), start_node("b")
    with penstock.connect(first.url()) as ps:
        ps.queue("orders").push(b"1")
    first.signal(signal.SIGSTOP)
    until(lambda: second.status() == "ok")
    with penstock.connect(second.url()) as ps:
        ps.queue("orders").push(b"2")
        first.signal(signal.SIGCONT)
        until(lambda: first.status() == "spare")
        assert ps.queue("orders").stats().messages == 2


def test_keys_are_shared_and_a_revoked_one_is_refused_by_spares_too(run_node):
    owner, spare = run_node("a", auth="on"), run_node("b", auth="on")
    with penstock.connect(owner.url()) as ps:  # the owner's own programs are let in
        key = ps.access.create_key("shop", grants=["producer:orders"])

    def status() -> int:
        bearer = {"authorization": f"Bearer {key.key}"}
        return httpx.get(f"{spare.url('http')}/api/v1/queues/orders", headers=bearer).status_code

    until(lambda: status() != 401)  # a spare learns of it with its next look
    with penstock.connect(spare.url(), token=key.key) as ps:
        assert ps.queue("orders").push(b"1")
    with penstock.connect(owner.url()) as ps:
        ps.access.revoke_key(key.id)
    until(lambda: status() == 401)


def test_a_frozen_node_whose_name_another_process_took_ends_when_it_wakes_up(start_node):
    """Or both would find their own name as the owner, and depose each other for ever."""
    first = start_node("a")
    with penstock.connect(first.url()) as ps:
        ps.queue("orders").push(b"1")
    first.signal(signal.SIGSTOP)
    second = start_node("a")
    until(lambda: second.status() == "ok")
    first.signal(signal.SIGCONT)

    assert first.process.wait(PATIENCE_SECONDS) == SERVER_ERROR
    assert first.process.stdout is not None
    assert "another process is already the node 'a'" in first.process.stdout.read()
    until(lambda: second.status() == "ok")
    with penstock.connect(second.url()) as ps:
        ps.queue("orders").push(b"2")
        assert ps.queue("orders").stats().messages == 2


def test_a_node_that_lost_its_connection_has_its_row_again(run_node, url):
    node = run_node("a")

    def row() -> tuple[int, int]:
        with psycopg.connect(url) as connection:
            found = connection.execute("SELECT backend, counter FROM penstock.nodes WHERE node = 'a'").fetchone()
            assert found is not None
            return found[0], found[1]

    backend, _ = row()
    with psycopg.connect(url) as connection:
        connection.execute("SELECT pg_terminate_backend(%s)", [backend])
    until(lambda: row()[0] != backend)
    counter = row()[1]
    until(lambda: row()[1] > counter)
    assert node.status() == "ok"


def test_a_second_process_with_the_name_of_a_node_is_refused(run_node):
    run_node("a")
    with pytest.raises(DirectoryInUse, match="another process is already the node 'a'"):
        run_node("a")
