"""Operations on a store from outside: create, show and migrate it, and move the shard to another node."""

from __future__ import annotations

import json
from typing import Final

import msgspec

from penstock.clock import SystemClock
from penstock.errors import InvalidField, StateError, StoreUnavailable
from penstock.postgres import schema
from penstock.postgres.checks import check_server
from penstock.postgres.links import Links
from penstock.postgres.membership import BEAT_SECONDS, DRAIN, STILL_LOOKS, Looks, View, look
from penstock.postgres.target import Target

HANDOVER_SECONDS: Final = 30.0
_BYTES: Final = """
    SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c
    WHERE c.relnamespace = 'penstock'::regnamespace AND c.relkind = 'r'"""


class NodeStatus(msgspec.Struct, frozen=True):
    """A node, as the others see it."""

    node: str
    role: str  # owner or spare
    is_alive: bool
    is_draining: bool
    addresses: dict[str, str]


class StoreStatus(msgspec.Struct, frozen=True):
    """A store, as an operator sees it. `term` counts the takeovers of the shard."""

    store: str
    version: int
    deployment: str
    shard: str
    owner: str
    term: int
    bytes_stored: int
    nodes: list[NodeStatus]


def init(target: Target, deployment: str = "", *, replicated: bool = False) -> schema.Status:
    """Check the server, and create or migrate the tables."""
    links = Links(target, "penstock store")
    try:
        check_server(links, replicated=replicated)
        with links.borrowed() as link:
            return schema.prepare(link, deployment)
    finally:
        links.close()


def status(target: Target) -> StoreStatus:
    """The status of a store. It takes as long as it takes to see which nodes are alive."""
    links, looks = Links(target, "penstock store"), Looks()
    try:
        with links.borrowed() as link:
            found = schema.status_of(link)
            schema.check(found, "")
            for _ in range(STILL_LOOKS + 1):
                view = look(link)
                looks.saw(view)
                links.pause(BEAT_SECONDS)
            row = link.one(_BYTES)
            assert row is not None
        nodes = [_node(name, view, looks) for name in sorted(view.nodes)]
        about = (found.version, found.deployment, view.shard_id.hex(), view.owner, view.term, row[0], nodes)
        return StoreStatus(target.shown, *about)
    finally:
        links.close()


def _node(name: str, view: View, looks: Looks) -> NodeStatus:
    node = view.nodes[name]
    role = "owner" if name == view.owner else "spare"
    addresses = json.loads(node.address) if node.address else {}
    return NodeStatus(name, role, not looks.is_dead(name), node.request == DRAIN, addresses)


def drain(target: Target, node: str, *, wait: bool = True) -> str:
    """Have a node hand the shard over, and stay a spare until it is restarted; returns the new owner."""
    links, clock = Links(target, "penstock node"), SystemClock()
    try:
        with links.borrowed() as link:
            view = look(link)
            if node not in view.nodes:
                known = ", ".join(sorted(view.nodes)) or "none"
                raise InvalidField(f"node: there is no node {node!r}", hint=f"known nodes: {known}")
            if view.owner == node and not [name for name in view.nodes if name != node and _can_own(view, name)]:
                raise StateError(f"no other node can take over from {node!r}", hint="start another node first")
            link.execute("UPDATE penstock.nodes SET request = $2 WHERE node = $1", node, DRAIN)
            until = clock.monotonic() + round(HANDOVER_SECONDS * 1_000_000)
            while wait and (view.owner == node or not view.owner):
                if clock.monotonic() > until:
                    raise StoreUnavailable(f"{node!r} did not hand over within {HANDOVER_SECONDS:g} s")
                links.pause(BEAT_SECONDS)
                view = look(link)
            return view.owner
    finally:
        links.close()


def _can_own(view: View, name: str) -> bool:
    node = view.nodes[name]
    return node.is_connected and node.request != DRAIN and bool(node.address)
