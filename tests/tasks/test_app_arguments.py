"""Arguments travel as JSON and come back as what the annotations say; what does not fit is refused, and not stored."""

from __future__ import annotations

import enum
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict

import msgspec
import pytest

from penstock import App, current_task
from penstock.errors import InvalidField


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Line:
    sku: str
    price: Decimal


@dataclass
class Order:
    id: uuid.UUID
    lines: list[Line]


class Point(msgspec.Struct):
    x: float
    y: float = 0.0


UserId = NewType("UserId", int)


class Pair(NamedTuple):
    left: int
    right: int


class Options(TypedDict):
    loud: bool


class Model:
    """As Pydantic's models: it knows how to be written and read."""

    def __init__(self, size: int) -> None:
        self.size = size

    def model_dump(self, mode: str) -> dict[str, int]:
        assert mode == "json"
        return {"size": self.size}

    @classmethod
    def model_validate(cls, value: Any) -> Model:
        if not isinstance(value, dict) or not isinstance(value.get("size"), int):
            raise ValueError("size must be a number")  # noqa: TRY004 - as Pydantic does
        return cls(value["size"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and other.size == self.size

    __hash__ = None  # type: ignore[assignment]


@pytest.fixture
def app():
    with App.in_memory() as app:
        yield app


VALUES: list[tuple[Any, Any]] = [
    (int, 7),
    (float, 7),
    (bool, True),
    (str, "é\n"),
    (bytes, b"\x00\xff"),
    (datetime, datetime(2030, 1, 31, 12, tzinfo=UTC)),
    (date, date(2030, 1, 31)),
    (timedelta, timedelta(seconds=90)),
    (uuid.UUID, uuid.UUID(int=7)),
    (Decimal, Decimal("1.10")),
    (Colour, Colour.RED),
    (Order, Order(uuid.UUID(int=1), [Line("a", Decimal("2.50"))])),
    (Point, Point(1.5)),
    (Pair, Pair(1, 2)),
    (Options, {"loud": True}),
    (Model, Model(3)),
    (list[Point], [Point(1), Point(2, 3)]),
    (dict[str, list[int]], {"a": [1]}),
    (tuple[int, str], (1, "a")),
    (set[int], {1, 2}),
    (int | None, None),
    (Literal["a", "b"], "b"),
    (Path, Path("/srv/a b.txt")),
    (Annotated[int, msgspec.Meta(gt=0)], 1),
    (UserId, UserId(7)),
    (Any, {"x": [1, None, "y"]}),
    (int, 2**63),
]


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("by_name", [False, True])
def test_values_come_back_as_the_annotation_says(app, kind, value, by_name):
    seen = []

    def work(value):
        seen.append(value)
        return value

    work.__annotations__ = {"value": kind, "return": kind}
    task = app.task(work)
    job = task.enqueue(value=value) if by_name else task.enqueue(value)
    app.run_pending()
    result = job.result()
    assert seen == [value] == [result]
    assert type(seen[0]) is type(result) is (float if kind is float else type(value))


def test_annotations_may_name_what_is_defined_inside_a_function(app):
    @dataclass
    class Inner:
        n: int

    @app.task
    def work(inner: Inner, later: Later) -> int:
        return inner.n + later.n

    @dataclass
    class Later:
        n: int

    # `Later` was not there when the task was declared, and never is for others to see.
    with pytest.raises(InvalidField, match=r"work: an annotation cannot be resolved: .* \(define the name"):
        work.enqueue(Inner(1), Later(2))

    @app.task
    def other(inner: Inner) -> Inner:
        return Inner(inner.n + 1)

    job = other.enqueue(Inner(1))
    app.run_pending()
    assert job.result() == Inner(2)


def refusals() -> list[tuple[str, tuple[Any, ...], dict[str, Any], str]]:
    line = {"sku": "a", "price": "x"}
    return [
        ("wrong type", ("1", 2), {}, r"task 'work', argument 'a': expected `int`, got `str`"),
        ("wrong type by name", (), {"a": 1, "b": "2"}, r"argument 'b': expected `int`, got `str`"),
        ("no bool for an int", (True, 1), {}, r"argument 'a': expected `int`, got `bool`"),
        ("None", (None, 1), {}, r"argument 'a': expected `int`, got `null`"),
        ("missing", (1,), {}, r"argument 'b': missing; the function takes \(a: int, b: int"),
        ("missing by name", (), {"b": 1}, r"argument 'a': missing"),
        ("too many", (1, 2, None, 4), {}, r"too many arguments; the function takes \(a: int"),
        ("unknown name", (1, 2), {"d": 1}, r"argument 'd': the function has no such parameter"),
        ("twice", (1, 2), {"a": 1}, r"argument 'a': given twice"),
        ("nested", (1, 2), {"order": {"id": str(uuid.UUID(int=1)), "lines": [line]}}, r"'order\.lines\[0\]\.price': "),
        ("not JSON", (object(), 2), {}, r"argument 'a': object cannot be written as JSON"),
        ("not JSON by name", (1, 2), {"order": lambda: 1}, r"argument 'order': function cannot be written"),
        ("no text", (1, 2), {"order": "\ud800"}, r"argument 'order': .*surrogates"),
    ]


@pytest.mark.parametrize(
    ("args", "kwargs", "message"), [case[1:] for case in refusals()], ids=[c[0] for c in refusals()]
)
def test_what_does_not_fit_is_refused_by_name_and_nothing_is_stored(app, args, kwargs, message):
    @app.task
    def work(a: int, b: int, order: Order | None = None) -> None: ...

    for enqueue in (work.enqueue, work.s(*args, **kwargs).enqueue):
        with pytest.raises(InvalidField, match=message):
            enqueue(*args, **kwargs) if enqueue == work.enqueue else enqueue()
    with pytest.raises(InvalidField, match="item 1: "):
        work.enqueue_many([(1, 2), args or kwargs]) if not (args and kwargs) else work.enqueue_many([(1, 2), "x"])
    assert app.penstock.queues() == []
    assert list(app.jobs()) == []


def test_numbers_that_json_does_not_have_are_refused(app):
    @app.task
    def work(value: Any) -> Any:
        return Point(float("inf")) if value is None else None

    for value in (float("nan"), [None, {"x": float("-inf")}], Point(float("nan"))):
        with pytest.raises(InvalidField, match=r"argument 'value': (nan|-inf) is not valid JSON"):
            work.enqueue(value)
    job = work.enqueue(None)
    app.run_pending()
    assert job.status() == "completed"
    assert "task 'work', result: inf is not valid JSON" in job.info().result_error


def test_a_value_that_contains_itself_is_refused(app):
    @app.task
    def work(value: Any) -> None: ...

    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidField, match=r"argument 'value': .*recursion"):
        work.enqueue(endless)


def test_parameters_of_every_kind(app):
    seen = []

    @app.task
    def work(a: int, /, b: int = 2, *rest: float, c: str, d: Colour = Colour.RED, **more: date) -> None:
        seen.append((a, b, rest, c, d, more))

    work.enqueue(1, c="x")
    work.enqueue(1, 3, 4, 5, c="x", e=date(2030, 1, 1))
    app.run_pending()
    assert seen == [
        (1, 2, (), "x", Colour.RED, {}),
        (1, 3, (4.0, 5.0), "x", Colour.RED, {"e": date(2030, 1, 1)}),
    ]
    wrong: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((1, 2, "x"), {"c": "x"}, r"argument 'rest\[0\]': expected `float`"),
        ((1,), {}, "argument 'c': missing"),
        ((1,), {"c": "x", "e": "today"}, "argument 'e': "),
        ((), {"a": 1, "c": "x"}, "argument 'a': "),
    ]
    for args, kwargs, message in wrong:
        with pytest.raises(InvalidField, match=message):
            work.enqueue(*args, **kwargs)


def test_bounds_of_an_annotation_hold(app):
    @app.task
    def work(count: Annotated[int, msgspec.Meta(gt=0)], path: Path) -> None: ...

    with pytest.raises(InvalidField, match=r"argument 'count': expected `int` >= 1"):
        work.enqueue(0, Path())
    with pytest.raises(InvalidField, match=r"argument 'path': "):
        work.enqueue(1, 5)


def test_an_annotation_that_has_no_json_says_so(app):
    @app.task
    def work(value: dict[Point, tuple[int, ...] | list[int] | set[int]]) -> None: ...

    with pytest.raises(InvalidField, match="argument 'value': its annotation cannot be expressed in JSON"):
        work.enqueue({})


def test_a_result_that_breaks_its_promise_says_so(app):
    @app.task
    def work() -> int:
        return "x"  # type: ignore[return-value]

    job = work.enqueue()
    app.run_pending()
    with pytest.raises(
        InvalidField, match=r"result: Expected `int`, got `str` \(it does not match the function's return annotation"
    ):
        job.result()


def test_progress_that_is_not_json_fails_the_run(app):
    @app.task
    def work() -> None:
        current_task().progress(object())

    job = work.enqueue()
    app.run_pending()
    assert "progress: object cannot be written as JSON" in job.info().error


def test_items_of_many_are_tuples_dicts_or_the_only_argument(app):
    seen = []

    @app.task
    def work(a: int, b: str = "-") -> int:
        seen.append((a, b))
        return a

    jobs = work.enqueue_many([(1,), (2, "x"), {"a": 3, "b": "y"}, 4])
    assert app.run_pending() == 4
    assert seen == [(1, "-"), (2, "x"), (3, "y"), (4, "-")]
    assert [job.result() for job in jobs] == [1, 2, 3, 4]
    assert work.enqueue_many([]) == []


def test_many_carry_their_options_and_more_than_one_push_can_hold(app):
    @app.task(priority="high", max_attempts=7, timeout=9)
    def work(text: str) -> None: ...

    jobs = work.options(key="k").enqueue_many(["x" * 3_000_000] * 6)
    assert len({job.id for job in jobs}) == 6
    info = jobs[-1].info()
    assert (info.priority, info.max_attempts, info.timeout_seconds, info.key) == (192, 7, 9.0, "k")


def test_many_cannot_have_one_id(app):
    @app.task
    def work() -> None: ...

    with pytest.raises(InvalidField, match="task_id"):
        work.options(task_id=uuid.uuid4()).enqueue_many([()])
