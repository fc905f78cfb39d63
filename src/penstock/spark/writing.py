"""Streams to a queue in any output mode, each batch once.

Spark hands a sink that is written in Python only what the mode `append` gives. For the others each batch is written by
itself, under the query's id and the batch's number, which comes to the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import InvalidField

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def stream_to(
    frame: DataFrame, url: str, queue: str, *, checkpoint: Path | str, mode: str = "append", sink_id: str | None = None
) -> DataStreamWriter:
    """A writer of `frame` to a queue, to be given a trigger and started."""
    writer = frame.writeStream.outputMode(mode).option("checkpointLocation", str(checkpoint))
    if mode != "append":
        return writer.foreachBatch(each_batch(url, queue, sink_id=sink_id, checkpoint=checkpoint))
    if sink_id is not None:
        writer = writer.option("sinkId", sink_id)
    return writer.format("penstock").option("url", url).option("path", queue)


def each_batch(
    url: str, queue: str, *, sink_id: str | None = None, checkpoint: Path | str | None = None
) -> Callable[[DataFrame, int], None]:
    """For `foreachBatch`: writes every batch once, known by the query's checkpoint or by a name of its own."""
    if sink_id is None and checkpoint is None:
        raise InvalidField("sink_id: it is not given", hint="name the sink, or give the query's checkpoint")
    options = {"url": url}
    if sink_id is not None:
        options["sinkId"] = sink_id
    if checkpoint is not None:
        options["checkpointLocation"] = str(checkpoint)

    def write(frame: DataFrame, batch: int) -> None:
        frame.write.format("penstock").options(**options, batchId=str(batch)).mode("append").save(queue)

    return write
