"""The data source `penstock`: each request of Spark, passed on to the module that serves it.

Spark pickles an instance of this class between its processes, so it holds the options as they were given and nothing
else; readers and writers parse them where they are used, and are imported there too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from penstock.spark.failures import shown_plainly

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class PenstockSource(DataSource):
    """`spark.read.format("penstock").option("url", …).load("orders")`; docs/spark.md has every option."""

    options: dict[str, str]

    @classmethod
    def name(cls) -> str:
        return "penstock"

    @shown_plainly
    def schema(self) -> str:
        from penstock.spark.schema import described

        return described(self.options)

    @shown_plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock.spark import batch_reader
        from penstock.spark.schema import remembered

        # Spark has lost the options of a table of SQL; its schema remembers them.
        return batch_reader.reader(self.options or remembered(schema), schema)

    @shown_plainly
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from penstock.spark import stream_reader

        return stream_reader.stream_reader(self.options, schema)

    @shown_plainly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark import writer

        return writer.batch_writer(self.options, schema, overwrite)

    @shown_plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        from penstock.spark import writer

        return writer.stream_writer(self.options, schema, overwrite)
