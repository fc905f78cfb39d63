"""Faults of retries in sight, timelines and pauses."""

from __future__ import annotations

from typing import Final

from tests.mutants.fault import Fault

TIMELINE_FAULTS: Final = (
    Fault(
        "retry-error-not-persisted",
        "the last error of what waits is in no checkpoint",
        "shard/checkpoints.py",
        "        if endings:\n            parts |=",
        "        if False:\n            parts |=",
        ("tests/behaviour/test_retries_in_sight.py",),
    ),
    Fault(
        "pause-of-pushes-ignored",
        "a queue whose pushes are paused takes them",
        "delivery/admin.py",
        "        if queue.is_shut:\n",
        "        if False:\n",
        ("tests/behaviour/test_pauses.py",),
    ),
    Fault(
        "pause-forgotten",
        "what is paused is in no checkpoint",
        "shard/checkpoints.py",
        "            core.pauses.restore(spare.pauses)\n",
        "            core.pauses.restore([])\n",
        ("tests/behaviour/test_pauses.py",),
    ),
    Fault(
        "resume-wakes-nobody",
        "whoever waits for messages is not woken when the broker is resumed",
        "shard/engine.py",
        "                    self.waiters.wake_all()\n",
        "                    pass\n",
        ("tests/behaviour/test_pauses.py",),
    ),
    Fault(
        "events-twice",
        "events that were sealed are read from the journal too",
        "shard/timeline.py",
        "place.id.offset, sealed)",
        "place.id.offset, 0)",
        ("tests/behaviour/test_timeline.py",),
    ),
    Fault(
        "events-missed",
        "row groups of events are passed over that hold the message",
        "storage/event_lookup.py",
        "(self.last_max >= offset)",
        "(self.last_max > offset)",
        ("tests/behaviour/test_timeline.py",),
    ),
)
