"""Who may do what: every identity, for every request, by every protocol.

What is expected comes from two tables written by hand, `GRANTED` below and the rows of `matrix_rows`; nothing of it is
computed by the code under test. Allowed means that the answer is no error of access; other errors are fine. Denied
requests come first, and leave no trace.

Nightly all cells are asked for. Otherwise each identity asks for everything by one protocol, a different one each time,
and each protocol is asked for everything by one identity that may and one that may not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock import operations as ops
from penstock.batch import Batch
from penstock.embedded.session import Session
from penstock.model_access import Quotas
from penstock.model_tasks import ScheduleSpec, TaskFilter, TaskSubmission, WorkerInfo
from penstock.replies import LeaseView
from penstock.requests import LeaseRequest
from penstock.server.grpc.generated import queues_pb2, tasks_pb2
from penstock.server.http.routes import ROUTES
from penstock.wire.frames import JsonType, Type
from penstock.wire.json_protocols import ClientMessage
from tests.access.matrix_rows import (
    BROKER,
    MAIL,
    NAMESPACE,
    OPEN_ROUTES,
    ORDERS,
    OTHER,
    RESERVED,
    SOME,
    Q,
    Row,
    World,
    rows,
)
from tests.support.access_callers import CALLERS, REFUSED
from tests.support.dose import NIGHTLY
from tests.support.tls import TlsBroker

PROTOCOLS = tuple(CALLERS)
ACTIONS = ("push", "consume", "read", "monitor", "manage")
WHOLE = ("operate", "export")
EVERYWHERE = frozenset({ORDERS, NAMESPACE, OTHER, BROKER})
HERE = frozenset({ORDERS})
IN_SHOP = frozenset({ORDERS, NAMESPACE})
ELSEWHERE = frozenset({OTHER})
NOWHERE: frozenset[str] = frozenset()
TASK = "0190f3a2-7b1c-7c00-8000-0123456789ab"
NEW_TASK = "0190f3a2-7b1c-7c00-8000-0123456789ac"
SCHEDULE = ops.SetSchedule(ScheduleSpec(name="nightly", task_type="t", queue=Q, cron="0 3 * * *"))
OPERATION = "0190f3a2-7b1c-7c00-8000-0123456789ad"

# The grants of each key, and where it may do what.
Granted = dict[str, frozenset[str]]
GRANTED: dict[str, tuple[list[str], Granted]] = {
    # Roles, for one queue, for a prefix or for all.
    "producer": ([f"producer:{Q}"], {"push": HERE}),
    "consumer": (["consumer:shop.*"], {"consume": IN_SHOP}),
    "viewer": (["viewer:shop.*"], {"monitor": IN_SHOP}),
    "reader": ([f"reader:{Q}"], {"monitor": HERE, "read": HERE}),
    "operator": (["operator:shop.*"], dict.fromkeys(("monitor", "read", "manage"), IN_SHOP)),
    "producer-everywhere": (["producer"], {"push": EVERYWHERE}),
    "consumer-everywhere": (["consumer"], {"consume": EVERYWHERE}),
    "viewer-everywhere": (["viewer"], {"monitor": EVERYWHERE}),
    "reader-everywhere": (["reader:*"], {"monitor": EVERYWHERE, "read": EVERYWHERE}),
    "operator-everywhere": (["operator"], {"monitor": EVERYWHERE, "read": EVERYWHERE, "manage": EVERYWHERE}),
    "owner": (["owner"], dict.fromkeys((*ACTIONS, *WHOLE), EVERYWHERE | {RESERVED})),
    # Single actions.
    **{f"{action}-here": ([f"{action}:{Q}"], {action: HERE}) for action in ACTIONS},
    **{f"{action}-everywhere": ([f"{action}:*"], {action: EVERYWHERE}) for action in (*ACTIONS, *WHOLE)},
    # All but what is asked for.
    "elsewhere": ([",".join(ACTIONS) + f":{MAIL}"], dict.fromkeys(ACTIONS, ELSEWHERE)),
    "neighbours": (
        [",".join(ACTIONS) + f":{pattern}" for pattern in ("shop.order", f"{Q}.*", f"{Q}2", "shop", "orders*")],
        dict.fromkeys(ACTIONS, NOWHERE),
    ),
    "namespace": ([",".join(ACTIONS)], dict.fromkeys(ACTIONS, NOWHERE)),
    "nothing": (["push:nothing"], {"push": NOWHERE}),
}
STRANGERS = frozenset({"nobody", "wrong", "wrong-secret", "expired", "revoked", "deleted", "no-key"})
# What no request that is allowed is answered with: errors of access, and what would mean that a row is wrong.
MISTAKES = frozenset({"not_authorised", "not_authenticated", "bad_request", "invalid_field", "internal"})
# Refused for what they ask: there is no master key, no place for backups, and no queue that is compacted.
UNCONFIGURED = {
    *("get_data_keys", "rotate_data_key", "erase_data_keys", "rewrap_data_keys"),
    *("start_backup", "compact_queue", "latest"),
}
WRONG_MAX = 20  # that are listed
IDENTITIES = (*GRANTED, *sorted(STRANGERS))


def is_allowed(identity: str, row: Row) -> bool:
    """Whether the tables say so."""
    if identity in STRANGERS:
        return False
    granted = GRANTED[identity][1]
    return all(
        not action or (action in granted if where == SOME else where in granted.get(action, NOWHERE))
        for action, where in row.needs
    )


# The rig.


class Rig(NamedTuple):
    session: Session
    rows: list[Row]
    callers: dict[str, Any]
    folder: Path

    def codes(self, protocol: str, identity: str, row: Row) -> list[str]:
        codes: list[str] = self.callers[protocol].ask(identity, row)
        return codes

    @property
    def sequence(self) -> int:
        """Of the last frame in the journal."""
        return self.session.shard.journal.sequence

    def state(self) -> Any:
        """Everything that a request may change."""
        session = self.session
        queues = session.run(ops.Queues())[0]
        return (
            self.sequence,
            [(queue, session.run(ops.Stats(queue))[0], session.run(ops.GetOptions(queue))[0]) for queue in queues],
            [held(lease) for queue in queues for lease in session.run(ops.Leases(queue))[0]],
            session.run(ops.Workers())[0],
            session.run(ops.Schedules())[0],
            session.access.document,
            sorted(str(path) for path in self.folder.rglob("*")),
        )


def held(lease: LeaseView) -> tuple[str, int, bool]:
    """A lease; its end is known to some microseconds, and extending it would leave ten minutes."""
    return lease.lease_id, lease.messages, lease.expires_at - lease.leased_at > timedelta(minutes=30)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    # Without the audit log, which keeps a record of what is denied: that is no trace of the request itself.
    folder = tmp_path_factory.mktemp("matrix")
    with TlsBroker(folder, auth="on", audit="off", grpc_port=0) as broker:
        assert broker.server.broker is not None
        session = broker.server.broker.session
        tokens = make_keys(session)
        ports = {protocol: broker.port(protocol) for protocol in ("tcp", "http", "grpc")}
        port_of = {"tcp-json": "tcp", "rpc": "http", "websocket": "http"}
        callers = {name: caller(ports[port_of.get(name, name)], tokens, STRANGERS) for name, caller in CALLERS.items()}
        yield Rig(session, rows(make_world(session)), callers, folder)
        for caller in callers.values():
            caller.close()


def make_keys(session: Session) -> dict[str, str]:
    """A token for each identity."""
    store = session.access
    store.set_namespace("team", Quotas())
    tokens = {"nobody": "", "no-key": "eyJhbGciOiJub25lIn0.e30.", "wrong": "penstock_0123456789abcdef_" + "a" * 43}
    for name, (grants, _) in GRANTED.items():
        tokens[name] = store.create_key(f"a-{name}", grants, "team" if name == "namespace" else "")[1]
    everything = GRANTED["owner"][0]
    tokens["expired"] = store.create_key("expired", everything, expires_seconds=1e-6)[1]
    record, tokens["revoked"] = store.create_key("revoked", everything)
    store.revoke_key(record.id)
    tokens["deleted"] = store.create_key("deleted", everything)[1]
    store.delete_user("deleted")
    tokens["wrong-secret"] = tokens["owner"][:-1] + ("A" if tokens["owner"][-1] != "A" else "B")
    return tokens


def make_world(session: Session) -> World:
    for queue in (Q, MAIL):
        session.push(queue, Batch.build([b"payload"] * 50), None, None)
    leased = session.lease(Q, "default", LeaseRequest(3, 3600.0))[0]
    piece = leased.pieces[0]
    receipt = f"{Q}:{piece.partition(0)}:{piece.offsets[0]}:{piece.attempt(0)}:{leased.nonce:016x}"
    session.run(ops.SubmitTasks([TaskSubmission(task_id=TASK, task_type="t", queue=Q)]))
    session.run(SCHEDULE)
    session.run(ops.HeartbeatWorker(WorkerInfo(worker_id="w", queues=(Q,))))
    session.run(ops.CreateGroup(Q, "g"))
    session.run(ops.Join(Q, "g", "m", 3600.0))
    session.run(ops.BeginOperation("purge", TaskFilter(queue=Q, workflow="none"), OPERATION))
    while not session.run(ops.FindOperation(OPERATION))[0].is_over:
        pass
    return World(receipt, leased.nonce, TASK, NEW_TASK, OPERATION)


def chosen(rig: Rig, *, allowed: bool) -> Iterator[tuple[str, str, Row]]:
    """The cells to ask for: (protocol, identity, row)."""
    for number, row in enumerate(rig.rows):
        protocols = [protocol for protocol in PROTOCOLS if rig.callers[protocol].has(row)]
        identities = [identity for identity in IDENTITIES if is_allowed(identity, row) is allowed]
        for index, identity in enumerate(identities):
            some = [protocols[(number + index) % len(protocols)]]
            for protocol in protocols if NIGHTLY or index < 1 or identity == "nobody" else some:
                yield protocol, identity, row


# The tables are whole.


def test_every_operation_has_a_row():
    named = {row.name for row in rows(World("a:0:0:1:0000000000000001", 1, TASK, NEW_TASK, OPERATION))}

    assert set(ops.TABLE) - named == set(), "say in matrix_rows what these need, and how they are asked for"


def test_every_route_call_and_message_has_a_row():
    every = rows(World("a:0:0:1:0000000000000001", 1, TASK, NEW_TASK, OPERATION))
    asked = {(row.http[0], row.http[1].partition("?")[0]) for row in every if row.http is not None}
    paths = {(method, path[1:] if path.startswith("//") else f"/api/v1{path}") for method, path in asked}
    for route in ROUTES:
        pattern = re.compile(
            re.sub(r"\\?\{\w+\\?\}", "[^/]+", re.escape(route.path).replace(r"\{", "{").replace(r"\}", "}"))
        )
        is_asked = any(method == route.method and pattern.fullmatch(path) for method, path in paths)
        assert is_asked or (route.method, route.path) in OPEN_ROUTES, f"{route.method} {route.path}"
    calls = {row.grpc[0] for row in every if row.grpc is not None}
    declared: Any = {"Queues": queues_pb2, "Tasks": tasks_pb2}
    for name, module in declared.items():
        assert {f"{name}.{method.name}" for method in module.DESCRIPTOR.services_by_name[name].methods} <= calls
    frames = {row.frame[0] for row in every if row.frame is not None}
    assert {kind for kind in Type if kind < Type.OK} - frames == {Type.HELLO, Type.CANCEL}
    assert {row.json[0] for row in every if row.json is not None} == set(JsonType) - {
        *(JsonType.ACK, JsonType.NACK, JsonType.AUTH)
    }
    said = {row.websocket["type"] for row in every if row.websocket is not None}
    tags = {kind.__struct_config__.tag for kind in ClientMessage.__args__}
    assert tags - said == {"auth", "credit", "unsubscribe"}  # which concern what the socket itself has begun


# The matrix.


def test_who_may_not_is_refused_and_leaves_no_trace(rig: Rig):
    wrong, before, sequence, cells = [], rig.state(), rig.sequence, 0
    for protocol, identity, row in chosen(rig, allowed=False):
        codes = rig.codes(protocol, identity, row)
        cells += 1
        expected = REFUSED if identity in STRANGERS else ("not_authorised",)
        if not codes or not set(codes).issubset(expected):
            wrong.append(f"{identity} {row.name} by {protocol}: {codes or 'allowed'}")
        if rig.sequence != sequence:
            wrong.append(f"{identity} {row.name} by {protocol}: it is in the journal")
            sequence = rig.sequence
        if len(wrong) > WRONG_MAX:
            break
    assert not wrong, "\n".join(wrong)
    assert rig.state() == before, "something that was denied has left a trace"
    assert cells > 1_000


def test_who_may_is_not_refused(rig: Rig):
    wrong = []
    for protocol, identity, row in chosen(rig, allowed=True):
        if row.name == "delete_schedule":
            rig.session.run(SCHEDULE)
        codes = rig.codes(protocol, identity, row)
        if MISTAKES.intersection(codes) and not (row.name in UNCONFIGURED and codes == ["invalid_field"]):
            wrong.append(f"{identity} {row.name} by {protocol}: {codes}")
    assert not wrong, "\n".join(wrong)
