"""The journal seam: an append-only list of frames, numbered from 1, that becomes durable in groups.

Three implementations, held to one conformance suite: file, memory and PostgreSQL (`postgres/journal.py`). The order of
a frame's life is append (gathered in memory) → write (the operating system has it) → sync (it survives a power cut).
Always `durable_sequence <= written_sequence <= sequence`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from penstock import limits
from penstock.errors import DiskFull, OutcomeUnknown, PenstockError
from penstock.storage.journal_files import JournalFile

__all__ = [
    "Frame",
    "FrameReader",
    "Journal",
    "JournalFile",
    "LocalJournal",
    "OpenFrame",
    "Socket",
    "as_it_is",
    "outcome_unknown",
]

Frame = tuple[int, int, memoryview]  # sequence, checksum, entries
OpenFrame = Callable[[memoryview], memoryview]  # entries as they are stored → as they were before they were sealed


def as_it_is(frame: memoryview) -> memoryview:
    """Nothing of the frame is sealed."""
    return frame


class Socket(Protocol):
    """What an event loop can watch."""

    def fileno(self) -> int:
        """Its descriptor."""


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
    files_unsealed_max: int  # full files that may wait for the sealer before pushes do
    is_remote: bool  # every frame is waited for, leases too, and what is in memory may be out of date
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

    def send_commit(self, on_taken: Callable[[], object]) -> Socket | None:
        """Start to make durable what was gathered, without waiting; returns the socket on which the answer comes.

        None: it takes a thread that calls `sync`, always or at this moment. `on_taken` is called, on any thread, when
        another caller has received the answer meanwhile.
        """

    def receive_commit(self, on_taken: Callable[[], object]) -> bool:
        """Whether what `send_commit` has sent is answered; how it ended shows in `durable_sequence` and `failed`.

        When neither has changed, the outcome is unknown, and `sync` finds out. `on_taken` is the same as then.
        """

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

    def push_refusal(self) -> PenstockError:
        """Why pushes are refused, while `disk_full`."""

    def is_stale(self) -> bool:
        """Whether another node may own the shard without this one knowing."""

    def stale_refusal(self) -> PenstockError:
        """Why nothing is answered from memory, while `is_stale`."""

    def confirmed_at(self, sequence: int) -> int:
        """When a frame of a remote journal became durable, by the monotonic clock; asked for in rising order."""

    def mark(self) -> None:
        """Record how far it is durable, so that a journal that has lost its end is detected."""

    def free_bytes(self) -> int | None:
        """Free space where the files are; None when there are none."""

    def fail(self, error: BaseException) -> None:
        """Stop for good, as after a failed write: whoever appends or waits gets an error. The first call counts."""

    def finish(self) -> None:
        """The end is near: make durable what was gathered, or stop for good when that cannot be done soon."""

    def close(self) -> None:
        """Make everything durable and release the files; it may be called twice."""


class LocalJournal:
    """What is so of every journal on the machine of its process: it is never out of date."""

    files_unsealed_max: int = limits.journal_files_unsealed_max
    is_remote: bool = False

    def send_commit(self, on_taken: Callable[[], object]) -> Socket | None:
        return None  # a sync of a file blocks

    def receive_commit(self, on_taken: Callable[[], object]) -> bool:
        raise AssertionError("it sends nothing")

    def push_refusal(self) -> PenstockError:
        return DiskFull("the disk is nearly full; pushes are refused until there is free space")

    def is_stale(self) -> bool:
        return False

    def stale_refusal(self) -> PenstockError:
        raise AssertionError("it is never stale")

    def confirmed_at(self, sequence: int) -> int:
        return 0

    def finish(self) -> None:
        """It is as quick at the end as ever."""


def outcome_unknown(cause: BaseException) -> OutcomeUnknown:
    """The error that callers get once the journal has failed."""
    return OutcomeUnknown(f"the journal stopped: {cause}")
