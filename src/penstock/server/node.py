"""A node of a store: a spare until it is its turn, the owner until it is not; the process lives through all of it.

    spare ──its turn──▶ opens the shard ──▶ owner ──deposed, failed, drained──▶ spare

A spare listens on the same ports and answers whoever asks with the address of the owner. Listeners belong to a role:
when it changes, connections end, and clients come back to whoever is the owner then.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from penstock.access.store import FILE, AccessStore
from penstock.broker.access import Client
from penstock.clock import SystemClock
from penstock.config import Settings
from penstock.embedded.session import Session
from penstock.errors import Deposed, Moved, PenstockError, StorageError
from penstock.postgres.disk import PostgresDisk
from penstock.postgres.link import session_name
from penstock.postgres.links import Links, is_passing
from penstock.postgres.membership import DRAIN, Membership, View
from penstock.postgres.store import PostgresStore
from penstock.postgres.target import parse_store_url, read_password
from penstock.server.serve import Address, Server, Started, open_with

logger: Final = logging.getLogger("penstock.server")

Role = Literal["spare", "owner"]
RETRY_SECONDS: Final = 3.0  # after the shard could not be opened
PROTOCOLS: Final = {"websocket": "http"}  # the address by which a protocol is reached, where it is another's


class Node:
    """One process of a store. `start`, then `wait`, then `stop`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.over = asyncio.Event()  # somebody wants it to end
        self.role: Role = "spare"
        self.name = settings.node or default_name(settings)
        self._clock = SystemClock()
        self._password = read_password(settings.store_password_file) if settings.store_password_file else None
        self._target = parse_store_url(settings.store, self._password)
        self._links = Links(self._target, session_name(self.name))
        self._membership = Membership(self._links, self.name, FILE)
        self._membership.monotonic = self._clock.monotonic
        self._membership.on_look = self._looked
        self._membership.on_fail = self._notice
        self._access_version = -1
        self._seen_durable = 0  # the most that anybody has confirmed, as far as this node has seen
        self._changed = asyncio.Event()  # there may be something to do
        self._not_before = 0.0
        self._server: Server | None = None
        self._store: PostgresStore | None = None  # while it is the owner
        self._session: Session | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # from start to end

    async def start(self) -> Started:
        """Check the store, listen, and be a node; returns when it is known who the owner is."""
        self._loop = asyncio.get_running_loop()
        store = self._new_store()
        try:
            await asyncio.to_thread(store.prepare)
        finally:
            store.links.close()
        try:
            addresses = await self._be_spare()
            self._keep_ports(addresses)
            await asyncio.to_thread(self._membership.register, self._advertised(addresses))
            self._membership.start()
            while not (self._is_settled() or self.over.is_set()):
                await self._wait_for_change()
                await self._turn()
        except BaseException:
            await self.stop(drain=False)
            raise
        about = (self._target.shown, "fsync", self._queues(), addresses, self._header_file())
        return Started(*about, role=self.role, node=self.name)

    async def wait(self) -> None:
        """Until somebody wants it to end; roles change meanwhile."""
        while not self.over.is_set():
            await self._wait_for_change()
            if not self.over.is_set():
                await self._turn()

    async def stop(self, *, drain: bool = True) -> None:
        """Finish what was begun, give the shard back, and be no node any more."""
        self._links.hurry()
        if self._server is not None:
            await self._server.stop(drain=drain)
        await asyncio.to_thread(self._membership.stop)
        self._links.close()

    def reload(self) -> None:
        """SIGHUP: read the certificates again."""
        if self._server is not None:
            self._server.reload()

    def new_link(self, started: Started) -> str:
        """A one-time link that signs in as the owner; empty where browsers cannot sign in."""
        return "" if self._server is None or self.role == "spare" else self._server.new_link(started)

    # roles

    async def _turn(self) -> None:
        """Become what this node should be now; raises when another process has its name."""
        if self._membership.failed is not None:
            raise self._membership.failed
        if self._server is None:
            return
        if self.role == "spare":
            if self._should_own() and self._loop is not None and self._loop.time() >= self._not_before:
                await self._take()
            return
        failed = None if self._session is None else self._session.shard.journal.failed
        if failed is not None:
            logger.warning("the shard is released", extra={"reason": str(failed)})
            await self._become_spare(drain=False)
            self._pause(0.0 if isinstance(failed, Deposed) else RETRY_SECONDS)
        elif self._is_drained():
            logger.info("draining, as requested by an operator")
            await self._become_spare(drain=True)

    async def _take(self) -> None:
        """Open the shard while the spare still answers, then listen as the owner."""
        store = self._new_store()
        store.saw_durable(self._seen_durable)
        try:
            session = await self._open(store)
        except PenstockError as error:
            store.links.close()
            logger.warning("the shard cannot be opened here: %s", error)
            # After a lost connection the next look that succeeds decides again.
            self._pause(0.0 if isinstance(error, StorageError) and is_passing(error) else RETRY_SECONDS)
            return
        self._store, self._session, self.role = store, session, "owner"
        session.shard.on_fail.append(self._notice)
        await self._replace(Server(self._settings, session))
        logger.info("serving", extra={"node": self.name, "term": store.term})

    async def _open(self, store: PostgresStore) -> Session:
        """Open the shard; given up soon if the node is stopped while the store does not answer."""
        opening = asyncio.ensure_future(asyncio.to_thread(open_with, self._settings, None, store=store))
        over = asyncio.ensure_future(self.over.wait())
        try:
            await asyncio.wait([opening, over], return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                store.links.hurry()
            return await opening
        finally:
            over.cancel()

    async def _become_spare(self, *, drain: bool) -> None:
        assert self._server is not None
        await self._server.stop(drain=drain)
        self._store = self._session = None
        self.role = "spare"
        await self._be_spare()

    async def _be_spare(self) -> list[Address]:
        access = AccessStore(PostgresDisk(self._links), self._clock)
        session = Session(None, durability="os", clock=self._clock, access=access, background=False)
        self._access_version = -1
        self._session = None
        server = Server(self._settings, session, elsewhere=self._elsewhere)
        self._spare = session
        return await self._replace(server)

    async def _replace(self, server: Server) -> list[Address]:
        """Listen with another server on the same ports."""
        if self._server is not None:
            await self._server.stop(drain=False)
        self._server = server
        return (await server.start()).addresses

    def _should_own(self) -> bool:
        view = self._membership.view
        if view is None or self._is_drained():
            return False
        return view.owner == self.name or self._membership.looks.is_turn_of(self.name)

    def _is_settled(self) -> bool:
        view = self._membership.view
        if self.role == "owner":
            return True
        return view is not None and bool(view.owner) and not self._membership.looks.is_dead(view.owner)

    def _is_drained(self) -> bool:
        view = self._membership.view
        node = None if view is None else view.nodes.get(self.name)
        return node is not None and node.request == DRAIN

    # looks

    def _looked(self, view: View, sent_at: int) -> None:
        """Called by the thread of the heartbeats."""
        self._seen_durable = max([self._seen_durable, *(node.durable_sequence for node in view.nodes.values())])
        store, session = self._store, self._session
        if store is not None:
            store.looked(view, sent_at)
        if view.access_version != self._access_version:
            (session or self._spare).access.reload()
            self._access_version = view.access_version
        self._notice()

    def _notice(self) -> None:
        """Something may have changed; called by any thread."""
        with suppress(RuntimeError):  # the loop is closed: it is over anyway
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._changed.set)

    async def _wait_for_change(self) -> None:
        waits = [asyncio.ensure_future(self._changed.wait()), asyncio.ensure_future(self.over.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._changed.clear()

    def _elsewhere(self, client: Client) -> PenstockError:
        """What a spare answers."""
        view = self._membership.view
        owner = None if view is None or view.owner == self.name else view.nodes.get(view.owner)
        if owner is None or not owner.address:
            return Moved("this node is a spare, and no node owns the shard right now")
        address = json.loads(owner.address).get(PROTOCOLS.get(client.protocol, client.protocol), "")
        where = f"at {address}" if address else "and does not speak this protocol"
        return Moved(f"this node is a spare; the owner is {owner.node} {where}", address=address)

    # details

    def _new_store(self) -> PostgresStore:
        settings = self._settings
        return PostgresStore(
            settings.store,
            password=self._password,
            node=self.name,
            directory=Path(settings.data),
            deployment=settings.deployment,
            replicated=settings.replicated,
            membership=self._membership,
        )

    def _pause(self, seconds: float) -> None:
        assert self._loop is not None
        self._not_before = self._loop.time() + seconds

    def _keep_ports(self, addresses: list[Address]) -> None:
        """Whatever free ports were found stay, whoever listens."""
        ports = {f"{address.protocol}_port": address.port for address in addresses}
        self._settings = msgspec.structs.replace(self._settings, **ports)

    def _advertised(self, addresses: list[Address]) -> str:
        """Where clients reach each protocol, as the other nodes say it."""
        host = self._settings.advertise
        named = [msgspec.structs.replace(address, host=host, names=()) if host else address for address in addresses]
        return json.dumps({address.protocol: address.url for address in named})

    def _queues(self) -> int:
        return 0 if self._session is None else self._session.shard.queue_count

    def _header_file(self) -> str:
        return "" if self._server is None else self._server.header_file


def default_name(settings: Settings) -> str:
    """The name of a node that was given none: the machine, and the port that is surely its own."""
    ports = [port for port in (settings.tcp_port, settings.http_port, settings.grpc_port) if port not in ("off", 0)]
    return f"{socket.gethostname()}:{ports[0] if ports else 0}"
