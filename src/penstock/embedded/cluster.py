"""What a session keeps its data in, and the nodes that share it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from penstock.postgres.membership import DRAIN, Membership, Node, View
from penstock.postgres.store import PostgresStore
from penstock.replies import ClusterView, NodeView

if TYPE_CHECKING:
    from penstock.embedded.session import Session


def cluster_view(session: Session) -> ClusterView:
    """The store of a session as it is now, and its nodes as they were at the last look."""
    store, journal = session.store, session.shard.journal
    failed = "" if journal.failed is None else str(journal.failed)
    if not isinstance(store, PostgresStore):
        return _alone(session, failed)
    membership = store.membership
    problem = failed or membership.problem
    status: Literal["ok", "away", "failed"] = "failed" if failed else "away" if membership.problem else "ok"
    view = membership.view
    lag = max(0, journal.sequence - journal.durable_sequence)
    return ClusterView(
        store="postgres",
        is_shared=True,
        location=store.target.shown,
        status=status,
        problem=problem,
        node=store.node,
        owner=store.node if view is None else view.owner,
        term=store.term if view is None else view.term,
        nodes=[] if view is None else [_node(membership, view, node, lag) for _, node in sorted(view.nodes.items())],
    )


def _alone(session: Session, failed: str) -> ClusterView:
    journal = session.shard.journal
    lag = max(0, journal.sequence - journal.durable_sequence)
    own = NodeView(node="", address="", role="owner", state="alive", durable_sequence=journal.durable_sequence, lag=lag)
    return ClusterView(
        store="memory" if session.store is None else "file",
        is_shared=False,
        location=session.location,
        status="failed" if failed else "ok",
        problem=failed,
        node="",
        owner="",
        term=0,
        nodes=[own],
    )


def _node(membership: Membership, view: View, node: Node, lag: int) -> NodeView:
    is_owner = node.node == view.owner
    state: Literal["alive", "draining", "dead"] = "draining" if node.request == DRAIN else "alive"
    return NodeView(
        node=node.node,
        address=node.address,
        role="owner" if is_owner else "spare",
        state="dead" if membership.looks.is_dead(node.node) else state,
        heartbeat_age_seconds=membership.age_seconds(node.node),
        durable_sequence=node.durable_sequence if is_owner else None,
        lag=lag if is_owner else None,
    )
