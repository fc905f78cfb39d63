"""W3C trace context: the `traceparent` that a producer hands over and its consumer finds in the message's `trace`.

    00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
    version, trace id (16 bytes), parent id (8 bytes), flags; lower-case hexadecimal

A broker carries it and never alters it. One that is not sound is not an error of the request: it is left out, as the
standard asks. The bytes for new ids are an argument: nothing here draws any.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

SAMPLED: Final = 1
VERSION: Final = "00"
LENGTH: Final = 55
TRACE_ID_BYTES: Final = 16
PARENT_ID_BYTES: Final = 8

_SHAPE: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]*)?")


class TraceContext(NamedTuple):
    """A place in a trace."""

    trace_id: str
    parent_id: str
    flags: int = 0

    @property
    def is_sampled(self) -> bool:
        return bool(self.flags & SAMPLED)

    def __str__(self) -> str:
        return f"{VERSION}-{self.trace_id}-{self.parent_id}-{self.flags:02x}"

    def child(self, parent_id: bytes) -> TraceContext:
        """The next step of the same trace; `parent_id` is eight fresh bytes that name it."""
        return self._replace(parent_id=_id(parent_id, PARENT_ID_BYTES))


def parse(text: str | None) -> TraceContext | None:
    """The context that a `traceparent` stands for; None when there is none or it is not sound."""
    found = _SHAPE.fullmatch(text.strip()) if text else None
    if found is None:
        return None
    version, trace_id, parent_id, flags, more = found.groups()
    # Version ff is forbidden, and only later versions than ours may carry more; ids of zeros stand for none.
    if version == "ff" or (version == VERSION and more) or not (trace_id.strip("0") and parent_id.strip("0")):
        return None
    return TraceContext(trace_id, parent_id, int(flags, 16) & SAMPLED)


def carried(text: str | None) -> str | None:
    """What goes into a message: the `traceparent` as it was given, when it is sound."""
    return text.strip() if text and len(text.strip()) == LENGTH and parse(text) is not None else None


def start(fresh: bytes, *, sampled: bool = True) -> TraceContext:
    """A new trace, out of 24 fresh bytes."""
    if len(fresh) != TRACE_ID_BYTES + PARENT_ID_BYTES:
        raise ValueError(f"a trace begins with 24 bytes, not {len(fresh)}")
    trace_id, parent_id = fresh[:TRACE_ID_BYTES], fresh[TRACE_ID_BYTES:]
    return TraceContext(_id(trace_id, TRACE_ID_BYTES), _id(parent_id, PARENT_ID_BYTES), SAMPLED if sampled else 0)


def _id(fresh: bytes, length: int) -> str:
    if len(fresh) != length:
        raise ValueError(f"an id of {length} bytes cannot be made of {len(fresh)}")
    # Zeros stand for no id; that they are drawn by chance is not to be expected, but it is legal.
    return fresh.hex() if any(fresh) else "1".zfill(2 * length)
