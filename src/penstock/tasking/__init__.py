"""What a shard does with tasks, beyond what it does with every message: each operation as decide → append → apply."""

from penstock.tasking.finishing import expire_consumer, finish_tasks, note_progress, release_consumer

__all__ = ["expire_consumer", "finish_tasks", "note_progress", "release_consumer"]
