"""An extent: where a run of offsets lies in the sealed segments.

Extents are the sparse index for seeking by offset and by time. There can be many, so they are small, frozen and
untracked by the garbage collector, and nothing here opens a file. They compare and sort in the order of their fields:
by queue, partition, offset. Extents of one partition never overlap.
"""

from __future__ import annotations

import msgspec


class Extent(msgspec.Struct, frozen=True, order=True, gc=False):
    """A run of offsets of one partition inside one row group of one messages file. Times are µs UTC."""

    queue: int
    partition: int
    first_offset: int
    count: int
    pushed_first_at: int
    pushed_last_at: int
    file: str  # name under the data directory
    row_group: int
    row: int  # place of first_offset inside the row group
    flags: int  # batch columns that some row may have; the others need not be read
    bytes: int  # payload bytes
    due_last: int  # greatest available_at, 0 when no row has one
    expires_first: int  # least expires_at, 0 when no row has one

    @property
    def end_offset(self) -> int:
        return self.first_offset + self.count

    def row_of(self, offset: int) -> int:
        """The row of `offset` inside the row group."""
        return self.row + offset - self.first_offset
