"""Spark looks for packages named `pyspark_…` and registers their `DefaultSource`: here is ours."""

from penstock.spark.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
