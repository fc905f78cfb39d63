"""Every segment file against the manifest, row group by row group: what can still be read.

A damaged row group costs the messages in it and no others. When the manifest itself is damaged it is made anew from
the files, whose pages have checksums of their own.
"""

from __future__ import annotations

import msgspec

from penstock.errors import Damaged
from penstock.storage import audit
from penstock.storage import manifest as manifests
from penstock.storage.disk import Disk
from penstock.storage.extents import Extent
from penstock.storage.findings import Finding
from penstock.storage.manifest import DIRECTORIES, Manifest, SegmentFile
from penstock.storage.parquet import SegmentReader
from penstock.storage.relist import Relisted, relist
from penstock.storage.schema import EVENT_TIMES, EVENTS, SCHEMAS, TASKS
from penstock.units import plural

_ABOUT = {EVENTS: "deliveries", TASKS: "tasks"}


class SegmentCheck(msgspec.Struct):
    """What is left of the segments. `manifest` names what could be read, once the damaged files are dropped."""

    manifest: Manifest = Manifest()
    damaged_files: list[str] = []
    sound_extents: dict[str, list[Extent]] = {}  # damaged file → extents in it that can be read
    unlisted_files: list[str] = []  # only when the manifest was made anew: files that it does not name
    is_relisted: bool = False
    findings: list[Finding] = []

    @property
    def readable(self) -> Manifest:
        """The manifest with nothing in it that cannot be read."""
        sound = {extent for extents in self.sound_extents.values() for extent in extents}
        extents = [
            extent for extent in self.manifest.extents if extent.file not in self.sound_extents or extent in sound
        ]
        return msgspec.structs.replace(self.manifest, extents=extents)


def check_segments(disk: Disk, sealed_sequence: int, on_progress: audit.Progress | None = None) -> SegmentCheck:
    """Read all of it. `sealed_sequence` is believed only when the manifest cannot be."""
    if not disk.exists("segments"):
        return SegmentCheck()
    try:
        manifest = manifests.read(disk)
    except Damaged:
        return _of_relisted(relist(disk, sealed_sequence), "the manifest does not match its checksum")
    if manifest is None:
        if not sealed_sequence and not any(disk.list(name) for name in DIRECTORIES if disk.exists(name)):
            return SegmentCheck()
        what = "the manifest is missing, and there are segment files that it should name"
        return _of_relisted(relist(disk, sealed_sequence), what)
    check = SegmentCheck(manifest)
    for problem in audit.verify(disk, manifest, on_progress):
        _add_problem(check, disk, manifest.files[problem.file], problem)
    return check


def _of_relisted(found: Relisted, what: str) -> SegmentCheck:
    check = SegmentCheck(found.manifest, unlisted_files=found.unlisted, is_relisted=True)
    check.findings.append(Finding(manifests.NAME, f"{what}; it can be made anew from the files"))
    check.findings += [Finding(name, f"the file cannot be read: {reason}") for name, reason in found.unreadable.items()]
    return check


def _add_problem(check: SegmentCheck, disk: Disk, file: SegmentFile, problem: audit.Problem) -> None:
    if file.name in check.damaged_files:
        return
    groups = readable_row_groups(disk, file)
    sound = [extent for extent in problem.extents if extent.row_group in groups]
    check.damaged_files.append(file.name)
    check.sound_extents[file.name] = sound
    check.findings.append(
        Finding(file.name, f"{problem.message}; {_extent_of_damage(file, problem, len(groups), sound)}")
    )


def _extent_of_damage(file: SegmentFile, problem: audit.Problem, groups: int, sound: list[Extent]) -> str:
    if file.table in EVENT_TIMES:
        return f"it holds history of {_ABOUT[file.table]}, no messages"
    gone = sum(extent.count for extent in problem.extents) - sum(extent.count for extent in sound)
    return f"{groups:,} of {plural(len(file.row_groups), 'row group')} can be read, {plural(gone, 'message')} cannot"


def readable_row_groups(disk: Disk, file: SegmentFile) -> set[int]:
    """The row groups of a file that match all of their checksums."""
    reader = SegmentReader(disk)
    readable = set()
    for row_group in range(len(file.row_groups)):
        try:
            reader.read(file, row_group, SCHEMAS[file.table].names)
        except (Damaged, FileNotFoundError):
            continue
        readable.add(row_group)
    return readable
