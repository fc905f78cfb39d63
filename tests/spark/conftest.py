"""One Spark for all tests here: starting it takes longer than any of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

import penstock.spark
from tests.support.s3 import CREDENTIALS
from tests.support.s3_fixtures import credentials, s3, server

__all__ = ["credentials", "s3", "server"]


def without_zip(folder: Path) -> Path:
    """The folder, which becomes a `SPARK_HOME` whose processes import pyspark from where it is installed.

    Python keeps no compiled modules of the zip that Spark comes with: each of its many processes would compile all of
    them, which on a busy machine takes longer than Spark waits.
    """
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "python":
            (folder / entry.name).symlink_to(entry)
    return folder


# Tiny data on few cores: more would only be heat.
CONF = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    # Nothing here runs long enough to be worth Java's better compiler: without it, half the work.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(without_zip(tmp_path_factory.mktemp("spark"))))
        for (
            name,
            value,
        ) in CREDENTIALS.items():  # before Spark starts: its processes inherit them
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def spark(home: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    warehouse = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    session = penstock.spark.session("penstock tests", "local[2]", **CONF, **warehouse)
    yield session
    session.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            # Spark's own Python warns of things that we cannot mend.
            item.add_marker(pytest.mark.filterwarnings("ignore"))
