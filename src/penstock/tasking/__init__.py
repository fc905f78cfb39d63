"""What a shard does with tasks, beyond what it does with every message: each operation as decide → append → apply."""

from penstock.tasking.changing import cancel, retry
from penstock.tasking.finishing import expire_consumer, finish_tasks, note_progress, release_consumer
from penstock.tasking.purging import CHUNK, cancel_waiting, purge_final
from penstock.tasking.reviving import Kin, kin
from penstock.tasking.scheduling import delete_schedule, schedules, set_schedule
from penstock.tasking.submitting import Moved, submit_tasks

__all__ = [
    "CHUNK",
    "Kin",
    "Moved",
    "cancel",
    "cancel_waiting",
    "delete_schedule",
    "expire_consumer",
    "finish_tasks",
    "kin",
    "note_progress",
    "purge_final",
    "release_consumer",
    "retry",
    "schedules",
    "set_schedule",
    "submit_tasks",
]
