"""Trace context: what is sound is carried, what is not is left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import limits
from penstock.wire import trace

GOOD = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_sound_traceparent_is_read_and_written_unchanged():
    context = trace.parse(GOOD)

    assert context == trace.TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", 1)
    assert str(context) == GOOD == trace.carried(f" {GOOD} ")
    assert context is not None
    assert context.is_sampled
    assert len(GOOD) == trace.LENGTH <= limits.trace_bytes_max


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "hello",
        GOOD.upper(),
        GOOD[:-1],
        GOOD + "-more",
        "ff" + GOOD[2:],
        GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
        GOOD.replace("00f067aa0ba902b7", "0" * 16),
        GOOD.replace("-", "_"),
    ],
)
def test_what_is_not_sound_is_no_context_and_is_not_carried(text):
    assert trace.parse(text) is None
    assert trace.carried(text) is None


def test_a_later_version_is_read_as_far_as_it_is_understood():
    later = trace.parse("cc" + GOOD[2:] + "-what-comes-then")

    assert later is not None
    assert str(later) == GOOD


def test_a_child_is_of_the_same_trace():
    begun = trace.start(bytes(range(24)))
    child = begun.child(b"\x07" * 8)

    assert trace.parse(str(begun)) == begun
    assert (child.trace_id, child.parent_id, child.is_sampled) == (begun.trace_id, "07" * 8, True)
    assert not trace.start(bytes(24), sampled=False).is_sampled
    assert trace.parse(str(trace.start(bytes(24)))) is not None
    with pytest.raises(ValueError, match="24 bytes"):
        trace.start(b"short")
    with pytest.raises(ValueError, match="8 bytes"):
        begun.child(b"short")


@given(st.text(max_size=80))
def test_no_text_breaks_it(text):
    found = trace.parse(text)

    assert found is None or trace.parse(str(found)) == found
