"""What the dashboard costs a browser, measured with a real one: `python -m tests.dashboard.measure [SECONDS]`.

500 queues, one of which changes each second by a push. CPU is the time of all processes of the browser, as it counts
them itself: that of the page, the one that draws, the one that loads. The heap is what is left after a collection, ten
times on the way, once the memory of the page is full: it keeps five minutes of totals and one of each queue.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from playwright.sync_api import Browser, BrowserContext, CDPSession

from tests.dashboard.conftest import Dashboard, Shop
from tests.support.chromium import chromium
from tests.support.dashboard import build_dashboard

QUEUES = 500
HEAPS = 10
WARM_UP_SECONDS = 310
FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"


class Paint(NamedTuple):
    """From the beginning of the navigation, in milliseconds."""

    first_ms: float
    usable_ms: float  # the numbers of the queues are there


class Costs(NamedTuple):
    """Of one page that is open."""

    cpu_percent: float  # of a core, all processes of the browser
    page_percent: float  # of a core, the process of the page alone
    heap_bytes: list[int]  # after a collection each
    updates: int
    rows: int

    @property
    def heap_growth_bytes(self) -> int:
        """From the first third of the measurements to the last one."""
        return growth(self.heap_bytes)


def growth(values: Sequence[int]) -> int:
    """How much the median of the last third is above that of the first: one odd value says nothing."""
    third = max(1, len(values) // 3)
    return int(median(values[-third:]) - median(values[:third]))


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


def costs(browser: Browser, shop: Shop, seconds: float, warm_up_seconds: float = 5, leak: str = "") -> Costs:
    """Leave the page of the queues open while one queue changes each second. `leak` is a script to run in it."""
    shown, context = _signed_in(browser, shop)
    shown.open("queues?sort=-pushed", "Queues")
    shown.page.get_by_role("link", name="team-").first.wait_for()
    session, processes = context.new_cdp_session(shown.page), browser.new_browser_cdp_session()
    if leak:
        shown.page.evaluate(leak)
    _pushes(shop, warm_up_seconds)
    heaps, updates, spent, elapsed = [_heap(session)], 0, Counter[str](), 0.0
    for _ in range(HEAPS):
        before, began = _cpu(processes), time.monotonic()
        updates += _pushes(shop, seconds / HEAPS)
        elapsed += time.monotonic() - began
        spent.update(_cpu(processes) - before)
        heaps.append(_heap(session))  # not counted: only measuring collects
    rows = shown.page.locator("main tbody tr:not(.spacer)").count()
    context.close()
    return Costs(100 * spent.total() / elapsed, 100 * spent["renderer"] / elapsed, heaps, updates, rows)


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


def _cpu(processes: CDPSession) -> Counter[str]:
    """Seconds that the processes of the browser were busy, by their kind."""
    seconds = Counter[str]()
    for process in processes.send("SystemInfo.getProcessInfo")["processInfo"]:
        seconds[process["type"]] += process["cpuTime"]
    return seconds


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
            cost = costs(browser, shop, seconds, WARM_UP_SECONDS)
        finally:
            shop.close()
    for name, values in (
        ("first paint", [each.first_ms for each in seen]),
        ("usable", [each.usable_ms for each in seen]),
    ):
        sys.stdout.write(f"{name}: median {median(values):.0f} ms, best {min(values):.0f} ms\n")
    sys.stdout.write(
        f"open for {seconds:.0f} s: {cost.cpu_percent:.1f} % of a core, {cost.page_percent:.1f} % in the page, "
    )
    sys.stdout.write(
        f"heap {cost.heap_growth_bytes / 1e3:+.0f} KB of {cost.heap_bytes[0] / 1e6:.1f} MB, {cost.rows} rows\n"
    )
    sys.stdout.write(f"heap in KB: {', '.join(str(heap // 1000) for heap in cost.heap_bytes)}\n")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60)
