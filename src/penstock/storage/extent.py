"""An extent: where a run of offsets lies in the sealed segments.

Extents are the sparse index for seeking by offset and by time. The delivery core holds many of them, so an extent
is a plain tuple and nothing here opens a file. Extents of one partition never overlap and are sorted by offset.
"""

from __future__ import annotations

from typing import NamedTuple


class Extent(NamedTuple):
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
    flags: int  # batch columns that some row of the extent has, so that the others need not be read
    bytes: int  # payload bytes
    due_last: int  # greatest available_at, 0 when no row has one
    expires_first: int  # least expires_at, 0 when no row has one

    @property
    def end_offset(self) -> int:
        return self.first_offset + self.count

    def row_of(self, offset: int) -> int:
        """The row of `offset` inside the row group."""
        return self.row + offset - self.first_offset
