"""What the dashboard costs a browser, measured with a real one: `python -m tests.dashboard.measure [SECONDS]`.

500 queues, one of which changes each second by a push. CPU is the time of the renderer's threads, as the browser itself
counts it; the heap is what is left after a collection, at the beginning and at the end.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from playwright.sync_api import Browser, BrowserContext, CDPSession

from tests.dashboard.conftest import Dashboard, Shop
from tests.support.chromium import chromium
from tests.support.dashboard import build_dashboard

QUEUES = 500
FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"


class Paint(NamedTuple):
    """From the beginning of the navigation, in milliseconds."""

    first_ms: float
    usable_ms: float  # the numbers of the queues are there


class Costs(NamedTuple):
    """Of one page that is open."""

    cpu_percent: float  # of a core
    heap_growth_bytes: int
    updates: int
    rows: int


def fill(shop: Shop) -> None:
    """500 queues in 20 namespaces."""
    for number in range(QUEUES):
        shop.push(f"team-{number % 20:02d}.queue-{number:03d}", number)


def paint(browser: Browser, shop: Shop) -> Paint:
    """Open the page of the queues with an empty cache."""
    shown, context = _signed_in(browser, shop)
    page = shown.page
    page.goto("about:blank")
    page.goto(f"{shop.origin}/ui/queues?sort=name", wait_until="commit")
    page.get_by_role("link", name="team-00.queue-000").wait_for()
    usable = float(page.evaluate("performance.now()"))
    first = float(page.evaluate(FIRST_PAINT))
    context.close()
    return Paint(first, usable)


def costs(browser: Browser, shop: Shop, seconds: float) -> Costs:
    """Leave the page of the queues open while one queue changes each second."""
    shown, context = _signed_in(browser, shop)
    shown.open("queues?sort=-pushed", "Queues")
    shown.page.get_by_role("link", name="team-").first.wait_for()
    session = context.new_cdp_session(shown.page)
    session.send("Performance.enable")
    _pushes(shop, 5)  # the page settles
    heap, cpu, began = _heap(session), _cpu(session), time.monotonic()
    updates = _pushes(shop, seconds)
    spent, elapsed = _cpu(session) - cpu, time.monotonic() - began
    rows = shown.page.locator("main tbody tr:not(.spacer)").count()
    seen = Costs(100 * spent / elapsed, _heap(session) - heap, updates, rows)
    context.close()
    return seen


def _signed_in(browser: Browser, shop: Shop) -> tuple[Dashboard, BrowserContext]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(60_000)
    shown = Dashboard(shop, context)
    shown.sign_in()
    return shown, context


def _pushes(shop: Shop, seconds: float) -> int:
    """One push a second; returns how many."""
    pushed, end, pause = 0, time.monotonic() + seconds, threading.Event()
    while time.monotonic() < end:
        shop.push(f"team-{pushed % 20:02d}.queue-{pushed % QUEUES:03d}", pushed)
        pushed += 1
        pause.wait(1)
    return pushed


def _cpu(session: CDPSession) -> float:
    """Seconds that the threads of the page were busy: scripts, styles, layout and paint."""
    metrics = {item["name"]: item["value"] for item in session.send("Performance.getMetrics")["metrics"]}
    return float(metrics["TaskDuration"])


def _heap(session: CDPSession) -> int:
    session.send("HeapProfiler.collectGarbage")
    return int(session.send("Runtime.getHeapUsage")["usedSize"])


def main(seconds: float) -> None:
    """Print what was measured."""
    build_dashboard()
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        shop = Shop(Path(folder), is_filled=False)
        try:
            fill(shop)
            seen = [paint(browser, shop) for _ in range(7)]
            cost = costs(browser, shop, seconds)
        finally:
            shop.close()
    for name, values in (
        ("first paint", [each.first_ms for each in seen]),
        ("usable", [each.usable_ms for each in seen]),
    ):
        sys.stdout.write(f"{name}: median {median(values):.0f} ms, best {min(values):.0f} ms\n")
    sys.stdout.write(f"open for {seconds:.0f} s: {cost.cpu_percent:.1f} % of a core, ")
    sys.stdout.write(f"heap {cost.heap_growth_bytes / 1e6:+.2f} MB, {cost.rows} rows\n")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60)
