"""Spark as pip installed it, without the zip from which its Python processes would import it.

Python keeps no compiled modules of a zip. So each of the many processes that Spark starts would compile all of them,
which takes longer than what most are started for, and on a busy machine longer than Spark waits for them.
"""

from __future__ import annotations

from pathlib import Path

import pyspark


def without_zip(folder: Path) -> Path:
    """The folder, which becomes a `SPARK_HOME` whose processes import pyspark from where it is installed."""
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "python":
            (folder / entry.name).symlink_to(entry)
    return folder
