# Generated from penstock/client/_async/transaction.py by `make generate`. Do not edit.
"""A transaction that commits when its block ends."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from penstock.client.session import Session
from penstock.client.transaction import BaseTransaction


class Transaction(BaseTransaction):
    """Settles and pushes over any queues: all of it happens, or nothing."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        if error is None and self._operations:
            self.ids = self._session.transact(self._operations)
