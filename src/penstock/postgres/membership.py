"""The nodes of a store: who is alive, who owns the shard, and whose turn it is to take it over.

A node is alive as long as its counter changes. No clocks are compared: a node is dead when its counter was the same in
six successful looks, or in two if its connection is gone. While the store is unavailable nobody can look, so an outage
makes no node dead. When the owner is dead or has released the shard, the others try to take it in the order of a
rendezvous hash, each a little later than the one before. Trying too early is harmless: the term decides.

A name belongs to the process that registered it last. A process that finds another one in its row ends: two owners with
one name would depose each other forever.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from penstock.errors import DirectoryInUse, StorageError
from penstock.postgres.link import Link
from penstock.postgres.links import Links
from penstock.postgres.schema import SHARD

logger: Final = logging.getLogger("penstock.store")

BEAT_SECONDS: Final = 0.25
STILL_LOOKS: Final = 6  # without a change, after which a node is dead
BROKEN_LOOKS: Final = 2  # the same, when its connection is gone
TURN_LOOKS: Final = 2  # by which the next in order waits longer than the one before
BEAT_STATEMENT_SECONDS: Final = 5.0
DRAIN: Final = "drain"
ROUND_TRIP_US_MAX: Final = 250_000  # of a look; after a longer one, the server's time is known too inexactly
EMBEDDED: Final = "embedded-"  # prefix of the names of nodes that are not brokers

_REGISTER: Final = """
    INSERT INTO penstock.nodes (node, address, backend) VALUES ($1, $2, pg_backend_pid())
    ON CONFLICT (node) DO UPDATE SET address = $2, backend = pg_backend_pid(), counter = penstock.nodes.counter + 1
    RETURNING backend"""
# After a lost connection: the row still belongs to this process if it names the last session.
_REGISTER_AGAIN: Final = """
    UPDATE penstock.nodes SET address = $2, backend = pg_backend_pid(), counter = counter + 1
    WHERE node = $1 AND backend = $3 RETURNING backend"""
_BEAT: Final = """
    UPDATE penstock.nodes SET counter = counter + 1, durable_sequence = greatest(durable_sequence, $2::bigint)
    WHERE node = $1 AND backend = pg_backend_pid()"""
_NAMESAKE: Final = """
    SELECT EXISTS (SELECT 1 FROM pg_stat_get_activity(backend)), counter FROM penstock.nodes WHERE node = $1"""
_NODES: Final = """
    SELECT node, address, counter, durable_sequence, request,
        EXISTS (SELECT 1 FROM pg_stat_get_activity(backend)) FROM penstock.nodes"""
_SHARD: Final = """
    SELECT id, owner, term, (SELECT coalesce(max(file), 0) FROM penstock.files WHERE shard = $1 AND name = $2),
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint FROM penstock.shards WHERE shard = $1"""
_FORGET: Final = """
    DELETE FROM penstock.nodes
    WHERE node LIKE 'embedded-%' AND NOT EXISTS (SELECT 1 FROM pg_stat_get_activity(backend))"""


class Node(NamedTuple):
    """The row of a node."""

    node: str
    address: str
    counter: int
    durable_sequence: int
    request: str
    is_connected: bool


class View(NamedTuple):
    """The result of one look."""

    shard_id: bytes
    owner: str
    term: int
    access_version: int
    nodes: Mapping[str, Node]
    server_us: int = 0  # the time of the server
    seen_at: int = 0  # the same instant by the monotonic clock of this node; 0 when that is not known well


def look(link: Link, access_name: str = "") -> View:
    """One look at the store."""
    row = link.one(_SHARD, SHARD, access_name)
    if row is None:
        raise StorageError("the store has no shard", hint="create it with `penstock store init`")
    shard_id, owner, term, access_version, server_us = row
    # Read after the owner: a node registers before it owns anything, so its row exists.
    nodes = {node[0]: Node(*node) for node in link.rows(_NODES)}
    return View(shard_id, owner, term, access_version, nodes, server_us)


class Looks:
    """Conclusions from several looks. No I/O, no clock."""

    def __init__(self) -> None:
        self._still: dict[str, tuple[int, int]] = {}  # its counter, and how many looks saw the same one
        self._view: View | None = None
        self._free_looks = 0  # in how many the shard had no living owner

    def saw(self, view: View) -> None:
        """Add the result of a look."""
        still = {}
        for name, node in view.nodes.items():
            counter, looks = self._still.get(name, (-1, 0))
            still[name] = (node.counter, looks + 1 if node.counter == counter else 0)
        self._still, self._view = still, view
        self._free_looks = self._free_looks + 1 if not view.owner or self.is_dead(view.owner) else 0

    def is_dead(self, name: str) -> bool:
        """Whether a node counts as dead."""
        node = None if self._view is None else self._view.nodes.get(name)
        if node is None:
            return True
        return self._still[name][1] >= (STILL_LOOKS if node.is_connected else BROKEN_LOOKS)

    def is_turn_of(self, name: str) -> bool:
        """Whether a node should take the shard over now."""
        view = self._view
        if view is None or not self._free_looks:
            return False
        able = [other for other in view.nodes if other != view.owner and not self.is_dead(other)]
        able = [other for other in able if view.nodes[other].request != DRAIN and not other.startswith(EMBEDDED)]
        order = rendezvous(view.shard_id, {*able, name})
        return self._free_looks > TURN_LOOKS * order.index(name)


def rendezvous(shard_id: bytes, nodes: Iterable[str]) -> list[str]:
    """Nodes in the order in which they take a shard over."""
    return sorted(nodes, key=lambda node: hashlib.blake2b(shard_id + node.encode(), digest_size=8).digest())


class Membership:
    """This process as a node: a thread that sends heartbeats and looks. `on_look` is called after each."""

    def __init__(self, links: Links, node: str, access_name: str = "") -> None:
        self.node = node
        self.address = ""
        self.durable_sequence: Callable[[], int] = lambda: 0
        self.on_look: Callable[[View, int], object] = lambda view, sent_at: None
        self.monotonic: Callable[[], int] = lambda: 0
        self.looks = Looks()
        self.view: View | None = None
        self._moved: dict[str, tuple[int, int]] = {}  # of each node: its counter, and when that was first seen
        self.problem = ""  # why the last heartbeat failed
        self.failed: StorageError | None = None  # why this process is no longer a node
        self.on_fail: Callable[[], object] = lambda: None
        self._backend = 0  # the last session that had the row
        self._links = links
        self._access_name = access_name
        self._link: Link | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-heartbeat", daemon=True)

    def register(self, address: str) -> None:
        """Become a node; refused when another process has the name."""
        self.address = address
        link = self._link = self._links.new(statement_seconds=BEAT_STATEMENT_SECONDS)
        self._have_row(link)
        link.execute("UPDATE penstock.nodes SET request = '' WHERE node = $1", self.node)
        link.execute(_FORGET)
        self.beat()

    def _have_row(self, link: Link) -> None:
        """Claim the row of this name; `DirectoryInUse` when another process updates it."""
        row = link.one(_REGISTER_AGAIN, self.node, self.address, self._backend)
        if row is None:
            other = link.one(_NAMESAKE, self.node)
            if other is not None and other[0] and self._moves(link, other[1]):
                hint = "give each node a name of its own"
                raise DirectoryInUse(f"another process is already the node {self.node!r}", hint=hint)
            row = link.one(_REGISTER, self.node, self.address)
        assert row is not None
        self._backend = row[0]

    def _moves(self, link: Link, counter: int) -> bool:
        """Whether another process updates the row of this name."""
        for _ in range(BROKEN_LOOKS):
            self._stopping.wait(2 * BEAT_SECONDS)
            row = link.one("SELECT counter FROM penstock.nodes WHERE node = $1", self.node)
            if row is None or row[0] != counter:
                return row is not None
        return False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and remove the row of this node."""
        self._stopping.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        link, self._link = self._link, None
        if link is not None:
            with suppress(StorageError):
                link.execute("DELETE FROM penstock.nodes WHERE node = $1 AND backend = pg_backend_pid()", self.node)
            link.close()

    def beat(self) -> None:
        """One heartbeat, and one look."""
        sent_at = self.monotonic()
        if self._link is None or not self._link.is_open:
            self._link = self._links.new(statement_seconds=BEAT_STATEMENT_SECONDS)
            self._have_row(self._link)
        link = self._link
        if not link.execute(_BEAT, self.node, self.durable_sequence()):
            self._have_row(link)
        asked_at = self.monotonic()
        view = look(link, self._access_name)
        now = self.monotonic()
        if now - asked_at <= ROUND_TRIP_US_MAX:
            view = view._replace(seen_at=(asked_at + now) // 2)
        self.looks.saw(view)
        self._moved = {
            name: known if (known := self._moved.get(name, (-1, 0)))[0] == node.counter else (node.counter, now)
            for name, node in view.nodes.items()
        }
        self.view = view
        self.problem = ""
        self.on_look(view, sent_at)

    def age_seconds(self, node: str) -> float | None:
        """How long ago the last heartbeat of a node was seen; None when none was."""
        known = self._moved.get(node)
        return None if known is None else max(0, self.monotonic() - known[1]) / 1e6

    def _run(self) -> None:
        while not self._stopping.wait(BEAT_SECONDS):
            try:
                self.beat()
            except DirectoryInUse as error:
                self.failed = error
                self.on_fail()
                return
            except StorageError as error:
                if self._link is not None:
                    self._link.close()
                if not self.problem:
                    logger.warning("the store does not answer: %s", error)
                self.problem = str(error)
            except Exception:
                logger.exception("a heartbeat failed; retrying")
