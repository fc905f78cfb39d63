"""The extra `security`: libraries that Penstock does without until something needs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.errors import InvalidField

INSTALL: Final = "pip install 'penstock[security]'"


@contextmanager
def security_extra(purpose: str) -> Iterator[None]:
    """Import inside the block what `purpose` needs; raises `InvalidField` with the remedy when it is not installed."""
    try:
        yield
    except ImportError as error:
        raise InvalidField(f"{purpose} needs {error.name}, which is not installed", hint=INSTALL) from error
