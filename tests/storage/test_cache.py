"""The cache of row groups: bounded, shared, and asked for one thing once."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from penstock.errors import Damaged
from penstock.storage.cache import ByteCache


def sized(value: str) -> tuple[str, int]:
    return value, 3


def test_the_cache_keeps_what_was_used_last_within_its_bytes():
    cache: ByteCache[str, str] = ByteCache(10)
    for key, value in ("aA", "bB", "cC"):
        cache.get(key, partial(sized, value))
    assert cache.get("a", lambda: ("again", 3)) == "A"
    cache.get("d", lambda: ("D", 4))

    assert cache.bytes <= 10
    assert cache.get("a", lambda: ("again", 3)) == "A"
    assert cache.get("b", lambda: ("again", 3)) == "again"
    assert (cache.peek("a"), cache.peek("c")) == ("A", None)
    assert cache.get("huge", lambda: ("huge", 11)) == "huge"
    assert cache.get("huge", lambda: ("not kept", 11)) == "not kept"


def test_threads_that_want_the_same_row_group_wait_for_one_to_read_it():
    cache: ByteCache[str, int] = ByteCache(10)
    begun, go = threading.Event(), threading.Event()
    made: list[int] = []

    def make() -> tuple[int, int]:
        begun.set()
        assert go.wait(60)
        made.append(1)
        return len(made), 1

    threads = [threading.Thread(target=cache.get, args=("key", make)) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    go.set()
    for thread in threads:
        thread.join()

    assert made == [1]


def test_a_cache_that_could_not_make_a_value_tries_again_next_time():
    cache: ByteCache[str, int] = ByteCache(10)

    def fail() -> tuple[int, int]:
        raise Damaged("no")

    with pytest.raises(Damaged):
        cache.get("key", fail)
    assert cache.get("key", lambda: (1, 1)) == 1
