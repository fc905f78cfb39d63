"""Connections that fail: they lose statements, lose answers, or give up while the server still works."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from penstock.postgres.link import Link, Value
from penstock.postgres.links import Links
from penstock.postgres.store import PostgresStore

KINDS = ("unsent", "unanswered", "late")


class FaultyLink(Link):
    """`fault` is asked before every statement what happens to it: one of `KINDS`, or nothing."""

    faults: FaultyLinks
    texts: dict[bytes, str]  # of prepared statements
    _fault = ""

    def _send(self, sql: str, values: Sequence[Value], name: bytes | None) -> None:
        self._fault = self.faults.next(sql or self.texts[name or b""])
        if self._fault == "unsent":
            raise self._lost("the test cut the wire before the statement")
        super()._send(sql, values, name)
        if self._fault == "late":  # the server does it some time later, whatever the client thinks
            while self._conn.flush():
                pass
            raise self._lost("the test cut the wire behind the statement")

    def _checked(self, result: Any) -> Any:
        result = super()._checked(result)
        if self._fault == "unanswered":
            self._fault = ""
            raise self._lost("the test cut the wire before the answer")
        return result

    def execute_prepared(self, name: bytes, sql: str, values: Sequence[Value]) -> int:
        self.texts[name] = sql
        return super().execute_prepared(name, sql, values)


class FaultyLinks(Links):
    """`only`: statements that contain one of these fail; `rate` is how often; `plan` comes first."""

    def __init__(
        self, links: Links, seed: int = 0, rate: float = 0.0, only: Sequence[str] = ("INSERT", "COMMIT")
    ) -> None:
        super().__init__(links.target, links.role)
        self._rng = random.Random(seed)
        self.rate = rate
        self.only = tuple(only)
        self.plan: list[str] = []
        self.statements: list[str] = []

    def new(self, *, statement_seconds: float | None = None) -> Link:
        options = {} if statement_seconds is None else {"statement_seconds": statement_seconds}
        link = FaultyLink.__new__(FaultyLink)
        link.faults, link.texts = self, {}
        link.__init__(self.target, self.role, **options)  # type: ignore[misc]
        self._made.add(link)
        return link

    def next(self, sql: str) -> str:
        self.statements.append(sql)
        if not any(word in sql for word in self.only):
            return ""
        if self.plan:
            return self.plan.pop(0)
        return self._rng.choice(KINDS) if self._rng.random() < self.rate else ""


def faulty_store(url: str, seed: int = 0, rate: float = 0.0, **options: Any) -> tuple[PostgresStore, FaultyLinks]:
    """A store whose connections fail."""
    store = PostgresStore(url, node="test", **options)
    store.links = links = FaultyLinks(store.links, seed, rate)
    return store, links
