"""The extras `security` and `postgres`: libraries that Penstock does without until something needs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from penstock.errors import InvalidField

INSTALL: Final = "pip install 'penstock-mq[{}]'"


@contextmanager
def extra(name: str, purpose: str) -> Iterator[None]:
    """Import inside the block what `purpose` needs; raises `InvalidField` with the remedy when it is not installed."""
    try:
        yield
    except ImportError as error:
        raise InvalidField(
            f"{purpose} needs {error.name}, which is not installed", hint=INSTALL.format(name)
        ) from error


def security_extra(purpose: str) -> AbstractContextManager[None]:
    """`extra` for passwords, certificates and tokens."""
    return extra("security", purpose)


def postgres_extra(purpose: str) -> AbstractContextManager[None]:
    """`extra` for stores in PostgreSQL."""
    return extra("postgres", purpose)
