"""What a shard does with tasks, beyond what it does with every message: each operation as decide → append → apply."""

from penstock.tasking.changing import cancel, retry
from penstock.tasking.finishing import expire_consumer, finish_tasks, note_progress, release_consumer
from penstock.tasking.operating import (
    CHUNK,
    Phase,
    advance,
    begin_operation,
    filter_of,
    operation,
    operations,
    phases_of,
    running,
    stop_operation,
    take_step,
)
from penstock.tasking.reviving import Kin, kin
from penstock.tasking.scheduling import delete_schedule, schedules, set_schedule
from penstock.tasking.submitting import Moved, submit_tasks

__all__ = [
    "CHUNK",
    "Kin",
    "Moved",
    "Phase",
    "advance",
    "begin_operation",
    "cancel",
    "delete_schedule",
    "expire_consumer",
    "filter_of",
    "finish_tasks",
    "kin",
    "note_progress",
    "operation",
    "operations",
    "phases_of",
    "release_consumer",
    "retry",
    "running",
    "schedules",
    "set_schedule",
    "stop_operation",
    "submit_tasks",
    "take_step",
]
