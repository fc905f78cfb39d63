"""A Spark session with the settings that Penstock wants, and the source registered in any other session.

`register(spark)` is enough for a session that exists already. `session()` starts one: it checks for PySpark and Java
first, has Python workers run this same Python, keeps to the loopback of this machine when Spark is local, and counts
time in UTC.

Registering also wraps `load` of Spark's reader. Spark does not tell a source written in Python which columns a query
needs, and keeps the filters that it does tell for the next query of the same DataFrame, which is wrong. Its own Parquet
reader knows both. So reads that the files alone can answer are handed to `tables.frame`, all others to Spark as before.
Streams, Spark Connect and tables of SQL are not touched.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import SparkMissing
from penstock.spark.failures import is_worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameReader


JAVA_VERSION_MIN: Final = 17
INSTALL_PYSPARK: Final = "pip install 'penstock-mq[spark]'"
INSTALL_JAVA: Final = "apt install openjdk-17-jre-headless"

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_ANSWER_SECONDS: Final = 60.0


def require_spark() -> None:
    """`SparkMissing` when there is no PySpark, or no Java for it."""
    require_pyspark()
    require_java(os.environ)


def require_pyspark() -> None:
    """`SparkMissing` when PySpark is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        raise SparkMissing("PySpark is not installed", hint=f"type: {INSTALL_PYSPARK}")


def require_java(environment: Mapping[str, str]) -> str:
    """The path of the Java that Spark will start: that of JAVA_HOME, or else the first in PATH."""
    java = _find(environment)
    version = _version(java)
    if version < JAVA_VERSION_MIN:
        hint = f"type: {INSTALL_JAVA}, or set JAVA_HOME to a newer one"
        raise SparkMissing(f"Spark needs Java {JAVA_VERSION_MIN} or newer, but {java} is Java {version}", hint=hint)
    return java


def _find(environment: Mapping[str, str]) -> str:
    home = environment.get("JAVA_HOME")
    if home:
        java = os.path.join(home, "bin", "java")
        if not os.access(java, os.X_OK):
            hint = "set JAVA_HOME to where Java is, or unset it"
            raise SparkMissing(f"JAVA_HOME is {home}, where there is no bin/java", hint=hint)
        return java
    in_path = shutil.which("java", path=environment.get("PATH", ""))
    if in_path is None:
        raise SparkMissing("Spark needs Java, which is not installed", hint=f"type: {INSTALL_JAVA}")
    return in_path


def _version(java: str) -> int:
    try:
        reply = subprocess.run(  # noqa: S603 - the Java that Spark would start anyway
            [java, "-version"], capture_output=True, text=True, check=False, timeout=_ANSWER_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SparkMissing(f"{java} does not start: {error}", hint=f"type: {INSTALL_JAVA}") from None
    match = _VERSION.search(reply.stderr + reply.stdout)
    if match is None:
        hint = f"type: {INSTALL_JAVA}, or set JAVA_HOME to a working one"
        raise SparkMissing(f"{java} does not report its version", hint=hint)
    return int(match[1])


SOURCE: Final = "penstock"

# Options that mean the same to both; with any other it is the source that reads.
_SHARED: Final = frozenset(("url", "path", "paths", "queue", "table", "startingtime", "endingtime", "columns"))
_MARK: Final = "_load_by_source"

Load = Callable[..., "DataFrame"]


def plan_ahead() -> None:
    """Wrap `load`, once for all sessions of this process."""
    from pyspark.sql.readwriter import DataFrameReader

    if not hasattr(DataFrameReader, _MARK) and not is_worker():
        setattr(DataFrameReader, _MARK, DataFrameReader.load)
        DataFrameReader.load = _wrapped(DataFrameReader.load)  # type: ignore[method-assign]


def load_by_source(reader: DataFrameReader) -> DataFrame:
    """Load with Spark's own `load`, before it was wrapped."""
    load: Load = getattr(reader, _MARK, reader.load)
    return load()


def _wrapped(load: Load) -> Load:
    @functools.wraps(load)
    def load_planned(self: DataFrameReader, path: Any = None, *args: Any, **options: Any) -> DataFrame:
        shared = None if args else _shared_options(self.options(**_apart(self, options)), path)
        if shared is None:
            return load(self, path, *args)
        from penstock.spark.tables import frame

        return frame(self._spark, shared)

    return load_planned


def _apart(reader: DataFrameReader, options: dict[str, Any]) -> dict[str, Any]:
    """The options among the keywords of `load`; the others are said to the reader."""
    for name in ("format", "schema"):
        value = options.pop(name, None)
        if value is not None:
            getattr(reader, name)(value)
    return options


def _shared_options(reader: DataFrameReader, path: Any) -> dict[str, str] | None:
    """The options of a read that the files can answer; None for any other read."""
    java: Any = reader._jreader
    if java.source() != SOURCE or java.userSpecifiedSchema().isDefined():
        return None
    options = dict(_pairs(java.extraOptions()))
    if path is not None:
        options["path"] = path if isinstance(path, str) else ",".join(path)
    return options if _SHARED.issuperset(name.lower() for name in options) else None


def _pairs(options: Any) -> Iterator[tuple[str, str]]:
    pairs = options.originalMap().iterator()
    while pairs.hasNext():
        pair = pairs.next()
        yield pair._1(), pair._2()


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
    """Return a Spark session with the `penstock` source. Raises `SparkMissing` without PySpark or Java.

    `conf` takes any Spark setting: `**{"spark.driver.memory": "2g"}`. `master` is a Spark master, or `sc://host:port`
    for a Spark Connect server, which has its own Java.
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
    """Register `format("penstock")` in a Spark session."""
    from penstock.spark.source import PenstockSource

    _show_archive(spark)
    spark.dataSource.register(PenstockSource)
    plan_ahead()
    return spark


def _show_archive(spark: SparkSession) -> None:
    """If Penstock was shipped as an archive, add it to the PYTHONPATH of the processes in which Spark plans streams.

    Spark tells those that read and write, and leaves these to look in PYTHONPATH.
    """
    archive = next((str(path) for path in Path(__file__).parents if path.is_file()), None)
    context = getattr(spark, "sparkContext", None)  # Spark Connect has none
    if archive is not None and context is not None:
        known = context.environment.get("PYTHONPATH", "").split(os.pathsep)
        if archive not in known:
            context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, (*known, archive)))


def settings(master: str) -> dict[str, str]:
    """Settings of `session()`; a server of Spark Connect takes only those that can be set while it runs."""
    chosen = {**_SETTINGS, "spark.sql.shuffle.partitions": str(2 * cores(master))}
    if master.startswith("sc://"):
        return {name: value for name, value in chosen.items() if name.startswith("spark.sql.")}
    return {**chosen, **_LOCAL_SETTINGS} if master.startswith("local") else chosen


def cores(master: str) -> int:
    """How many tasks will run at once, as far as the master's name tells."""
    named = _LOCAL_CORES.match(master)
    if master == "local":
        return 1
    return int(named[1]) if named else os.cpu_count() or 1
