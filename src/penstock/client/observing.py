"""Putting observers around a session, of either face, when there are any."""

from __future__ import annotations

from penstock.client._async.observed import ObservedSession as AsyncObservedSession
from penstock.client._sync.observed import ObservedSession
from penstock.client.observers import Hook, Metrics, Observer, observers_of
from penstock.client.session import AsyncSession, Session
from penstock.embedded.asynchronous import AsyncSession as EmbeddedAsyncSession
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.meter_observer import MeterObserver


class _AsyncObserved(AsyncObservedSession):
    """Of the asyncio face."""

    async def start(self) -> None:
        await self.session.start()


def observed(session: Session, observers: list[Observer]) -> Session:
    """The session itself when nobody observes it."""
    return ObservedSession(session, observers) if observers else session


def observed_async(session: AsyncSession, observers: list[Observer]) -> AsyncSession:
    """The session itself when nobody observes it."""
    return _AsyncObserved(session, observers) if observers else session


def embedded_observed(session: BlockingSession, metrics: Metrics) -> Session:
    """A session in this process, whose own latencies are measured too when anything is."""
    return observed(session, _with_meter(metrics, session.session.meter)) if metrics is not False else session


def embedded_observed_async(session: EmbeddedAsyncSession, metrics: Metrics) -> AsyncSession:
    """Asyncio version of `embedded_observed`."""
    return observed_async(session, _with_meter(metrics, session.session.meter)) if metrics is not False else session


def _with_meter(metrics: Metrics, meter: object) -> list[Observer]:
    return [*observers_of(metrics), Hook(MeterObserver(meter))]  # type: ignore[arg-type]
