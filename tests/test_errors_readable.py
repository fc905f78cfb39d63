"""Errors repeat what was sent: shortened, and without anything that a terminal would obey."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
import penstock.spark
from penstock.errors import DirectoryInUse, InvalidField, LeaseLost, TaskDied
from penstock.refusals import suggestion
from penstock.wire import json_models as models
from penstock.wire.json_messages import read_push
from penstock.wire.json_reader import Reader
from tests.support.step_counts import StepLimit

HUGE = 2 << 20


@pytest.mark.parametrize("value", ["x" * HUGE, "x y " * HUGE, "'" * HUGE, '"\\' * HUGE, "\x1b[2J" * HUGE])
def test_values_that_errors_repeat_are_short(value):
    for message in (f"name: {value!r} is not a name", f"{value}: there is no such field", value):
        for kind in (InvalidField, LeaseLost):
            assert len(kind(message).message) < 3000
    assert len(InvalidField(f"name: {('x' * HUGE)!r} is not a name").message) < 300


def test_words_around_a_long_value_stay():
    refused = InvalidField(f"queue: {'x' * 5000!r} is not a valid name")

    assert refused.message == f"queue: '{'x' * 100}…' is not a valid name"
    assert InvalidField("words " * 60).message == "words " * 60
    assert TaskDied("x" * 5000).message == "x" * 5000  # what a task said is the caller's own


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_in_a_message(text):
    message = InvalidField(f"{text}: there is no such field").message

    assert all(letter.isprintable() or letter in "\t\n" for letter in message)


@pytest.mark.parametrize(
    "body",
    [
        b'{"%b":1}' % (b"a" * HUGE),
        b'{"%b_seconds":1}' % (b"a" * HUGE),
        b'{"messages":[{"%b":1}]}' % (b"a" * HUGE),
        b'{"messages":[{"payload":1,"%b":1}]}' % (b"a b` - at `$.x`" * HUGE),
        b'{"messages":[{"payload":1,"content_type":"%b"}]}' % (b"a" * HUGE),
    ],
)
def test_a_field_of_any_length_that_is_unknown_costs_and_repeats_little(body):
    with pytest.raises(InvalidField) as refused:
        read_push(body)

    assert len(refused.value.message) + len(refused.value.hint) < 1500


def test_suggestions_are_for_names_that_somebody_may_have_misspelt():
    assert suggestion("leas_seconds", ("lease_seconds",)) == "did you mean 'lease_seconds'?"
    assert suggestion("lease_seconds" + "x" * 60, ("lease_seconds",)) == "known: lease_seconds"


def test_comparing_names_takes_few_steps_however_long_they_are():
    reader = Reader(models.Lease)
    limit = StepLimit(500)
    limit.start()
    try:
        with pytest.raises(InvalidField):
            reader.read(b'{"%b":1}' % (b"a" * 100_000))
    finally:
        limit.stop()


def test_a_misspelt_name_of_the_module_is_suggested():
    with pytest.raises(AttributeError, match=r"module 'penstock' has no attribute 'opne'; did you mean 'open'\?"):
        _ = penstock.opne
    with pytest.raises(AttributeError, match=r"has no attribute 'zzz'$"):
        _ = penstock.zzz
    with pytest.raises(AttributeError, match=r"'penstock.spark' has no attribute 'tabel'; did you mean 'table'\?"):
        _ = penstock.spark.tabel


def test_a_directory_that_this_process_has_open_is_not_to_be_stopped(tmp_path):
    with penstock.open(tmp_path), pytest.raises(DirectoryInUse, match="which is this one") as refused:
        penstock.open(tmp_path)

    assert refused.value.hint == "close the other handle first, or share it: it is safe for threads"


@pytest.mark.parametrize("wrong", ["5", 0, True, 1.5])
def test_a_number_of_messages_of_the_wrong_type_is_refused_by_its_type(wrong):
    with penstock.open_in_memory() as ps:
        ps.queue("mail").push("x")
        with pytest.raises(InvalidField, match="is not a whole number from 1 to 100,000"):
            ps.queue("mail").lease(wrong)
