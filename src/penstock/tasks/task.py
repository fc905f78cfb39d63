"""A task: a function that can be called as usual, or enqueued for a worker.

    send.enqueue("a@b.c")                             store it, then return
    send.options(delay=60).enqueue("a@b.c")           with options for this call
    send.enqueue_many([("a@b.c",), ("d@e.f",)])       store many in one push
    await send.aenqueue("a@b.c")                      on an event loop
    send.s("a@b.c")                                   do not store it yet: a step of a workflow or a schedule

Types are kept: the arguments are those of the function, and so is the result of a job.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, cast

import msgspec

from penstock import limits
from penstock.client.values import BaseTransaction
from penstock.envelopes import Call, new_task_id, tasks_batch
from penstock.errors import InvalidField, TooLarge, shown
from penstock.model_tasks import Takes, TaskSubmission, bytes_of_result, result_of_bytes
from penstock.tasks import calls, json_values
from penstock.tasks.calls import NO_KWARGS, Calls
from penstock.tasks.context import current
from penstock.tasks.job import Job
from penstock.tasks.options import CALL_OPTIONS, CallOptions, KeyOf, TaskOptions, checked

if TYPE_CHECKING:
    from penstock.tasks.app import App
    from penstock.tasks.workflows import Step

P = ParamSpec("P")
R = TypeVar("R")  # what a call gives: of an async function, a coroutine
T = TypeVar("T")  # the result
U = TypeVar("U")


class Configured(Generic[P, T]):
    """A task with options for one call: `send.options(delay=60)`. Nothing is stored until it is enqueued."""

    def __init__(self, task: Task[P, Any, T], options: TaskOptions) -> None:
        self.task = task
        self.chosen = options

    def options(self, **options: Unpack[CallOptions]) -> Configured[P, T]:
        """Return the task with other options. Options that are not given keep their values."""
        return Configured(self.task, checked(options, CALL_OPTIONS, self.chosen))

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[T]:
        """Store a call of the task. Returns its job once it is durable.

        Raises `InvalidField` if the arguments do not fit the function; nothing is stored then.
        """
        return self._job(self.task.app.sender.send(self.submission(args, kwargs)))

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[T]:
        """Asyncio version of `enqueue()`, on the session of the running loop."""
        return self._job(await self.task.app.sender.asend(self.submission(args, kwargs)))

    def enqueue_many(self, items: Iterable[Any]) -> list[Job[T]]:
        """Store many calls in one push. Returns their jobs.

        A tuple holds positional arguments, a dict named arguments; any other item is the only argument.
        """
        items = _listed(items)
        if self._are_alike:
            return [self._job(id) for id in self.task.app.sender.send_alike(*self._alike(items))]
        return [self._job(id) for id in self.task.app.sender.send_many(self._submissions(items))]

    async def aenqueue_many(self, items: Iterable[Any]) -> list[Job[T]]:
        """Asyncio version of `enqueue_many()`, on the session of the running loop."""
        items = _listed(items)
        if self._are_alike:
            return [self._job(id) for id in await self.task.app.sender.asend_alike(*self._alike(items))]
        return [self._job(id) for id in await self.task.app.sender.asend_many(self._submissions(items))]

    def enqueue_in(self, transaction: BaseTransaction, /, *args: P.args, **kwargs: P.kwargs) -> Job[T]:
        """Store a call as part of a transaction. Returns the job, which exists once the transaction is committed."""
        if not isinstance(transaction, BaseTransaction):
            hint = "pass what `with ps.transaction() as transaction` gives"
            raise InvalidField(f"transaction: {transaction!r} is not a transaction", hint=hint)
        task = self.task.app.sender.through(self.submission(args, kwargs))
        if not task.is_plain:
            raise InvalidField(
                f"task {self.task.name!r}: a task that is unique or has parents cannot be part of a transaction"
            )
        transaction.push_many(task.queue, tasks_batch([task]))
        return self._job(task.task_id)

    def s(self, /, *args: Any, **kwargs: Any) -> Step[T]:
        """Return a step of a workflow or a schedule. Omit the arguments that come from its parents."""
        from penstock.tasks.workflows import Step

        return Step(self, args, kwargs)

    def submission(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        parents: tuple[str, ...] = (),
        takes: Takes = "none",
        workflow: str = "",
    ) -> TaskSubmission:
        """One call of this task as it is stored; `parents` and what it takes of them come from a workflow."""
        options, task = self.chosen, self.task
        depends_on = parents + options.depends_on
        takes = "none" if not depends_on else takes if options.takes is None else options.takes
        call = task.calls if takes == "none" else task.calls.after_first
        data, named, payload = call.encode_call(args, kwargs)
        return msgspec.structs.replace(
            self._base,
            task_id=options.task_id or new_task_id(task.app.clock.now()),
            args=data,
            kwargs=named,
            payload=payload,
            depends_on=depends_on,
            takes=takes,
            workflow=workflow,
            unique_key=self._unique_key(call, args, kwargs) if options.unique else None,
            key=self.key_for(call, args, kwargs),
            trace=self._trace(),
        )

    @cached_property
    def _base(self) -> TaskSubmission:
        """What is the same for every call with these options."""
        options = self.chosen
        return TaskSubmission(
            task_id="",
            is_named=options.task_id is not None,
            task_type=self.task.name,
            queue=options.queue,
            timeout_seconds=options.timeout,
            on_parent_failure=options.on_parent_failure,
            unique_seconds=options.unique_seconds,
            key=options.key,
            priority=options.priority,
            delay_seconds=options.delay,
            deliver_at=options.deliver_at,
            ttl_seconds=options.ttl,
            max_attempts=options.max_attempts,
            headers=None if options.headers is None else dict(options.headers),
        )

    def _trace(self) -> str | None:
        """As chosen, or that of the task which enqueues this one."""
        running = current.get(None)
        return self.chosen.trace if self.chosen.trace is not None or running is None else running.trace

    @property
    def _are_alike(self) -> bool:
        """Whether many of these differ by nothing but their arguments, which makes them cheap."""
        options = self.chosen
        own = options.unique or options.depends_on or options.key_of or options.task_id
        return not own and not self.task.app.changes_tasks

    def _alike(self, items: list[Any]) -> tuple[TaskSubmission, list[Call]]:
        """One for all of them, and the arguments of each."""
        encode = self.task.calls.encode_call
        encoded = _each(lambda item: encode(*calls.call_of(item)), items)
        return msgspec.structs.replace(self._base, trace=self._trace()), encoded

    def _submissions(self, items: list[Any]) -> list[TaskSubmission]:
        if self.chosen.task_id is not None:
            raise InvalidField("task_id: many tasks cannot have one id", hint="enqueue them one by one")
        return _each(lambda item: self.submission(*calls.call_of(item)), items)

    def key_for(self, call: Calls, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """The key of a call: as chosen, or taken from its arguments."""
        if self.chosen.key_of is None or self.chosen.key is not None:
            return self.chosen.key
        value = _key_value(self.chosen.key_of, call, args, kwargs)
        return None if value is None else str(value)

    def _unique_key(self, call: Calls, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Of one kind of task, calls with the same key; by itself, calls with the same arguments."""
        options, name = self.chosen, self.task.name
        if options.unique_key is not None:
            return f"{name}:{options.unique_key}"
        if options.unique_key_of is not None:
            return f"{name}:{_key_value(options.unique_key_of, call, args, kwargs)}"
        return f"{name}:{hashlib.blake2b(call.normal(args, kwargs), digest_size=16).hexdigest()}"

    def _job(self, task_id: str) -> Job[T]:
        return Job(self.task.app, task_id, self.task)


class Task(Configured[P, T], Generic[P, R, T]):
    """A function turned into a task by `@app.task`."""

    def __init__(
        self, app: App, function: Callable[P, R], name: str, options: TaskOptions, hints: dict[str, Any] | None = None
    ) -> None:
        super().__init__(self, options)
        self.app = app
        self.name = name
        self.function = function
        self.defaults = options
        self.is_async = inspect.iscoroutinefunction(function)
        self._hints_known = hints
        update_wrapper(self, function, updated=())

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly. Nothing is stored."""
        return self.function(*args, **kwargs)

    @property
    def takes_nothing(self) -> bool:
        """Whether it can be called without arguments; annotations are not looked at."""
        return Calls(self.name, self.function, {}).takes_nothing

    @cached_property
    def calls(self) -> Calls:
        """How arguments travel. Made when first needed: annotations may name what is defined further down."""
        return Calls(self.name, self.function, self._hints)

    def bind(
        self, args: bytes, kwargs: bytes = NO_KWARGS, first: bytes | None = None, payload: bytes | None = None
    ) -> tuple[list[Any], dict[str, Any]]:
        """Arguments for the function from JSON, `first` before all others, and the bytes among them from `payload`;
        `InvalidField` when they do not fit.
        """
        return self.calls.decode_call(args, kwargs, payload, first)

    def encode_result(self, value: Any) -> bytes:
        """A result as it is stored: JSON, or bytes; `InvalidField` or `TooLarge` when it cannot be."""
        is_bytes = isinstance(value, bytes | bytearray | memoryview)
        data = result_of_bytes(value) if is_bytes else json_values.written(value, f"task {self.name!r}, result")
        size, most = memoryview(value).nbytes if is_bytes else len(data), limits.task_result_bytes_range[1]
        if size > most:
            hint = "store it elsewhere and return its address"
            raise TooLarge(f"task {self.name!r}, result: {size:,} bytes is over the limit of {most:,}", hint=hint)
        return data

    def decode_result(self, data: bytes) -> T:
        """A result of the type that the function is annotated with."""
        returned = bytes_of_result(data)
        if returned is not None:
            kind = self._hints.get("return")
            binary: Any = kind(returned) if kind in (bytearray, memoryview) else returned
            return cast(T, binary)
        try:
            result: T = self._result.decode(data)
        except msgspec.ValidationError as error:
            raise InvalidField(
                f"task {self.name!r}, result: {error}", hint="it does not match the function's return annotation"
            ) from None
        return result

    @cached_property
    def _result(self) -> msgspec.json.Decoder[Any]:
        return json_values.result_decoder(self._hints)

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return json_values.hints_of(self.function) if self._hints_known is None else self._hints_known

    def __repr__(self) -> str:
        return f"<Task {self.name} on queue {self.defaults.queue!r}>"


def _listed(items: Iterable[Any]) -> list[Any]:
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        hint = "pass one item for each call: a tuple of arguments, a dict of named ones, or the only argument"
        raise InvalidField(f"items: {shown(items)} is not a list of calls", hint=hint)
    return list(items)


def _each(make: Callable[[Any], U], items: list[Any]) -> list[U]:
    """One for each item; a refusal says which item is meant."""
    made: list[U] = []
    try:
        made.extend(map(make, items))
    except InvalidField as error:
        raise InvalidField(f"item {len(made)}: {error.message}", hint=error.hint) from None
    return made


def _key_value(source: KeyOf, call: Calls, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return call.argument(source, args, kwargs) if isinstance(source, str) else source(*args, **kwargs)
