"""A broker from start to end: open the directory, listen, work, drain, close.

Nothing is half started: ports are looked at first, then the directory is opened, and whatever fails after that closes
what was opened before. The end comes by a signal, and then what was begun is finished; or because the journal failed,
and then nothing that is in memory may be told any more, so the process leaves and is started again.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from penstock.broker import Broker
from penstock.config import Settings
from penstock.embedded import Session
from penstock.errors import PenstockError
from penstock.journal import outcome_unknown
from penstock.server.listeners import Address, Listener, check_ports, ports_of, start
from penstock.telemetry import Meter, Metrics

logger: Final = logging.getLogger("penstock.server")

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
LOOK_SECONDS: Final = 0.05  # between two looks at what is still under way, while draining
CLOSE_SECONDS: Final = 5.0  # for a listener to close its connections


class Started(msgspec.Struct, frozen=True):
    """What there is to say when a broker is ready."""

    data: str
    durability: str
    queues: int
    addresses: list[Address]


class Server:
    """One broker and its listeners. `start`, then `wait`, then `stop`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._listeners: list[Listener] = []
        self._session: Session | None = None
        self.broker: Broker | None = None  # once it is started
        self.over = asyncio.Event()  # somebody wants it to end, or the journal failed

    async def start(self) -> Started:
        """Open and listen; on failure nothing is left open."""
        settings = self._settings
        check_ports(settings)
        logger.info("opening", extra={"data": settings.data})  # after a crash this may take a while
        self._session = await asyncio.to_thread(open_session, settings)
        try:
            self.broker = Broker(self._session, meter=Meter(self._session.shard.clock.now()))
            self._watch_journal(self._session)
            return Started(
                settings.data, settings.durability, len(self._session.shard.core.by_name), await self._listen()
            )
        except BaseException:
            await self.stop(drain=False)
            raise

    async def _listen(self) -> list[Address]:
        assert self.broker is not None
        metrics = Metrics(self.broker.session, self.broker.meter)
        addresses = []
        for protocol in ports_of(self._settings):
            listener = await start(protocol, self.broker, self._settings, metrics)
            if listener is not None:
                self._listeners.append(listener)
                addresses.append(Address(protocol, self._settings.host, listener.port))
        return addresses

    def _watch_journal(self, session: Session) -> None:
        loop = asyncio.get_running_loop()

        def failed() -> None:
            """Called by whichever thread wrote, with locks held."""
            with suppress(RuntimeError):  # the loop is closed: it is over anyway
                loop.call_soon_threadsafe(self.over.set)

        session.shard.on_fail.append(failed)

    async def wait(self) -> None:
        """Until it is over; raises when the journal failed."""
        await self.over.wait()
        assert self._session is not None
        failed = self._session.shard.journal.failed
        if failed is not None:
            raise outcome_unknown(failed)

    async def stop(self, *, drain: bool = True) -> None:
        """Finish what was begun, if there is time for it; close everything."""
        if self.broker is not None and drain:
            await self._drain(self.broker)
        for listener in self._listeners:
            with suppress(TimeoutError):
                await asyncio.wait_for(listener.close(), CLOSE_SECONDS)
        self._listeners.clear()
        if self.broker is not None:
            await asyncio.to_thread(self.broker.confirmer.finish)
            self.broker.close()  # here: those whom it tells are on this loop
        if self._session is not None:
            await asyncio.to_thread(self._session.close)

    async def _drain(self, broker: Broker) -> None:
        for listener in self._listeners:
            listener.stop_accepting()
        try:
            async with asyncio.timeout(self._settings.drain_seconds):
                await broker.drain()
                # Whoever holds messages may still settle them.
                while broker.meter.connections_open and broker.shard.core.leases:  # noqa: ASYNC110 - both must be looked at
                    await asyncio.sleep(LOOK_SECONDS)
                await broker.drain()  # what was settled meanwhile is told when it is durable
                await asyncio.sleep(0)  # and leaves with this turn of the loop
        except TimeoutError:
            held = sum(lease.count for lease in list(broker.shard.core.leases.values()))
            logger.warning("drain_seconds are over; messages that are delivered again: %d", held)
        except PenstockError as error:
            logger.warning("what was begun could not be finished: %s", error)


def open_session(settings: Settings) -> Session:
    """The shard of a broker. Blocks while it recovers."""
    return Session(
        settings.data,
        durability=settings.durability,
        sync_seconds=settings.sync_ms / 1000,
        task_retention_seconds=settings.task_retention_seconds,
        data_mode=settings.data_mode,
    )


async def serve(
    settings: Settings,
    ready: Callable[[Started], object] = lambda started: None,
    reload: Callable[[], object] = lambda: None,
) -> None:
    """Run a broker until SIGTERM or SIGINT; a second one leaves at once. SIGHUP calls `reload`."""
    server = Server(settings)
    _on_signals(server, reload)
    started = await server.start()
    logger.info("ready", extra={"data": started.data, **{a.protocol: a.url for a in started.addresses}})
    ready(started)
    gc.collect()
    gc.freeze()  # what is there now stays: looking through it again and again finds nothing
    try:
        await server.wait()
    except PenstockError:
        await server.stop(drain=False)
        raise
    logger.info("stopping", extra={"drain_seconds": settings.drain_seconds})
    await server.stop()
    logger.info("stopped")


def _on_signals(server: Server, reload: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        if server.over.is_set():
            logger.warning("a second signal: leaving at once")
            os._exit(128 + number)  # what was confirmed is durable; the next start recovers
        server.over.set()

    for number in SIGNALS:
        loop.add_signal_handler(number, stop, number)
    loop.add_signal_handler(signal.SIGHUP, reload)


def raise_file_limit() -> None:
    """As many open files as this user may have: every connection is one, and the usual limit is 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems name a limit that they do not allow
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run(
    settings: Settings,
    ready: Callable[[Started], object] = lambda started: None,
    reload: Callable[[], object] = lambda: None,
) -> None:
    """`serve` on an event loop of its own: uvloop where there is one."""
    raise_file_limit()
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve(settings, ready, reload))
