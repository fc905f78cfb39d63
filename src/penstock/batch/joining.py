"""Several batches as one, row after row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from penstock import limits
from penstock.batch import fields, layout
from penstock.batch.batch import Batch
from penstock.batch.fields import Field
from penstock.batch.sealing import seal_columns

DEFAULTS: Final = {layout.PRIORITY: limits.priority_default}  # of all others it is 0


def join(batches: Sequence[Batch]) -> Batch:
    """A batch of its own with the rows of all of them, never compressed. None of them names partitions."""
    if len(batches) == 1:
        return batches[0]
    flags = 0
    for batch in batches:
        flags |= batch.flags
    columns = [_column(batches, flag) for flag in layout.NAMES if flags & flag]
    payloads = fields.binary([payload for batch in batches for payload in _payloads(batch)], "payload")
    buffers = [buffer for _, column in columns for buffer in column]
    return Batch(seal_columns(sum(flag for flag, _ in columns), buffers, payloads))


def _column(batches: Sequence[Batch], flag: int) -> Field:
    if flag in layout.FIXED:
        default = DEFAULTS.get(flag, 0)
        numbers: list[Any] = [
            [default] * batch.count if (column := batch.fixed(flag)) is None else column for batch in batches
        ]
        return fields.fixed(flag, np.concatenate(numbers))
    if flag == layout.HEADERS:
        return fields.headers([batch.headers(row) for batch in batches for row in range(batch.count)])
    texts = [_texts(batch, flag) for batch in batches]
    return fields.texts(flag, [text for some in texts for text in some])


def _texts(batch: Batch, flag: int) -> list[str | None]:
    column = batch.text(flag)
    if column is None:
        return [None] * batch.count
    return [column.get(0)] if batch.count == 1 else column.to_list()


def _payloads(batch: Batch) -> list[bytes]:
    return [batch.payload(0)] if batch.count == 1 else batch.payloads()
