"""The growth table: what something costs when one thing grows, with the exponent, and the longest hold of the lock.

One cost is declared once, as a `Cost` in the list `COSTS` of any module here. `python -m bench growth` measures it at
three sizes; `tests/test_growth.py` counts its steps at two small ones, so that a wrong exponent fails the build.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from functools import partial
from importlib import import_module

from bench.growth.cost import Cost
from bench.growth.measuring import rows_of
from bench.measure import Row, Scale


def _declared() -> dict[str, Cost]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [import_module(f"{__name__}.{name}") for name in names]
    return {cost.name: cost for module in modules for cost in getattr(module, "COSTS", ())}


COSTS: dict[str, Cost] = _declared()
GROUPS: dict[str, Callable[[Scale], list[Row]]] = {name: partial(rows_of, cost) for name, cost in COSTS.items()}
