"""Whatever is passed to whichever parameter: every public method gives a result or an error that names the parameter.

Methods, parameters and handles are found by introspection, so a new method is covered when it is written. A required
parameter of a new name needs a line in `VALID`.
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock
from penstock.client.values import FILTERS, OPTIONS, PUSH_OPTIONS
from penstock.embedded.session import Session
from penstock.errors import InputError, PenstockError, shown
from penstock.model import QueueOptions
from penstock.operations.access import QUOTA_NAMES
from penstock.tasks.job_search import NAMES as JOB_FILTERS
from penstock.tasks.options import CALL_OPTIONS, DECLARED_OPTIONS
from tests.support.brokers import BrokerThread
from tests.support.readable import check_readable

ABSURD = [
    None, True, -1, 0, 2**70, -(2**70), 1.5, math.nan, math.inf, "", "x" * 100_000, "\ud800", "\0", "nonsense", b"x",
    b"\xff", [], [None], ["\ud800"], {}, {1: 2}, {"a": None}, ...,
]  # fmt: skip

# What to pass for parameters that must be given.
VALID: dict[str, Any] = {
    "name": "mail", "queue": "mail", "queues": ["mail"], "payload": b"x", "items": [b"x"], "id": "mail/0/0", "key": "k",
    "group": "default", "to": "earliest", "confirm": "mail", "trace": "t", "connection_id": "c", "run": "r",
    "source": "mail", "task_id": "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b", "messages": {}, "operation_id": "abc",
    "grants": ["owner"], "seconds": 5, "worker_id": "w", "cron": "* * * * *", "field": "queue", "workflow": "w",
    "action": "cancel", "function": len, "add": max, "initial": 0, "sink": "other", "url": None,
}  # fmt: skip

# How else an error may name a parameter: by the field of the operation, or the part of the value that is wrong.
ALIASES = {
    "name": ("queue", "group", "schedule", "graph", "task"), "source": ("queue",), "sink": ("queue",),
    "queues": ("queue",), "ids": ("id",), "messages": ("id",), "step": ("graph",),
    "after": ("graph",), "part": ("workflow",), "function": ("filter", "map", "key_by", "task"),
    "task_type": ("task",), "before": ("encryption",), "namespace": ("grants",),
    "items": ("payload", "item 0"),
}  # fmt: skip

# What methods take by name without saying so in their signature.
VARIADIC: dict[str, tuple[str, ...]] = {
    "Penstock.create_queue": QueueOptions.__struct_fields__,
    "Penstock.update_queue": QueueOptions.__struct_fields__,
    "Queue.replay": OPTIONS,
    "DeadLetters.begin_redrive": (*FILTERS, *OPTIONS),
    "DeadLetters.begin_discard": (*FILTERS, *OPTIONS),
    "Access.set_namespace": QUOTA_NAMES,
    "Transaction.push": PUSH_OPTIONS,
    "LocalApp.queue": QueueOptions.__struct_fields__,
    "LocalApp.task": DECLARED_OPTIONS,
    **{f"LocalApp.{name}": JOB_FILTERS for name in ("jobs", "begin", "purge", "cancel_all", "retry_all")},
    "Task.options": CALL_OPTIONS,
}

# So that a call ends soon, and changes little.
DEFAULTS: dict[str, dict[str, Any]] = {
    "consume": {"idle_seconds": 0}, "replay": {"dry_run": True}, "begin_redrive": {"dry_run": True},
    "rotate_key": {"id": "abc"}, "create_key": {"name": "new"}, "create_queue": {"name": "other"},
    "update_queue": {"name": "other"},
}  # fmt: skip

# Public for other packages of ours: workers, sessions and Spark call these, with values that were checked before.
INTERNAL = {
    "Task.bind", "Task.submission", "Task.decode_result", "Task.encode_result", "Task.key_for", "Task.update_wrapper",
    "Stream.elements", "Graph.place", "Chain.place", "LocalApp.open_session", "LocalApp.wait_task",
}  # fmt: skip


def handles(ps: Any) -> dict[str, Callable[[], Any]]:
    """Every kind of handle, by its class; each is made anew for each call."""
    queue = ps.queue("mail")
    app = penstock.App.in_memory()

    @app.task
    def work(number: int = 1) -> int:
        return number

    def leased() -> Any:
        queue.push(b"x")
        return queue.lease(1)

    job = work.enqueue(1)
    app.run_pending()
    made = (
        lambda: ps, lambda: queue, lambda: queue.dlq, lambda: ps.operations, lambda: ps.access, lambda: ps.audit,
        leased, lambda: leased()[0], lambda: (queue.push(b"x"), ps.lease(["mail"]))[1], ps.transaction,
        penstock.App.in_memory, lambda: work, lambda: job, lambda: ps.stream("mail"), penstock.graph,
        lambda: penstock.chain(work.s(1)),
    )  # fmt: skip
    return {type(make()).__name__: make for make in made}


def methods(kind: type) -> Iterator[tuple[str, list[inspect.Parameter]]]:
    """The blocking public methods of a class that take something; those of asyncio are generated from the same code."""
    for name, function in inspect.getmembers(kind, inspect.isfunction):
        if name.startswith("_") or not function.__module__.startswith("penstock"):
            continue
        is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        if is_async or name == "ajobs" or f"{kind.__name__}.{name}" in INTERNAL:
            continue
        signature = inspect.signature(function).parameters.values()
        parameters = [parameter for parameter in signature if parameter.name != "self"]
        if parameters:
            yield name, parameters


def named_parameters(label: str, parameters: list[inspect.Parameter]) -> list[str]:
    fixed = [
        parameter.name
        for parameter in parameters
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters) and label not in ENQUEUES:
        fixed += VARIADIC[label]
    return fixed


ENQUEUES = {"Task.enqueue", "Task.enqueue_in", "Task.s"}  # take the arguments of the task's own function


class Caller:
    """Calls every method of every handle of one system with absurd values, and collects what is wrong."""

    def __init__(self, ps: Any, directory: Any) -> None:
        self.ps = ps
        self.handles = handles(ps)
        self.problems: list[str] = []
        self.may_have_changed = True
        self.stop = threading.Event()
        self.stop.set()
        self.valid = {**VALID, "destination": str(directory / "backup"), "task": self.handles["Task"]().s(1)}
        self.valid |= {"step": self.valid["task"], "part": self.valid["task"]}

    def run(self) -> None:
        for kind, make in self.handles.items():
            for method, parameters in methods(type(make())):
                for parameter in named_parameters(f"{kind}.{method}", parameters):
                    self.reset()
                    for value in ABSURD:
                        self.call(kind, make, method, parameters, parameter, value)

    def call(
        self, kind: str, make: Any, method: str, parameters: list[inspect.Parameter], parameter: str, value: Any
    ) -> None:
        if self.may_have_changed:
            self.restore()
        required = {part.name for part in parameters if part.default is part.empty and "VAR" not in part.kind.name}
        keywords = {name: self.required(name) for name in required}
        keywords |= {**DEFAULTS, "subscribe": {"stop": self.stop}}.get(method, {})
        keywords[parameter] = value
        by_place = [
            keywords.pop(part.name)
            for part in parameters
            if part.kind is part.POSITIONAL_ONLY and part.name in keywords
        ]
        try:
            result = getattr(make(), method)(*by_place, **keywords)
            if inspect.isgenerator(result):
                for _ in zip(range(1), result, strict=False):
                    pass
                result.close()
        except PenstockError as error:
            problem = self.problem(error, parameter, value)
        except Exception as error:  # noqa: BLE001 - this is what must not happen
            problem = f"{type(error).__name__}: {error}"
        else:
            problem = ""
            self.may_have_changed = True
        if problem:
            self.problems.append(f"{kind}.{method}({parameter}={shown(value)}): {problem}")

    def restore(self) -> None:
        """Undo what the last call may have done."""
        self.may_have_changed = False
        for queue in {"mail", "other"} - set(self.ps.queues()):
            self.ps.create_queue(queue)
        if self.ps.pauses():
            self.ps.resume()
            self.ps.queue("mail").resume()
        self.ps.queue("mail").push(b"x")  # so that nobody waits

    def reset(self) -> None:
        """Begin with a short queue, so that no call takes long."""
        self.restore()
        self.ps.delete_queue("mail")

    def required(self, name: str) -> Any:
        if name == "delivery":
            return self.handles["Delivery"]()
        if name == "transaction":
            return self.ps.transaction()
        return self.valid[name]  # a new name needs a line in `VALID`

    def problem(self, error: PenstockError, parameter: str, value: Any) -> str:
        text = f"{error.message} {error.hint}"
        if isinstance(error, InputError):
            repeats = isinstance(value, str) and value and value[:50] in text
            if not repeats and not any(name in text for name in (parameter, *ALIASES.get(parameter, ()))):
                return f"the parameter is not named: {error}"
        try:
            if parameter != "items":  # an error about arguments of a task names types of Python, as its function does
                check_readable(error.message, error.hint)
        except AssertionError as unreadable:
            return str(unreadable)
        return ""


def test_an_embedded_handle_refuses_absurd_arguments_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with penstock.open(tmp_path / "data", durability="os") as ps:
        caller = Caller(ps, tmp_path)
        caller.run()

    assert not caller.problems, "\n".join(caller.problems)


@pytest.mark.parametrize("protocol", ["penstock", "http"])
def test_a_remote_handle_refuses_absurd_arguments_by_name(protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    session = Session(tmp_path / "data", durability="os")
    broker = BrokerThread(session, protocol=protocol)
    try:
        with penstock.connect(broker.url) as ps:
            caller = Caller(ps, tmp_path)
            caller.run()
    finally:
        broker.stop()
        session.close()

    assert not caller.problems, "\n".join(caller.problems)


OPENERS = (penstock.open, penstock.connect, penstock.App)
FOR_TESTS = {"clock", "rng"}  # objects that only our own tests pass


def openers() -> Iterator[tuple[Any, str]]:
    for opener in OPENERS:
        for parameter in inspect.signature(opener).parameters.values():
            if parameter.name not in FOR_TESTS:
                yield opener, parameter.name


@pytest.mark.parametrize(("opener", "parameter"), list(openers()), ids=lambda part: getattr(part, "__name__", part))
def test_opening_refuses_absurd_arguments_by_name(opener, parameter, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    session = Session(None, durability="os")
    broker = BrokerThread(session)
    first = {penstock.open: {"path": tmp_path / "data"}, penstock.connect: {"urls": broker.url}}.get(opener, {})
    problems = []
    try:
        for value in ABSURD:
            try:
                opener(**{**first, parameter: value}).close()
            except PenstockError as error:
                text = f"{error.message} {error.hint}"
                if isinstance(error, InputError) and not any(name in text for name in (parameter, "url")):
                    problems.append(f"{parameter}={shown(value)}: the parameter is not named: {error}")
            except Exception as error:  # noqa: BLE001 - this is what must not happen
                problems.append(f"{parameter}={shown(value)}: {type(error).__name__}: {error}")
    finally:
        broker.stop()
        session.close()

    assert not problems, "\n".join(problems)
