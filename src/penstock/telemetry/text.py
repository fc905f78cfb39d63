"""The text format of Prometheus, version 0.0.4: one line per number, under a line of help and one of kind.

Written straight from the numbers: an object for every line would be thousands of objects per scrape, and the collector
of garbage would stop the event loop to look through them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.telemetry.meter import Histogram
from penstock.telemetry.names import FAMILIES

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_SUFFIX: Final = {"counter": "_total", "info": "_info"}
_KIND: Final = {"info": "gauge"}
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def numbers(name: str, rows: Iterable[tuple[tuple[str, ...], float]]) -> str:
    """A counter, a gauge or an info: the values of its labels, and the number."""
    family = FAMILIES[name]
    shown = name + _SUFFIX.get(family.kind, "")
    lines = [f"{shown}{_braced(_labels(family.labels, values))} {number}\n" for values, number in rows]
    return _head(shown, _KIND.get(family.kind, family.kind), family.help) + "".join(lines)


def histograms(name: str, rows: Iterable[tuple[tuple[str, ...], Histogram]]) -> str:
    """A histogram for each set of labels."""
    family = FAMILIES[name]
    lines = [_head(name, "histogram", family.help)]
    for values, histogram in rows:
        labels = _labels(family.labels, values)
        within = labels + "," if labels else ""
        counts = histogram.cumulated()
        lines += [f'{name}_bucket{{{within}le="{bound}"}} {count}\n' for bound, count in counts]
        lines.append(f"{name}_count{_braced(labels)} {counts[-1][1]}\n")
        lines.append(f"{name}_sum{_braced(labels)} {histogram.sum_seconds}\n")
    return "".join(lines)


def _head(name: str, kind: str, said: str) -> str:
    return f"# HELP {name} {said}\n# TYPE {name} {kind}\n"


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    pairs = zip(names, values, strict=True)
    return ",".join([f'{name}="{value.translate(_ESCAPES)}"' for name, value in pairs])


def _braced(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""
