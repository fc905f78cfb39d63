"""The tasks table: a broker on one core, a worker and whoever submits on the other, fsync on."""

from __future__ import annotations

from collections.abc import Callable

from bench.measure import Row, Scale
from bench.tasks import draining, many, submitting

GROUPS: dict[str, Callable[[Scale], list[Row]]] = {
    "async": draining.on_the_loop,
    "threads": draining.in_threads,
    "submit": submitting.singles,
    "submit batches": submitting.batches,
    "start": submitting.latency,
    "memory": many.memory,
    "page": many.page,
}
