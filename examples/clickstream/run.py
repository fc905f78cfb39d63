"""A clickstream from end to end, in one command:

    python -m examples.clickstream.run [--out ./clickstream] [--clicks 20000]

Producers push clicks to a broker and a service consumes them; Spark counts them by page and minute into another queue,
archives them, proves that the archive is the log, groups what the service refused, and draws a report.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock
import penstock.spark
from examples.clickstream.clicks import produce_and_consume, windows
from penstock.spark.pipelines.base import Report, Run
from penstock.spark.pipelines.runner import execute, find

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
PRODUCERS = 4


@contextmanager
def broker(data: Path) -> Iterator[str]:
    """`penstock serve` on free ports; its url."""
    command = [sys.executable, "-m", "penstock", "serve", "--json", "--data", str(data), "--log-level", "warning"]
    ports = ["--tcp-port", "0", "--http-port", "off", "--grpc-port", "off"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    process = subprocess.Popen(  # noqa: S603 - our own command
        [*command, *ports], env=clean, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["addresses"]["tcp"]["url"]
    finally:
        process.terminate()
        process.wait(60)


class Story:
    """Runs pipelines on one broker, each in a directory of its own, and tells what came of them."""

    def __init__(self, spark: SparkSession, url: str, out: Path) -> None:
        self._spark, self._url, self._out = spark, url, out

    def run(self, name: str, *queues: str, **options: Any) -> Report:
        pipeline = find(name)
        out = self._out / name
        chosen = pipeline.options(**options)
        report = execute(pipeline, Run(self._spark, self._url, queues, options=chosen, out=out))
        say(f"{name}: {report.summary}")
        return report


def say(text: str) -> None:
    """One line of the story."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def clickstream(spark: SparkSession, url: str, out: Path, count: int) -> dict[str, Any]:
    """Everything between an empty broker and the report; the figures of it."""
    with penstock.connect(url) as ps:
        ps.create_queue("clicks", partitions=4, retention_until_archived=True)
    counts: dict[str, Any] = produce_and_consume(url, PRODUCERS, count // PRODUCERS)
    say("{pushed:,} clicks pushed; the service learnt from {learnt:,} and refused {refused:,}".format(**counts))
    story = Story(spark, url, out)
    story.run("window", spec=str(HERE / "window.toml"), available_now=True)
    counts["windows"] = windows(url)
    story.run("archive", "clicks", verify=True)
    story.run("dlq-triage", "clicks")
    report = story.run("rollup", "clicks*")
    counts["files"] = list(report.files)
    for file in report.files:
        if file.endswith(".html"):
            say(f"the report: {file}")
    return counts


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it all."""
    parser = argparse.ArgumentParser(description="A clickstream from end to end.")
    parser.add_argument("--out", type=Path, default=Path("clickstream"), help="where everything goes; made anew")
    parser.add_argument("--clicks", type=int, default=20_000, help="how many")
    given = parser.parse_args(arguments)
    shutil.rmtree(given.out, ignore_errors=True)
    given.out.mkdir(parents=True)
    say("starting a broker and Spark; that takes some seconds")
    spark = penstock.spark.session("clickstream", "local[2]")
    with broker(given.out / "data") as url:
        clickstream(spark, url, given.out, given.clicks)
    spark.stop()


if __name__ == "__main__":
    main()
