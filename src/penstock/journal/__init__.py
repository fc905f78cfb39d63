"""The journal seam: an append-only list of frames, numbered from 1, that becomes durable in groups.

Three implementations, held to one conformance suite: file, memory and, in a cluster, PostgreSQL. The order of a
frame's life is append (gathered in memory) → write (the operating system has it) → sync (it survives a power cut).
Always `durable_sequence <= written_sequence <= sequence`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from penstock.errors import OutcomeUnknown
from penstock.storage.journal_files import JournalFile

__all__ = ["Frame", "FrameReader", "Journal", "JournalFile", "OpenFrame", "as_it_is", "outcome_unknown"]

Frame = tuple[int, int, memoryview]  # sequence, checksum, entries
OpenFrame = Callable[[memoryview], memoryview]  # entries as they are stored → as they were before they were sealed


def as_it_is(frame: memoryview) -> memoryview:
    """Nothing of the frame is sealed."""
    return frame


class FrameReader(Protocol):
    """Follows a journal while it is written. For one thread at a time."""

    def read(self, after: int, until: int) -> Iterator[Frame]:
        """The frames over `after`, up to and including `until`, which must be written."""


class Journal(Protocol):
    """Where frames go. `append` is for the holder of the shard's lock; all the rest is thread-safe."""

    sequence: int  # of the last appended frame; 0 before the first
    written_sequence: int
    durable_sequence: int
    disk_full: bool  # pushes must be refused; settles still work
    failed: BaseException | None  # the error that stopped the journal for good
    on_rotate: Callable[[], None]  # called when a file has become full; must not block
    on_fail: Callable[[], None]  # called once, when it has stopped for good; must not block

    def append(self, entries: bytes, batch: bytes | memoryview = b"") -> int:
        """Number and gather a frame; its bytes are a multiple of 8. `OutcomeUnknown` after a failure.

        The batch of a push that is the frame's last entry may be passed separately, so that it need not be copied.
        """

    def append_written(self, entries: bytes, batch: bytes | memoryview = b"") -> int:
        """Append, and write everything gathered: the operating system has the frame when this returns."""

    def write(self) -> None:
        """Hand what was gathered to the operating system, starting new files as they fill up."""

    def sync(self) -> None:
        """Write, then wait until everything written is durable."""

    def replay(self, after: int) -> Iterator[tuple[int, memoryview]]:
        """(sequence, entries) of every frame over `after`, in order. `Damaged` when one of them is missing."""

    def reader(self) -> FrameReader:
        """For following the journal while it is written."""

    def full_files(self) -> list[JournalFile]:
        """Files that will not be written again, oldest first."""

    def read_file(self, file: JournalFile) -> Iterator[tuple[int, memoryview]]:
        """The frames of a full file."""

    def remove_file(self, file: JournalFile) -> None:
        """Remove the oldest full file, once nothing needs it."""

    def size_bytes(self) -> int:
        """Bytes of frames in all files, full or not."""

    def rotate(self) -> None:
        """Make the current file a full one, unless it is empty."""

    def check_space(self) -> bool:
        """Check the free space, renew the reserve if it was used, and set and return `disk_full`."""

    def mark(self) -> None:
        """Record how far it is durable, so that a journal that has lost its end is detected."""

    def free_bytes(self) -> int | None:
        """Free space where the files are; None when there are none."""

    def fail(self, error: BaseException) -> None:
        """Stop for good, as after a failed write: whoever appends or waits gets an error. The first call counts."""

    def close(self) -> None:
        """Make everything durable and release the files; it may be called twice."""


def outcome_unknown(cause: BaseException) -> OutcomeUnknown:
    """The error that callers get once the journal has failed."""
    return OutcomeUnknown(f"the journal stopped: {cause}")
