"""The columnar batch: its bytes, how it is built, checked, read, and turned to and from Arrow."""

from penstock.batch.batch import Batch, join
from penstock.batch.layout import CONTENT_TYPE, HEADERS, KEY, PRIORITY, TRACE, TTL
from penstock.batch.small import (
    Alike,
    alike_of,
    encode_one,
    encode_one_task,
    encode_one_with,
    encode_plain,
    one_with_ttl,
    typed_one,
)

__all__ = [
    "CONTENT_TYPE",
    "HEADERS",
    "KEY",
    "PRIORITY",
    "TRACE",
    "TTL",
    "Alike",
    "Batch",
    "alike_of",
    "encode_one",
    "encode_one_task",
    "encode_one_with",
    "encode_plain",
    "join",
    "one_with_ttl",
    "typed_one",
]
