"""The limits of a message, over whole columns. Every refusal names the first offending item and its field.

The same functions stand behind a producer's list, a producer's table and a batch that arrives as bytes.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock import limits
from penstock.batch import layout
from penstock.errors import InputError, InvalidField, TooLarge
from penstock.model import ContentType

TEXT_BYTES_MAX: Final = {
    layout.KEY: limits.key_bytes_max,
    layout.DEDUP_KEY: limits.dedup_key_bytes_max,
    layout.TRACE: limits.trace_bytes_max,
}
DELAY_US_MAX: Final = limits.delay_seconds_max * 1_000_000
FIXED_MAX: Final = {
    layout.DELAY: DELAY_US_MAX,
    layout.DELIVER_AT: limits.instant_us_max,
    layout.TTL: DELAY_US_MAX,
    layout.CONTENT_TYPE: max(ContentType),
}
_SMALLER_BATCHES: Final = "push in smaller batches"

ErrorT = TypeVar("ErrorT", bound=InputError)


def located(error: ErrorT, row: int) -> ErrorT:
    """The same error, naming the item."""
    return type(error)(f"item {row}: {error.message}", hint=error.hint)


def too_long(field: str, length: int, limit: int) -> TooLarge:
    """The refusal of a value that is too long."""
    return TooLarge(f"{field}: {length:,} bytes is over the limit of {limit:,}")


def check_count(count: int) -> None:
    """A batch has room for so many messages."""
    if count > limits.batch_messages_max:
        message = f"batch: {count:,} messages is over the limit of {limits.batch_messages_max:,}"
        raise TooLarge(message, hint=_SMALLER_BATCHES)


def check_batch_bytes(length: int) -> None:
    """`length` is that of the whole batch before compression."""
    if length > limits.batch_bytes_max:
        raise TooLarge(
            f"batch: {length:,} bytes is over the limit of {limits.batch_bytes_max:,}", hint=_SMALLER_BATCHES
        )


def check_lengths(lengths: NDArray[np.integer[Any]], field: str, limit: int) -> None:
    """No value of a column is over its limit."""
    if len(lengths) and lengths.max() > limit:
        row = int(np.argmax(lengths > limit))
        raise located(too_long(field, int(lengths[row]), limit), row)


def check_range(values: NDArray[np.integer[Any]], field: str, greatest: int, least: int = 0) -> None:
    """All values lie between `least` and `greatest`, both included."""
    if len(values) and not (values.min() >= least and values.max() <= greatest):
        row = int(np.argmax((values < least) | (values > greatest)))
        refuse(row, f"{field}: {int(values[row])} is outside {least} to {greatest}")


def refuse(row: int, reason: str) -> NoReturn:
    """Raise the refusal of one item."""
    raise InvalidField(f"item {row}: {reason}")
