"""A Spark session with the settings that Penstock wants, and the source registered in any other session.

Whoever has a session already calls `register(spark)`; nothing else is needed. `session()` is for those who have none:
it checks for Java first, has Python workers run this same Python, keeps to this machine's loopback when Spark is
local, and counts time in UTC.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.java import require_pyspark, require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK: Final = "127.0.0.1"

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    # Batches of our readers pass through a socket: this kind takes half the time.
    "spark.python.unix.domain.socket.enabled": "true",
    # Not the 96-bit kind, which other readers of Parquet refuse.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
_LOCAL_SETTINGS: Final = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    # Java's Arrow checks the bounds of each value that it reads, a tenth of a scan; Spark never reads outside of them.
    "spark.driver.defaultJavaOptions": "-Darrow.enable_unsafe_memory_access=true",
}
_LOCAL_CORES: Final = re.compile(r"local\[(\d+)")


def session(app: str = "penstock", master: str = "local[*]", **conf: Any) -> SparkSession:
    """A session with the `penstock` source; `conf` is any of Spark's settings, `**{"spark.driver.memory": "2g"}`.

    `master` is a Spark master, or `sc://host:port` for a server of Spark Connect, which has its own Java.
    """
    is_remote = master.startswith("sc://")
    require_pyspark() if is_remote else require_spark()
    from pyspark.sql import SparkSession

    # Otherwise workers run whatever `python3` is first in PATH, which may lack everything.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    builder = SparkSession.builder.appName(app)
    builder = builder.remote(master) if is_remote else builder.master(master)
    for name, value in {**settings(master), **conf}.items():
        builder = builder.config(name, value)
    return register(builder.getOrCreate())


def register(spark: SparkSession) -> SparkSession:
    """Make `format("penstock")` known in a session, planned as `table()` is where it can be."""
    from penstock.spark import reads
    from penstock.spark.source import PenstockSource

    _show_archive(spark)
    spark.dataSource.register(PenstockSource)
    reads.plan_ahead()
    return spark


def _show_archive(spark: SparkSession) -> None:
    """Where Penstock was shipped as an archive, say so to the processes in which Spark plans streams.

    Spark tells those that read and write, and leaves these to look in PYTHONPATH.
    """
    archive = next((str(path) for path in Path(__file__).parents if path.is_file()), None)
    context = getattr(spark, "sparkContext", None)  # Spark Connect has none
    if archive is not None and context is not None:
        known = context.environment.get("PYTHONPATH", "").split(os.pathsep)
        if archive not in known:
            context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, (*known, archive)))


def settings(master: str) -> dict[str, str]:
    """What a session of ours is started with; a server of Spark Connect takes only what can be set while it runs."""
    found = {**_SETTINGS, "spark.sql.shuffle.partitions": str(2 * cores(master))}
    if master.startswith("sc://"):
        return {name: value for name, value in found.items() if name.startswith("spark.sql.")}
    return {**found, **_LOCAL_SETTINGS} if master.startswith("local") else found


def cores(master: str) -> int:
    """How many tasks will run at once, as far as the master's name tells."""
    named = _LOCAL_CORES.match(master)
    if master == "local":
        return 1
    return int(named[1]) if named else os.cpu_count() or 1
