"""The tasks of the worker in compose.yaml: replace them with yours."""

from __future__ import annotations

import penstock

app = penstock.App("penstock://broker:7710")


@app.task(max_attempts=5, timeout=30)
def greet(name: str) -> str:
    """Return a greeting."""
    return f"hello {name}"
