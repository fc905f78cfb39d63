"""Tasks of Spark on machines where a url means something else than on the driver."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

import penstock
from penstock.errors import NotADataDirectory, Unavailable
from penstock.spark.batch_reader import reader
from penstock.spark.location import open_planned
from penstock.spark.stream_reader import stream_reader
from penstock.spark.writer import batch_writer

OFFSETS = StructType([StructField("offset", LongType())])
PAYLOADS = StructType([StructField("payload", BinaryType())])


def made(folder: Path) -> Path:
    with penstock.open(folder) as ps:
        ps.create_queue("orders").push(b"1")
    return folder


def swap(first: Path, second: Path) -> None:
    """What is at the one path is now at the other: as if the second were a machine of its own."""
    between = first.with_name("between")
    first.rename(between)
    second.rename(first)
    between.rename(second)


def test_a_batch_read_says_on_which_machine_the_directory_is_missing(tmp_path: Path) -> None:
    data = made(tmp_path / "data")
    reading = reader({"url": str(data), "path": "orders"}, OFFSETS)
    (lot,) = reading.partitions()
    data.rename(tmp_path / "elsewhere")

    with pytest.raises(
        NotADataDirectory, match=r"url: .*data cannot be used on .*, where a Spark task runs"
    ) as refused:
        list(reading.read(lot))
    assert "penstock://host:port" in refused.value.hint
    assert "every node" in refused.value.hint


def test_another_directory_of_that_path_is_not_read_in_its_place(tmp_path: Path) -> None:
    data = made(tmp_path / "data")
    reading = reader({"url": str(data), "path": "orders"}, OFFSETS)
    streaming = stream_reader({"url": str(data), "path": "orders"}, OFFSETS)
    (lot,) = reading.partitions()
    start = streaming.initialOffset()
    (streamed,) = streaming.partitions({**start}, streaming.latestOffset(start, streaming.getDefaultReadLimit()))
    swap(data, made(tmp_path / "other"))

    with pytest.raises(NotADataDirectory, match="its data differs"):
        list(reading.read(lot))
    with pytest.raises(NotADataDirectory, match="its data differs"):
        list(streaming.read(streamed))


def test_nothing_is_staged_where_the_directory_is_missing(tmp_path: Path) -> None:
    data = made(tmp_path / "data")
    writing = batch_writer({"url": str(data), "path": "orders"}, PAYLOADS, overwrite=False)
    data.rename(tmp_path / "elsewhere")

    with pytest.raises(NotADataDirectory, match="where a Spark task runs"):
        writing.write(iter([pa.RecordBatch.from_pydict({"payload": [b"2"]})]))
    assert not data.exists()


def test_a_broker_named_by_loopback_is_not_on_every_machine() -> None:
    with pytest.raises(Unavailable, match="where a Spark task runs") as refused:
        open_planned("penstock://127.0.0.1:1", connect_seconds=0.1)
    assert "not localhost" in refused.value.hint
