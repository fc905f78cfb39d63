"""Every option of a queue has an effect: an option that is stored and ignored is a bug."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.model import OPTION_NAMES
from tests.behaviour.steps import numbered

HERE = Path(__file__).parent


@pytest.mark.parametrize("option", OPTION_NAMES)
def test_every_option_is_used_by_a_behavioural_test(option):
    """The effect itself is in the file of its area; this only sees to it that none is forgotten."""
    pattern = re.compile(rf"\b{option}=|\"{option}\"")
    files = [path.name for path in sorted(HERE.glob("test_*.py")) if pattern.search(path.read_text(encoding="utf-8"))]

    assert [name for name in files if name != Path(__file__).name] or option == "durability"


@pytest.mark.parametrize("way", ["file"], indirect=True)
@pytest.mark.parametrize(
    ("queue_level", "push_level", "is_synced"),
    [
        (None, None, True),
        ("fsync", None, True),
        ("os", None, False),
        ("interval", None, False),
        ("os", "fsync", True),
        ("fsync", "os", False),
        (None, "interval", False),
    ],
)
def test_durability_says_what_a_push_waits_for(ps, way, queue_level, push_level, is_synced):
    queue = ps.create_queue("mail", durability=queue_level)
    journal = way.session.shard.journal

    for push in (lambda: queue.push(b"one", durability=push_level), lambda: queue.push_many(numbered(3), push_level)):
        push()
        assert (journal.durable_sequence == journal.sequence) is is_synced
        assert journal.written_sequence == journal.sequence


@pytest.mark.parametrize("way", ["file"], indirect=True)
@pytest.mark.parametrize("level", ["interval", "os"])
def test_the_interval_of_a_queue_is_kept_and_os_leaves_it_to_the_system(ps, way, clock, level):
    queue = ps.create_queue("mail", durability=level)
    journal = way.session.shard.journal
    queue.push(b"a")

    clock.advance(1)
    way.let_time_happen()

    assert (journal.durable_sequence == journal.sequence) is (level == "interval")


@pytest.mark.parametrize("way", ["file", "sealed", "forgetful"], indirect=True)
def test_options_outlast_the_process(ps, way):
    options = {
        "partitions": 3,
        "ordering": "key",
        "service": "weighted",
        "max_attempts": 7,
        "ttl_seconds": 60.0,
        "max_length": 9,
        "overflow": "drop_oldest",
        "retention_messages": 5,
    }
    before = ps.create_queue("mail", **options).options()
    ps.update_queue("mail", lease_seconds=77)

    queue = way.crash().queue("mail")

    assert queue.options().lease_seconds == 77
    assert all(getattr(queue.options(), name) == getattr(before, name) == value for name, value in options.items())
