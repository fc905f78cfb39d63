"""The growth table: what something costs when one thing grows, with the exponent, and the longest hold of the lock.

A cost is declared once, by the decorator `cost` in any module here. `python -m bench growth` measures it at three
sizes; `tests/test_growth.py` counts its steps at two small ones, so that a wrong exponent fails the build.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from functools import partial
from importlib import import_module

from bench.growth.cost import COSTS, rows_of
from bench.measure import Row, Scale

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

GROUPS: dict[str, Callable[[Scale], list[Row]]] = {name: partial(rows_of, cost) for name, cost in COSTS.items()}
