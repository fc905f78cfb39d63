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

    def _run(self, sql: str, values: Sequence[Value], name: bytes | None) -> Any:
        kind = self.faults.next(sql)
        if kind == "unsent":
            raise self._lost("the test cut the wire before the statement")
        if kind == "late":  # the server does it some time later, whatever the client thinks
            texts: Any = [str(value).encode() if isinstance(value, int | str) else value for value in values]
            formats = [int(isinstance(value, bytes)) for value in values]
            if name is None:
                self._conn.send_query_params(sql.encode(), texts, None, formats, 1)
            else:
                self._conn.send_query_prepared(name, texts, formats, 1)
            while self._conn.flush():
                pass
            raise self._lost("the test cut the wire behind the statement")
        result = super()._run(sql, values, name)
        if kind == "unanswered":
            raise self._lost("the test cut the wire before the answer")
        return result


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
        link.faults = self
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
