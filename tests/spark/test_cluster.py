"""Reading and writing on a cluster: Spark standalone, a master and two workers on loopback, from pip's pyspark."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.support.broker_process import QUIET, Served
from tests.support.spark_cluster import Cluster, Process
from tests.support.spark_kills import ROOT

JOB_SECONDS = 240.0  # on a machine that has other things to do
MESSAGES = 2000


@pytest.mark.timeout(360)
def test_a_cluster_reads_and_writes_a_brokers_queues(tmp_path: Path) -> None:
    with Served(tmp_path, *QUIET) as broker, penstock.connect(broker.url("tcp")) as ps:
        queue = ps.create_queue("orders", partitions=4)
        queue.push_many([b"%d" % n for n in range(MESSAGES // 2)])
        ps.seal()
        queue.push_many([b"%d" % n for n in range(MESSAGES // 2, MESSAGES)])
        found = run_job(broker.url("tcp"), tmp_path)
        ends = [row.end_offset for row in queue.groups()["default"]]
        copied, streamed = (ps.queue(name).stats().messages for name in ("copied", "streamed"))

    assert found["workers"] == ["work0", "work1"], "both have read a part of it"
    assert found["total"] == found["table"] == sum(range(MESSAGES))
    assert found["filtered"] == sum(min(end, 10) for end in ends)
    assert copied == sum(-(-end // 2) for end in ends), "the second write was recognised"
    assert streamed == MESSAGES


def run_job(url: str, folder: Path) -> dict[str, Any]:
    """The job in a driver of its own, on a cluster of its own."""
    out = folder / "found.json"
    with Cluster(folder) as cluster:
        command = [sys.executable, "-m", "tests.support.cluster_job", cluster.master, url, str(out)]
        with Process(command, ROOT) as job:
            try:
                job.finish(JOB_SECONDS)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{cluster.said_by_executors()}") from None
    found: dict[str, Any] = json.loads(out.read_text())
    return found
