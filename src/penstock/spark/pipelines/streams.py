"""Streaming queries of pipelines: read from queues, written to another queue, followed until they end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.spark.failures import cause
from penstock.spark.pipelines.base import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader

PROGRESS_SECONDS: Final = 1  # between two looks at the progress of a query


def stream_reader(run: Run, group: str) -> DataStreamReader:
    """A reader of queues whose progress is shown as a consumer group; `messages_max` is an option of the run."""
    reader = run.spark.readStream.format("penstock").option("url", run.url).option("group", group)
    if run.since is not None:
        reader = reader.option("startingTime", run.since.isoformat())
    if run.options.messages_max is not None:
        reader = reader.option("maxMessagesPerTrigger", str(run.options.messages_max))
    return reader


def start_stream(run: Run, frame: DataFrame, sink: str, *, name: str, mode: str, checkpoint: Path) -> StreamingQuery:
    """Start writing a frame to a queue; `available_now` and `trigger_seconds` are options of the run."""
    from penstock.spark import stream_to

    writer = stream_to(frame, run.url, sink, checkpoint=checkpoint, mode=mode).queryName(name)
    if run.options.available_now:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(run.options.trigger_seconds * 1000)} milliseconds").start()


def follow(
    run: Run, query: StreamingQuery, on_batch: Callable[[Mapping[str, Any]], None], shown: Callable[[], str]
) -> None:
    """Wait until a query ends, or for Ctrl-C. `on_batch` gets Spark's progress of each micro-batch, maybe twice."""
    from pyspark.errors import StreamingQueryException

    def look() -> None:
        for progress in query.recentProgress:
            on_batch(msgspec.json.decode(progress.json))

    try:
        while not query.awaitTermination(PROGRESS_SECONDS):
            look()
            run.progress.step(shown())
    except KeyboardInterrupt:
        pass  # the usual end of a stream
    except StreamingQueryException as error:
        raise cause(error) or error from None
    finally:
        look()
        query.stop()
