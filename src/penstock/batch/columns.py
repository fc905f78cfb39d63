"""Columns whose values vary in length, as views over bytes that belong to someone else.

Offsets need not begin at 0: a slice of an Arrow array keeps its parent's. Nothing here checks anything.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.batch.layout import OFFSET, PADS, Buffer, bitmap_bytes, offsets_bytes, padded

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]

MANY: Final = 64  # rows from which on a whole column is cheaper than one value at a time


class Binary:
    """Value i is `buffer[base + offsets[i] : base + offsets[i + 1]]`."""

    __slots__ = ("base", "buffer", "offsets")

    def __init__(self, offsets: Int32s, buffer: Buffer, base: int = 0) -> None:
        self.offsets = offsets
        self.buffer = buffer
        self.base = base

    @classmethod
    def at(cls, data: Buffer, position: int, count: int) -> Binary:
        """The column of `count` values that begins at `position`."""
        offsets = np.frombuffer(data, OFFSET, count + 1, position)
        return cls(offsets, data, position + offsets_bytes(count))

    @classmethod
    def of(cls, array: Any) -> Binary:
        """Over the memory of an Arrow array of binary or string."""
        _, offsets, blob = array.buffers()
        if offsets is None:
            return cls(np.zeros(1, OFFSET), b"")
        bounds = np.frombuffer(offsets, OFFSET, len(array) + 1, 4 * array.offset)
        return cls(bounds, b"" if blob is None else memoryview(blob).cast("B"))

    @property
    def span(self) -> tuple[int, int]:
        """Where the values begin and end in `buffer`."""
        return self.base + int(self.offsets[0]), self.base + int(self.offsets[-1])

    @property
    def blob(self) -> memoryview:
        """All values, end to end."""
        start, end = self.span
        return memoryview(self.buffer)[start:end]

    def lengths(self) -> Int32s:
        return np.diff(self.offsets)

    def get(self, row: int) -> bytes:
        start, end = self.offsets[row : row + 2].tolist()
        return bytes(self.buffer[self.base + start : self.base + end])

    def slices(self, first: int, end: int) -> list[bytes]:
        """The values of rows `first` up to, not including, `end`."""
        offsets, count = self.offsets[first : end + 1], end - first
        if count < MANY:
            return self._sliced(offsets)
        start, stop = int(offsets[0]), int(offsets[-1])
        length = (stop - start) // count
        if length and (offsets[1:] - offsets[:-1] == length).all():
            # All of one length, as they often are: then they are one array, the fastest to turn into objects.
            alike: list[bytes] = np.frombuffer(self.buffer, f"V{length}", count, self.base + start).tolist()
            return alike
        from penstock.batch.views import binary_array, objects

        return objects(binary_array(Binary(offsets, self.buffer, self.base)))

    def _sliced(self, offsets: Int32s) -> list[bytes]:
        bounds = offsets.tolist()
        start = bounds[0]
        # Slicing bytes is much faster than copying out of a view, even after this copy.
        blob = bytes(self.buffer[self.base + start : self.base + bounds[-1]])
        left = 0
        return [blob[left : (left := end - start)] for end in bounds[1:]]

    def pick(self, rows: Int64s) -> list[bytes]:
        """The values of some rows, in their order."""
        if len(rows) >= MANY:
            from penstock.batch.views import objects, picked

            return objects(picked(self, rows))
        buffer = self.buffer
        starts = (self.offsets[rows] + self.base).tolist()
        ends = (self.offsets[rows + 1] + self.base).tolist()
        return [bytes(buffer[start:end]) for start, end in zip(starts, ends, strict=True)]

    def take(self, rows: Int64s) -> Binary:
        """A column of its own with some of the rows."""
        if len(rows) >= MANY:
            from penstock.batch.views import picked

            return Binary.of(picked(self, rows))
        return Binary(offsets_of(self.lengths()[rows]), b"".join(self.pick(rows)))

    def texts(self, first: int, end: int) -> list[str]:
        """The values of rows `first` up to, not including, `end`, as text."""
        return [value.decode() for value in self._sliced(self.offsets[first : end + 1])]

    def rebased(self) -> Int32s:
        """The offsets, beginning at 0."""
        first = self.offsets[0]
        return self.offsets - first if first else self.offsets

    def buffers(self) -> list[Buffer]:
        """As it is stored, padded."""
        return [*pad(self.rebased().astype(OFFSET, copy=False).tobytes()), *pad(self.blob)]


class Text:
    """Strings that may be missing. `validity` is an Arrow bitmap whose first row is bit 0; None: all are present."""

    __slots__ = ("validity", "values")

    def __init__(self, values: Binary, validity: Bytes | None) -> None:
        self.values = values
        self.validity = validity

    @classmethod
    def at(cls, data: Buffer, position: int, count: int) -> Text:
        """The column of `count` values that begins at `position`."""
        validity = np.frombuffer(data, np.uint8, (count + 7) >> 3, position)
        return cls(Binary.at(data, position + bitmap_bytes(count), count), validity)

    @classmethod
    def of(cls, array: Any) -> Text:
        """Over the memory of an Arrow array of string."""
        if not array.null_count:
            return cls(Binary.of(array), None)
        present = array.is_valid().to_numpy(zero_copy_only=False)
        # Arrow lets a null have bytes behind it; ours never do.
        return cls(Binary.of(array.fill_null("")), bitmap(present))

    def __len__(self) -> int:
        return len(self.values.offsets) - 1

    def get(self, row: int) -> str | None:
        if self.validity is not None and not self.validity[row >> 3] >> (row & 7) & 1:
            return None
        return self.values.get(row).decode()

    def present(self) -> Bools:
        if self.validity is None:
            return np.ones(len(self), np.bool_)
        return np.unpackbits(self.validity, count=len(self), bitorder="little").view(np.bool_)

    def to_list(self) -> list[str | None]:
        if len(self) >= MANY:
            from penstock.batch.views import objects, text_array

            return objects(text_array(self.values, self.validity))
        texts, present = self.values.texts(0, len(self)), self.present().tolist()
        return [text if there else None for text, there in zip(texts, present, strict=True)]

    def take(self, rows: Int64s) -> Text:
        return Text(self.values.take(rows), bitmap(self.present()[rows]))

    def buffers(self) -> list[Buffer]:
        """As it is stored, padded."""
        return [*pad(bitmap(self.present()).tobytes()), *self.values.buffers()]


class Headers:
    """Row i has the pairs rows[i] up to, not including, rows[i + 1] of `names` and `values`."""

    __slots__ = ("names", "rows", "values")

    def __init__(self, rows: Int32s, names: Binary, values: Binary) -> None:
        self.rows = rows
        self.names = names
        self.values = values

    @classmethod
    def at(cls, data: Buffer, position: int, count: int) -> Headers:
        """The column of `count` rows that begins at `position`."""
        rows = np.frombuffer(data, OFFSET, count + 1, position)
        names = Binary.at(data, position + offsets_bytes(count), int(rows[-1]))
        values = Binary.at(data, names.base + padded(int(names.offsets[-1])), int(rows[-1]))
        return cls(rows, names, values)

    def get(self, row: int) -> dict[str, str] | None:
        first, end = self.rows[row : row + 2].tolist()
        if first == end:
            return None
        return dict(zip(self.names.texts(first, end), self.values.texts(first, end), strict=True))

    def take(self, rows: Int64s) -> Headers:
        counts = np.diff(self.rows)[rows]
        offsets = offsets_of(counts)
        # Pair j of the new column comes from the first pair of its row plus its place within that row.
        pairs = np.arange(offsets[-1]) + np.repeat(self.rows[rows] - offsets[:-1], counts)
        return Headers(offsets, self.names.take(pairs), self.values.take(pairs))

    def lengths(self) -> Int32s:
        """Bytes of all names and values of each row."""
        names, values = self.names.offsets[self.rows], self.values.offsets[self.rows]
        return np.diff(names) + np.diff(values)

    def buffers(self) -> list[Buffer]:
        """As it is stored, padded."""
        first, end = int(self.rows[0]), int(self.rows[-1])
        names = Binary(self.names.offsets[first : end + 1], self.names.buffer, self.names.base)
        values = Binary(self.values.offsets[first : end + 1], self.values.buffer, self.values.base)
        rows = (self.rows - first).astype(OFFSET, copy=False).tobytes()
        return [*pad(rows), *names.buffers(), *values.buffers()]


def offsets_of(lengths: NDArray[np.integer]) -> Int32s:
    """Offsets of values with these lengths."""
    offsets = np.zeros(len(lengths) + 1, OFFSET)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def bitmap(present: Bools) -> Bytes:
    """One bit per row, the first row lowest, as Arrow has it."""
    return np.packbits(present, bitorder="little")


def pad(buffer: Buffer) -> tuple[Buffer, Buffer]:
    """A buffer and the zeros that follow it."""
    return buffer, PADS[-len(buffer) % 8]
