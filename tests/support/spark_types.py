"""Spark's types without a Spark: its own parser of schemas needs a running one."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

PAIR: Final = StructType([StructField("key", StringType()), StructField("value", StringType())])
TYPES: Final[dict[str, DataType]] = {
    "string": StringType(),
    "binary": BinaryType(),
    "smallint": ShortType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "timestamp": TimestampType(),
    "map<string,string>": MapType(StringType(), StringType()),
    "array<struct<key:string,value:string>>": ArrayType(PAIR),
}


def struct(columns: dict[str, str | DataType]) -> StructType:
    """A schema of columns by name; types are Spark's, or the names that it gives them."""
    fields = [StructField(name, kind if isinstance(kind, DataType) else TYPES[kind]) for name, kind in columns.items()]
    return StructType(fields)
