"""The tables of a store are made by whichever node comes first."""

from __future__ import annotations

import threading

from penstock.postgres.link import Link
from penstock.postgres.schema import VERSION, prepare, status_of
from penstock.postgres.target import parse_store_url


class Late(Link):
    """Between its two looks another node makes the tables."""

    other: Link | None = None

    def one(self, sql, *values):
        row = super().one(sql, *values)
        if "to_regclass" in sql and row == (None,) and self.other is not None:
            prepare(self.other, "")
        return row


def test_a_node_that_looks_while_another_makes_the_tables_finds_them(url):
    target = parse_store_url(url)
    late, other = Late(target, "late"), Link(target, "other")
    late.other = other

    assert status_of(late).version == VERSION
    late.close()
    other.close()


def test_nodes_that_start_at_once_agree_on_one_store(url):
    links = [Link(parse_store_url(url), f"node {number}") for number in range(4)]
    found = []
    threads = [threading.Thread(target=lambda link=link: found.append(prepare(link, ""))) for link in links]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({status.id for status in found}) == 1
    assert len(found) == 4
    for link in links:
        link.close()
