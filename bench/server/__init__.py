"""The server table: a broker in a process of its own on one core, the load on another."""

from __future__ import annotations

from collections.abc import Callable

from bench.measure import Row, Scale
from bench.server import batches, connections, latency, over_http, singles, tls

GROUPS: dict[str, Callable[[Scale], list[Row]]] = {
    "tcp single": singles.against_echo,
    "tcp single sdk": singles.against_peers,
    "tcp single linger": singles.gathered,
    "tcp batches": batches.pushed,
    "tcp leases": batches.leased,
    "http single": over_http.single,
    "http batches": over_http.batches,
    "tls": tls.costs,
    "latency": latency.long_poll,
    "memory": connections.memory,
    "connections": connections.at_once,
}
