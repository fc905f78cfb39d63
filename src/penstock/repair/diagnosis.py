"""The examination of the files and the state that can be salvaged from them, as one finding."""

from __future__ import annotations

import msgspec

from penstock.repair.salvage import Loss, Salvaged, salvage
from penstock.storage.disk import Disk
from penstock.storage.doctor import Examination, Finding, Progress, examine


class Checked(msgspec.Struct, frozen=True):
    """What there was to look at."""

    journal_files: int
    frames: int
    checkpoint_parts: int
    segment_files: int
    sealed_messages: int


class Report(msgspec.Struct, frozen=True):
    """A diagnosis, and what was done about it, as people and programs read it."""

    directory: str
    is_sound: bool
    findings: list[Finding]
    losses: list[Loss]
    notes: list[str]
    checked: Checked
    is_repaired: bool = False
    kept_in: str | None = None  # the folder with copies of everything that the repair replaced


class Diagnosis(msgspec.Struct):
    """What is wrong and what is left."""

    directory: str
    examination: Examination
    salvaged: Salvaged

    @property
    def is_sound(self) -> bool:
        return self.examination.is_sound and not self.salvaged.losses

    def report(self, kept_in: str | None = None) -> Report:
        """In plain words; `kept_in` when it has been repaired."""
        salvaged = self.salvaged
        return Report(
            self.directory,
            self.is_sound,
            self.examination.findings,
            salvaged.losses,
            [] if self.is_sound else salvaged.notes,
            self._checked(),
            kept_in is not None,
            kept_in,
        )

    def _checked(self) -> Checked:
        found = self.examination
        return Checked(
            len(found.journal.starts),
            sum(len(stretch.positions) for stretch in found.journal.stretches),
            len(found.checkpoint.parts),
            len(found.segments.manifest.files),
            sum(extent.count for extent in found.segments.manifest.extents),
        )


def diagnose(disk: Disk, now: int, on_progress: Progress = lambda done, total: None) -> Diagnosis:
    """Read everything; nothing is changed. The caller holds the directory."""
    examination = examine(disk, on_progress)
    return Diagnosis(str(disk.root), examination, salvage(disk, examination, now))
