"""Who is connected: over every protocol, since when, and what is under way; and how a connection is ended."""

from __future__ import annotations

import pytest

from penstock import connect
from penstock import operations as ops
from penstock.errors import ConnectionNotFound, InvalidName
from tests.support.broker_process import Served


def listed(ps):
    return {view.protocol: view for view in ps.session.execute(ops.ListConnections()).connections}


def test_connections_are_listed_with_who_is_on_them(broker):
    with connect(broker.url("tcp")) as ps, connect(broker.url("http")) as web:
        web.queue("mail").push(b"x")

        known = listed(ps)

        assert known.keys() == {"tcp", "http"}
        assert known["tcp"].address == "127.0.0.1"
        assert known["tcp"].in_flight >= 1  # this very request
        page = ps.session.execute(ops.ListConnections(1))
        assert (len(page.connections), page.total) == (1, 2)
    with connect(broker.url("tcp")) as ps:
        assert listed(ps).keys() == {"tcp"}


def test_a_connection_that_is_ended_is_gone_and_its_client_comes_back(broker):
    with connect(broker.url("tcp")) as ps, connect(broker.url("tcp")) as other:
        other.queue("mail").push(b"x")
        before = {view.connection_id for view in ps.session.execute(ops.ListConnections()).connections}
        (own,) = [view for view in ps.session.execute(ops.ListConnections()).connections if view.in_flight]
        (target,) = before - {own.connection_id}

        ps.session.execute(ops.EndConnection(target))

        while target in {view.connection_id for view in ps.session.execute(ops.ListConnections()).connections}:
            pass
        other.queue("mail").push(b"y")
        assert ps.queue("mail").stats().messages == 2


@pytest.mark.parametrize("name", ["0", "99999", "nonsense", "1-1"])
def test_a_connection_that_is_not_there_cannot_be_ended(broker, name):
    with connect(broker.url("tcp")) as ps, pytest.raises(ConnectionNotFound):
        ps.session.execute(ops.EndConnection(name))


@pytest.mark.parametrize("name", ["", "-1", "²", "../1"])
def test_what_cannot_be_the_id_of_a_connection_is_refused(name):
    with pytest.raises(InvalidName, match="connection_id"):
        ops.EndConnection(name)


def test_a_store_that_nobody_shares_says_so(broker):
    with connect(broker.url("tcp")) as ps:
        view = ps.session.execute(ops.Cluster())

    assert (view.is_shared, view.status, view.term, len(view.nodes)) == (False, "ok", 0, 1)
    assert view.store in ("file", "memory")
    assert view.nodes[0].role == "owner"


@pytest.fixture
def broker(tmp_path):
    with Served(tmp_path, "--http-port", "0", "--grpc-port", "off") as broker:
        yield broker
