"""Every part of the checkpoint: which can be trusted.

Each part carries its own checksum, so parts survive a damaged manifest: then the latest sound file of each part is
taken. Such a checkpoint may be a mix of two; the parts say how far they go, and frames after that are applied again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.errors import Damaged
from penstock.storage.checkpoint import DIRECTORY, MANIFEST, Checkpoint, CheckpointStore, read_part_alone
from penstock.storage.disk import Disk
from penstock.storage.findings import Finding

_PART_FILE: Final = re.compile(r"(?P<part>.+)-(?P<sequence>\d{20})(?:\.(?P<attempt>\d+))?\.part")


class CheckpointCheck(msgspec.Struct):
    """What is left of a checkpoint. `sequence` 0 and no parts when there is none."""

    sequence: int = 0
    parts: dict[str, bytes] = {}
    lost_parts: list[str] = []
    damaged_files: list[str] = []
    findings: list[Finding] = []


def check_checkpoint(disk: Disk, *, is_needed: bool) -> CheckpointCheck:
    """Read all of it. It is needed once the journal has let go of its beginning: before, there may be none."""
    if not disk.exists(DIRECTORY):
        return CheckpointCheck()
    try:
        store = CheckpointStore(disk)
    except Damaged:
        return _without_manifest(disk, "the manifest does not match its checksum; the parts are taken one by one")
    checkpoint = store.load()
    if checkpoint is not None:
        return _with_manifest(checkpoint, store.part_files())
    if is_needed and _part_files(disk):
        return _without_manifest(disk, "the manifest is missing; the parts are taken one by one")
    return CheckpointCheck()


def _with_manifest(checkpoint: Checkpoint, part_files: Mapping[str, str]) -> CheckpointCheck:
    check = CheckpointCheck(checkpoint.sequence)
    for name, file in part_files.items():
        try:
            check.parts[name] = checkpoint.parts[name]
        except Damaged as error:
            check.lost_parts.append(name)
            check.damaged_files.append(file)
            check.findings.append(Finding(file, f"the part {error.message.partition(file)[2].strip()}"))
    return check


def _without_manifest(disk: Disk, what: str) -> CheckpointCheck:
    check = CheckpointCheck(damaged_files=[MANIFEST], findings=[Finding(MANIFEST, what)])
    sequences = []
    for name, candidates in _part_files(disk).items():
        for sequence, _, file in sorted(candidates, reverse=True):
            data = read_part_alone(disk.read(file))
            if data is not None:
                check.parts[name] = data
                sequences.append(sequence)
                break
            check.damaged_files.append(file)
            check.findings.append(Finding(file, "the part does not match its checksum"))
        else:
            check.lost_parts.append(name)
    check.sequence = min(sequences, default=0)
    return check


def _part_files(disk: Disk) -> dict[str, list[tuple[int, int, str]]]:
    """(sequence, attempt, file) of every file of each part."""
    found: dict[str, list[tuple[int, int, str]]] = {}
    for file in disk.list(DIRECTORY):
        match = _PART_FILE.fullmatch(file)
        if match:
            place = (int(match["sequence"]), int(match["attempt"] or 0), f"{DIRECTORY}/{file}")
            found.setdefault(match["part"], []).append(place)
    return found
