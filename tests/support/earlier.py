"""An earlier Penstock, kept as test data: its sources, packed, so that a clone without history has them too.

    python -m tests.support.earlier COMMIT      packs the sources of a commit into tests/data/versions/earlier.tar.xz

Its dashboard and its tests are left out.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

DATA: Final = Path(__file__).parents[1] / "data" / "versions"
PACKED: Final = DATA / "earlier.tar.xz"
LEFT_OUT: Final = "src/penstock/dashboard/"
SIZE_MAX: Final = 1_000_000


def pack(commit: str) -> None:
    """Write the archive, with a note of the commit in it."""
    run = ["git", "archive", "--format=tar", commit, "src/penstock"]
    archive = io.BytesIO(subprocess.run(run, check=True, capture_output=True).stdout)
    with tarfile.open(fileobj=archive) as sources, tarfile.open(PACKED, "w:xz", preset=9) as packed:
        for member in sources:
            if member.isfile() and member.name.endswith((".py", ".typed")) and not member.name.startswith(LEFT_OUT):
                member.uid = member.gid = member.mtime = 0
                member.uname = member.gname = ""
                packed.addfile(member, sources.extractfile(member))
        note = json.dumps({"commit": commit}).encode()
        about = tarfile.TarInfo("src/commit.json")
        about.size = len(note)
        packed.addfile(about, io.BytesIO(note))


def unpacked(folder: Path) -> Path:
    """The sources of the earlier version; a directory for PYTHONPATH."""
    with tarfile.open(PACKED) as packed:
        packed.extractall(folder, filter="data")
    return folder / "src"


def environment(sources: Path | None, **more: str) -> dict[str, str]:
    """That of a process which imports these sources; without any, those of today."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "PYTHONPATH"))}
    return clean | more | ({} if sources is None else {"PYTHONPATH": str(sources)})


if __name__ == "__main__":
    pack(sys.argv[1])
