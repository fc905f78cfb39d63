"""Streaming readers as Spark drives them: offsets through a checkpoint, planned lots through a pickle."""

from __future__ import annotations

import json
import pickle

from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

import penstock

SCHEMA = StructType(
    [
        StructField("queue", StringType()),
        StructField("partition", StringType()),
        StructField("offset", LongType()),
        StructField("payload", BinaryType()),
    ]
)
ALL = ReadAllAvailable()


def as_spark(offset):
    """An offset on its way through a checkpoint."""
    return json.loads(json.dumps(offset))


def batch(reader, start, limit=ALL):
    """One micro-batch: its end, and its payloads in order of partition and offset."""
    end = as_spark(reader.latestOffset(start, limit))
    return end, rows(reader, start, end)


def rows(reader, start, end):
    there = pickle.loads(pickle.dumps(reader))  # a task has a copy
    found = []
    for lot in pickle.loads(pickle.dumps(reader.partitions(start, end))):
        for part in there.read(lot):
            found += [(row["queue"], row["partition"], row["offset"], row["payload"]) for row in part.to_pylist()]
    return [payload for *_, payload in sorted(found)]


def push(ps, *payloads, queue="mail", partition=None):
    ps.queue(queue).push_many([penstock.Message(payload=each, partition=partition) for each in payloads])


def lag(ps, group, queue="mail"):
    return sum(each.lag for each in ps.queue(queue).groups()[group])
