"""The servers that a URL names, tried in their order, and those that do not answer at all less often.

A machine that died answers nothing, and trying to connect takes the whole timeout. While the others decide who is the
primary now, a node asks again and again; it must not spend that time with the dead one. So a host that was silent is
left out for a while, unless all are. One that refuses, or that only reads, costs next to nothing and is always tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from penstock.clock import Clock, SystemClock

T = TypeVar("T")

SILENT_SECONDS: Final = 5.0  # that a silent host is left out


class Hosts:
    """The connection strings of one store, one for each host. Threads share what is known about them."""

    def __init__(self, conninfos: tuple[str, ...], clock: Clock | None = None) -> None:
        self.conninfos = conninfos
        self._clock = clock or SystemClock()
        self._left_out: dict[str, int] = {}  # until when

    def connect(self, connect: Callable[[str], T], failure: type[Exception], silence: tuple[type[Exception], ...]) -> T:
        """The first connection that can be made; raises the `failure` of the last host, with what the others said."""
        failures: list[Exception] = []
        for conninfo in self._in_turn():
            if conninfo in self._left_out:
                self._leave_out(conninfo)  # other threads need not find out too
            try:
                connection = connect(conninfo)
            except failure as error:
                if isinstance(error, silence):
                    self._leave_out(conninfo)
                failures.append(error)
            else:
                self._left_out.pop(conninfo, None)
                return connection
        if len(failures) > 1:
            failures[-1].args = ("; ".join(dict.fromkeys(str(error).strip() for error in failures)),)
        raise failures[-1]

    def _in_turn(self) -> list[str]:
        now = self._clock.monotonic()
        answering = [conninfo for conninfo in self.conninfos if self._left_out.get(conninfo, now) <= now]
        return answering or list(self.conninfos)

    def _leave_out(self, conninfo: str) -> None:
        self._left_out[conninfo] = self._clock.monotonic() + round(SILENT_SECONDS * 1_000_000)
