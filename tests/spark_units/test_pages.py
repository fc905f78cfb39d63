"""Charts of a queue: they can be read whatever the figures are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from matplotlib.figure import Figure

from penstock.spark.pipelines.pages import Flow, _draw_times, flow_chart

START = datetime(2030, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([15_274.0, 24_086.0], {"10,000", "20,000"}),
        ([188.0, 1_118.0], {"200", "500", "1,000"}),
        ([0.5, 900_000.0], {"1", "100", "10,000", "1,000,000"}),
    ],
)
def test_times_are_labelled_in_plain_numbers_within_a_power_of_ten_and_beyond(values, labels):
    axes = Figure().subplots()

    _draw_times(axes, "Wait", [START, START + timedelta(minutes=1)], {"p50": values})

    low, high = axes.get_ylim()
    shown = {label.get_text() for label in axes.get_yticklabels() if low <= label.get_position()[1] <= high}
    assert labels <= shown, shown
    assert len(shown) <= 12


def test_a_queue_with_nothing_waiting_is_drawn():
    nothing = {name: [float("nan")] for name in ("p50", "p95", "p99")}
    flow = Flow(
        times=[START], seconds=60, counts={"pushed": [3]}, backlog={"default": [0]}, wait_ms=nothing,
        processing_ms=nothing,
    )  # fmt: skip

    assert flow_chart("orders", flow).startswith(b"\x89PNG")
