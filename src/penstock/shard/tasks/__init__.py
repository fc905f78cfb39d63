"""What a shard does with tasks, beyond what it does with every message: each operation as decide → append → apply."""

from penstock.shard.tasks.changes import Kin, cancel, kin, retry
from penstock.shard.tasks.finish import expire_consumer, finish_tasks, note_progress, release_consumer
from penstock.shard.tasks.operations import (
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
from penstock.shard.tasks.schedules import delete_schedule, schedules, set_schedule
from penstock.shard.tasks.submit import Moved, submit_tasks

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
