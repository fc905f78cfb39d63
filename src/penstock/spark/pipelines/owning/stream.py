"""A pipeline of your own, as a stream: micro-batches as messages come, each exactly once.

Spark's checkpoint holds the offsets, and the sink knows the last micro-batch it took, so a stream that was stopped or
killed goes on where it was.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.pipelines.base import Report, Run
from penstock.spark.writing import stream_to
from penstock.units import plural

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader

    from penstock.spark.pipelines.own import OwnOptions, OwnPipeline

LOOK_SECONDS: Final = 1
_NOT_IN_NAMES: Final = re.compile(r"[^\w.-]+", re.ASCII)


def run_stream(own: OwnPipeline, run: Run) -> Report:
    """Run until nothing is left, if told so, or until Ctrl-C."""
    options: OwnOptions = run.options
    checkpoint = Path(options.checkpoint or run.out / "checkpoint").absolute()
    frame = own.applied(_reader(own, run).load(",".join(own.between.sources)))
    writer = stream_to(frame, run.url, own.between.sink, checkpoint=checkpoint, mode=own.between.output_mode)
    writer = writer.queryName(own.name)
    if options.available_now:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(options.trigger_seconds * 1000)} milliseconds")
    query = writer.start()
    counted = Counted()
    try:
        while not query.awaitTermination(LOOK_SECONDS):
            counted.look(query)
            run.progress.step(counted.shown(own))
    except KeyboardInterrupt:
        # How a stream ends.
        pass
    finally:
        counted.look(query)
        query.stop()
    return Report(
        summary=f"{counted.shown(own)}, in {plural(len(counted.rows), 'micro-batch', 'micro-batches')}",
        figures={"messages": counted.messages, "batches": len(counted.rows)},
        notes=[f"it goes on from {checkpoint} when it is run again"],
    )


class Counted:
    """How many messages a query has taken, by micro-batch."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}

    @property
    def messages(self) -> int:
        """All of them."""
        return sum(self.rows.values())

    def look(self, query: StreamingQuery) -> None:
        """Learn from what the query says of its last micro-batches."""
        for each in query.recentProgress:
            progress: Any = each
            if progress["numInputRows"]:
                self.rows[progress["batchId"]] = progress["numInputRows"]

    def shown(self, own: OwnPipeline) -> str:
        """One line for people."""
        return f"{plural(self.messages, 'message')} of {', '.join(own.between.sources)} to {own.between.sink}"


def _reader(own: OwnPipeline, run: Run) -> DataStreamReader:
    options: OwnOptions = run.options
    reader = run.spark.readStream.format("penstock").options(**own.between.reading(run.url))
    reader = reader.option("group", _NOT_IN_NAMES.sub(".", own.name).strip("."))
    if run.since is not None:
        reader = reader.option("startingTime", run.since.isoformat())
    if options.messages_max is not None:
        reader = reader.option("maxMessagesPerTrigger", str(options.messages_max))
    if not options.fail_on_data_loss:
        reader = reader.option("failOnDataLoss", "false")
    return reader
