"""What the measurements share: the session, and a data directory with ten million sealed messages."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

import penstock
from bench.measure import Scale
from bench.workload import lists
from penstock import operations as ops
from penstock.history import open_history
from penstock.spark import session
from tests.support.operations import run_operation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 10_000_000
PARTITIONS = 4
BATCH = 5_000
QUEUE = "orders"


@cache
def spark() -> SparkSession:
    """One session for the whole table, its Python workers started."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    found = session("penstock bench", "local[2]", **{"spark.driver.memory": "4g"})
    atexit.register(found.stop)
    return found


@cache
def sealed(scale: Scale) -> Path:
    """A directory that nobody holds, with everything sealed."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-bench-spark-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    data = directory / "data"
    with penstock.open(data, durability="os") as ps:
        queue = ps.create_queue(QUEUE, partitions=PARTITIONS, retention_seconds=None, retention_bytes=None)
        fill(queue, scale(MESSAGES))
        run_operation(ps._session, ops.Seal())
    return data


def fill(queue: penstock.Queue, count: int) -> None:
    """Push messages of 100 bytes."""
    payloads = [item for items in lists() for item in items]
    batches = [payloads[first : first + BATCH] for first in range(0, len(payloads) - BATCH, BATCH)]
    for batch in islice(cycle(batches), count // BATCH):
        queue.push_many(batch)


def segment_files(data: Path) -> list[str]:
    """The files that the manifest lists, as Spark's own reader is given them."""
    manifest = open_history(data).look().manifest
    return [str(data / file.name) for file in manifest.files.values() if file.table == "messages"]
