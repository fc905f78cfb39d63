"""Batches of the history in the shape that a read wants: its columns, and exactly the types of its schema.

Spark compares the schema of a batch with its own and refuses anything else, were it only wider.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.spark.json_payload import Parser, texts
from penstock.spark.schema import CORRUPT, Layout

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class Shaper:
    """Turns batches of `needed` columns into batches of a schema."""

    def __init__(self, shape: Layout, schema: StructType) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._shape = shape
        self._parser = self._json_parser()
        stored = ("payload" if name == CORRUPT else name for name in shape.names)
        self.needed = list(dict.fromkeys(stored))

    def shaped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = {name: batch.column(name) for name in self.needed}
        if self._parser is not None:
            columns["payload"], columns[CORRUPT] = self._parser.parse(columns["payload"])
        elif "payload" in columns and self._shape.payload == "string":
            columns["payload"] = texts(columns["payload"])
        arrays = [_typed(columns[field.name], field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _json_parser(self) -> Parser | None:
        names = self._shape.names
        if self._shape.table != "messages" or self._shape.payload != "json":
            return None
        if "payload" in names:
            return Parser(self._schema.field("payload").type)
        # Without the payload there is still the question whether it is JSON at all.
        return Parser(pa.struct([])) if CORRUPT in names else None


def _typed(array: Any, kind: pa.DataType) -> Any:
    """As this type. A map is stored as a list of pairs, and becomes one without being touched."""
    return array if array.type.equals(kind) else array.cast(kind)
