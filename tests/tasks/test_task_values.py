"""Arguments and results of tasks: what comes back equal is taken, the rest is refused where it is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, NamedTuple, TypedDict, TypeVar

import msgspec
import numpy as np
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import InvalidField, ResultLost
from penstock.model_tasks import TaskState


class Safe(str):
    """Text that a template engine has marked."""

    __slots__ = ()


class Cat(pydantic.BaseModel):
    lives: int


class Dog(pydantic.BaseModel):
    tricks: list[str]


class Puppy(Dog):
    weeks: int = 0


class Aliased(pydantic.BaseModel):
    name: str = pydantic.Field(alias="Name")
    at: datetime

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def shout(self) -> str:
        return self.name.upper()


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")
    at: datetime
    pair: tuple[int, str]


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr


class Hiding(pydantic.BaseModel):
    shown: int
    hidden: int = pydantic.Field(default=0, exclude=True)


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")


@dataclass
class Line:
    name: str


@dataclass
class Priced(Line):
    cents: int = 0


@dataclass
class Basket:
    lines: list[Line] = field(default_factory=list)


T = TypeVar("T")


@dataclass
class Box(Generic[T]):
    inside: T


@dataclass
class Crate(Box[T]):
    weight: int = 0


class Spot(msgspec.Struct):
    x: int


class Spot3(Spot):
    z: int = 0


class Range(NamedTuple):
    first: int
    last: int


class Flags(TypedDict, total=False):
    loud: bool


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def returned(kind: Any, value: Any) -> Any:
    """A value, from the caller to the task, and back as the task's result."""
    seen = []

    def work(value: Any) -> Any:
        seen.append(value)
        return value

    work.__annotations__ = {"value": kind, "return": kind}
    with penstock.App.in_memory() as app:
        job = app.task(name="work")(work).enqueue(value)
        app.run_pending()
        result = job.result(0)
    assert seen == [result]
    return result


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (str, Safe("<b>")),
        (int, np.int64(-3)),
        (int, np.uint8(255)),
        (float, np.float32(0.5)),
        (float, np.float64(1e300)),
        (bool, np.bool_(True)),
        (Aliased, Aliased(Name="n", at=NOW)),
        (Strict, Strict(at=NOW, pair=(1, "a"))),
        (Cat | Dog, Dog(tricks=["sit"])),
        (Cat | Dog | None, Cat(lives=9)),
        (list[Cat | Dog], [Cat(lives=9), Dog(tricks=[])]),
        (Dog | int, 5),
        (pydantic.AnyUrl, pydantic.AnyUrl("https://example.org/a?b=c")),
        (list[pydantic.AnyUrl], [pydantic.AnyUrl("https://example.org/")]),
        (list[Line], [Line("a")]),
        (Basket, Basket([Line("a")])),
        (Spot | None, Spot(3)),
        (dict[str, Range], {"a": Range(1, 2)}),
        (Flags, {"loud": True}),
        (float, 3),
        (list[float], [1, 2.5]),
    ],
)
def test_a_value_comes_back_equal(kind, value):
    assert returned(kind, value) == value


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (Login, Login(password=pydantic.SecretStr("hunter2")), "password would be lost"),
        (list[Login], [Login(password=pydantic.SecretStr("hunter2"))], "password would be lost"),
        (Hiding, Hiding(shown=1, hidden=2), "hidden would be lost"),
        (Dog, Puppy(tricks=[], weeks=3), "Puppy would come back as Dog"),
        (Cat | Dog, Login(password=pydantic.SecretStr("x")), "password would be lost"),
        (float, np.float32("nan"), "cannot be written"),
        (Any, np.datetime64("2026-01-01", "ns"), "cannot be written"),
        (Any, np.zeros(2), "cannot be written"),
        (Cat | Dog, 5, "'value'"),
        (Open, Open.model_validate({"day": NOW.date()}), "what is in day would be lost"),
        (list[Dog], [Puppy(tricks=[], weeks=3)], r"\[0\]: Puppy would come back as Dog"),
        (dict[str, Dog], {"rex": Puppy(tricks=[])}, r"\['rex'\]: Puppy would come back as Dog"),
        (dict[str, int] | Cat, Cat(lives=9), "Cat would come back as dict"),
        (Cat | dict[str, int], {"lives": 9}, "dict would come back as Cat"),
        (Line, Priced("a", 5), "Priced would come back as Line"),
        (list[Line], [Line("b"), Priced("a")], r"\[1\]: Priced would come back as Line"),
        (Basket, Basket([Priced("a", 5)]), r"\.lines\[0\]: Priced would come back as Line"),
        (Box[int], Crate(1, 2), "Crate would come back as Box"),
        (Annotated[list[Line], {"unhashable": []}], [Priced("a")], r"\[0\]: Priced would come back as Line"),
        (Spot, Spot3(1, 2), "Spot3 would come back as Spot"),
        (Flags, {"loud": True, "bright": True}, r"\['bright'\] would be lost"),
        (Line, {"name": "a", "cents": 5}, r"\['cents'\] would be lost"),
        (pydantic.SecretStr, pydantic.SecretStr("hunter2"), "SecretStr does not survive"),
    ],
)
def test_what_would_not_come_back_equal_is_refused_where_it_is_given(kind, value, says):
    with pytest.raises(InvalidField, match=says):
        returned(kind, value)


@pytest.mark.parametrize(
    ("kind", "value", "back"),
    [
        (Line, {"name": "a"}, Line("a")),
        (list[Line], ({"name": "a"},), [Line("a")]),
        (list[int], (1, 2), [1, 2]),
        (tuple[int, ...], [1, 2], (1, 2)),
        (set[int], [1, 2, 2], {1, 2}),
        (Dog, {"tricks": []}, Dog(tricks=[])),
        (datetime, "2026-01-02T03:04:05Z", NOW),
        (str, NOW, "2026-01-02T03:04:05Z"),
        (Any, (1, {2: NOW}), [1, {"2": "2026-01-02T03:04:05Z"}]),
        (Any, [Line("a"), Cat(lives=9)], [{"name": "a"}, {"lives": 9}]),
        (dict[str, Any], {"cat": Cat(lives=9)}, {"cat": {"lives": 9}}),
    ],
)
@pytest.mark.parametrize("by_name", [False, True])
def test_what_an_annotation_makes_of_plain_values_is_no_loss(kind, value, back, by_name):
    seen = []

    def work(value: Any) -> None:
        seen.append(value)

    work.__annotations__ = {"value": kind}
    with penstock.App.in_memory() as app:
        task = app.task(name="work")(work)
        _ = task.enqueue(value=value) if by_name else task.enqueue(value)
        app.run_pending()

    assert seen == [back]


def test_secrets_are_not_in_the_refusal():
    with pytest.raises(InvalidField) as refused:
        returned(Login, Login(password=pydantic.SecretStr("hunter2")))

    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (object(), "object cannot be written"),
        (Login(password=pydantic.SecretStr("x")), "password would be lost"),
        (float("nan"), "result"),
        ("x" * (1 << 20), "bytes are over task_result_bytes_max"),
        (b"x" * (10 * (1 << 20) + 1), "bytes is over the limit of 10,485,760"),
    ],
)
def test_a_finished_run_is_completed_whatever_it_returned(value, says):
    with penstock.App.in_memory() as app:

        @app.task(max_attempts=3)
        def work() -> Any:
            return value

        job = work.enqueue()
        app.run_pending()
        view = job.info()
        with pytest.raises(ResultLost, match=says):
            job.result(0)

    assert (view.state, view.attempt, view.error) == (TaskState.COMPLETED, 1, "")
    assert says in view.result_error


def test_a_task_that_takes_a_result_that_was_lost_gets_none():
    with penstock.App.in_memory() as app:

        @app.task
        def first() -> Any:
            return object()

        @app.task
        def second(value: Any) -> list[Any]:
            return [value, *penstock.current_task().parent_results]

        flow = penstock.chain(first.s(), second.s()).enqueue()
        app.run_pending()

        assert flow.result(0) == [None, None]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
@settings(max_examples=30)
def test_whatever_json_can_hold_comes_back_equal(value):
    assert returned(Any, value) == value
