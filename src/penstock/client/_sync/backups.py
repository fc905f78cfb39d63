# Generated from penstock/client/_async/backups.py by `make generate`. Do not edit.
"""Runs a backup and waits until it has finished."""

from __future__ import annotations

from collections.abc import Callable

from penstock import operations as ops
from penstock import validation
from penstock.client.session import Session
from penstock.client.thread_runtime import sleep
from penstock.replies import BackupState


def run_backup(
    session: Session,
    destination: str,
    keep: int | None,
    passphrase: str,
    on_progress: Callable[[int, int], object] | None,
) -> BackupState:
    """Run a backup and wait until it has finished. Raises the error if it failed."""
    state = session.execute(ops.StartBackup(destination, keep, passphrase))
    pauses = validation.pauses()
    while not state.is_over:
        sleep(next(pauses))
        state = session.execute(ops.GetBackup())
        if on_progress is not None:
            on_progress(state.bytes_done, state.bytes_total)
    return validation.backed_up(state)
