"""The latencies of an embedded session, for `ps.metrics()`: what observers learn, in the session's meter."""

from __future__ import annotations

import threading
from typing import Any

from penstock.telemetry.meter import Meter


class MeterObserver:
    """Notes in a meter what `client.observers` measure. Threads take turns: a meter counts without a lock."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._lock = threading.Lock()

    def __call__(self, measurement: Any) -> None:
        name, labels, value = measurement.name, measurement.labels, measurement.value
        with self._lock:
            if name == "penstock_delivery_latency_seconds":
                self._meter.leased(labels["queue"], "", 0, value)
            elif name == "penstock_refused_requests":
                self._meter.refused(labels["queue"], labels["code"])
            elif name.endswith("_duration_seconds"):
                self._meter.took(name.removeprefix("penstock_").removesuffix("_duration_seconds"), value)
