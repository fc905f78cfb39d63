"""The free-disk guard: pushes are refused while there is still room for what consumers do."""

from __future__ import annotations

from penstock import limits
from penstock.storage.disk import Disk


class SpaceGuard:
    """Looks at the free space of a disk."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def check(self) -> bool:
        """True when pushes must be refused. Costs two system calls."""
        return self._disk.free_bytes() < self.threshold_bytes()

    def threshold_bytes(self) -> int:
        """Free bytes under which pushes are refused: max(100 MB, min(5 %, 5 GiB))."""
        share = int(self._disk.total_bytes() * limits.disk_free_share)
        return max(limits.disk_free_bytes_floor, min(share, limits.disk_free_bytes_cap))
