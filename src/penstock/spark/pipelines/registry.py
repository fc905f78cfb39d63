"""The pipelines that ship with Penstock, by name; and anybody's own, as `module:function`.

A module is imported when its pipeline is asked for. None of them imports Spark before it runs, so that listing and
explaining pipelines needs no Java.
"""

from __future__ import annotations

import importlib
from typing import Final

from penstock.errors import InvalidField
from penstock.model import suggestion
from penstock.spark.pipelines.base import Pipeline

# Where each lives, in the order in which they are listed.
MODULES: Final = {
    "archive": "archive",
    "rollup": "rollup",
    "traces": "traces",
    "dlq-triage": "triage",
    "replay": "replay",
    "window": "window",
    "backtest": "backtest",
    "forecast": "forecast",
}
_HOME: Final = "penstock.spark.pipelines"


def names() -> tuple[str, ...]:
    """The names of the pipelines that ship with Penstock."""
    return tuple(MODULES)


def shipped() -> list[Pipeline]:
    """The pipelines themselves."""
    return [find(name) for name in names()]


def find(name: str) -> Pipeline:
    """The pipeline of this name."""
    if ":" in name:
        from penstock.spark.pipelines.own import load

        return load(name).pipeline
    if name not in names():
        hint = f"a function of your own is named module:function; {suggestion(name, names())}"
        raise InvalidField(f"pipeline: there is none called {name!r}", hint=hint)
    found: Pipeline = importlib.import_module(f"{_HOME}.{MODULES[name]}").PIPELINE
    return found
