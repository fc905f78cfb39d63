"""Workflows: tasks that wait for other tasks and use their results, and the handle on an enqueued workflow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar, cast, overload

from penstock.envelopes import new_task_id
from penstock.errors import InvalidField
from penstock.model_tasks import Submitted, Takes, TaskSubmission
from penstock.refusals import suggestion
from penstock.tasks._async.calls import AsyncWorkflowCalls
from penstock.tasks._sync.calls import WorkflowCalls
from penstock.tasks.job import Job

if TYPE_CHECKING:
    from penstock.tasks.app import App
    from penstock.tasks.task import Configured, Task


T = TypeVar("T")
U = TypeVar("U")


class Before(NamedTuple):
    """What a part of a workflow waits for, and what it takes of it unless its options say otherwise."""

    ids: tuple[str, ...] = ()
    takes: Takes = "none"
    is_empty: bool = False  # an empty group: there is a list to take, and nothing is in it


class Plan:
    """The tasks of one workflow, as they will be submitted."""

    def __init__(self) -> None:
        self.app: App | None = None
        self.workflow = ""
        self.tasks: list[tuple[Task[..., Any, Any], TaskSubmission]] = []
        self.names: dict[str, int] = {}  # of a graph: which task it is

    def add(self, step: Step[Any], before: Before) -> Before:
        """One more task; what comes after it waits for it."""
        task = step.configured.task
        if self.app is None:
            self.app = task.app
            self.workflow = new_task_id(task.app.clock.now())
        elif self.app is not task.app:
            raise InvalidField(f"workflow: task {task.name!r} belongs to another app than the tasks before it")
        configured, args = step.configured, step.args
        if before.is_empty and configured.chosen.takes != "none":  # the list that it takes is known already
            configured, args = configured.options(takes="none"), ([], *args)
        made = configured.submission(args, step.kwargs, parents=before.ids, takes=before.takes, workflow=self.workflow)
        self.tasks.append((task, made))
        return Before((made.task_id,), "one")

    def submissions(self) -> tuple[App, list[TaskSubmission]]:
        """All of it, checked as a whole."""
        if self.app is None:
            raise InvalidField("workflow: has no tasks", hint="give it at least one step: chain(task.s(…))")
        awaited = {parent for _, made in self.tasks for parent in made.depends_on}
        for task, made in self.tasks:
            if made.unique_key is not None and made.task_id in awaited:
                problem = "a unique task cannot have tasks that depend on it: an earlier task might be used instead"
                raise InvalidField(f"workflow: task {task.name!r}: {problem}", hint="use options(unique=False)")
        through = self.app.sender.through
        return self.app, [through(made) for _, made in self.tasks]


class Part(Generic[T]):
    """A workflow, or a part of one. `T` is the type of its result."""

    def place(self, plan: Plan, before: Before) -> Before:
        """Put its tasks into the plan, behind those before; what comes next waits for what is returned."""
        raise TypeError(f"{type(self).__name__} cannot be part of a workflow")

    def __or__(self, other: Part[U]) -> Chain[U]:
        return Chain((self, other))


class Step(Part[T]):
    """A task and its arguments, as part of a workflow: `send.s("a@b.c")`."""

    def __init__(self, configured: Configured[..., T], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.configured = configured
        self.args = args
        self.kwargs = kwargs

    def place(self, plan: Plan, before: Before) -> Before:
        return plan.add(self, before)

    def enqueue(self) -> Job[T]:
        """Enqueue this call alone, like `enqueue()` of the task."""
        return self.configured.enqueue(*self.args, **self.kwargs)

    async def aenqueue(self) -> Job[T]:
        """Asyncio version of `enqueue()`."""
        return await self.configured.aenqueue(*self.args, **self.kwargs)

    def __repr__(self) -> str:
        arguments = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return f"{self.configured.task.name}.s({', '.join(arguments)})"


class Flow(Part[T]):
    """Several related tasks, ready to be enqueued, once or more often."""

    def enqueue(self) -> Workflow[T]:
        """Store all of its tasks, all or none. Returns the workflow once they are durable."""
        if self.is_nothing:
            return _nothing()
        plan, ends = self._planned()
        app, tasks = plan.submissions()
        return _workflow(plan, ends, app.sender.submit(tasks))

    async def aenqueue(self) -> Workflow[T]:
        """Asyncio version of `enqueue()`."""
        if self.is_nothing:
            return _nothing()
        plan, ends = self._planned()
        app, tasks = plan.submissions()
        return _workflow(plan, ends, await app.sender.asubmit(tasks))

    @property
    def is_nothing(self) -> bool:
        """Whether it is empty. Its result is then an empty list."""
        return False

    def then(self, part: Part[U]) -> Chain[U]:
        """Return a chain of this and another part, which takes its result."""
        return Chain((self, part))

    def _planned(self) -> tuple[Plan, Before]:
        plan = Plan()
        return plan, self.place(plan, Before())


class Chain(Flow[T]):
    """Tasks that run one after the other."""

    def __init__(self, parts: Sequence[Part[Any]]) -> None:
        self.parts = tuple(_part(part) for part in parts)

    @property
    def is_nothing(self) -> bool:
        return bool(self.parts) and all(isinstance(part, Flow) and part.is_nothing for part in self.parts)

    def place(self, plan: Plan, before: Before) -> Before:
        for part in self.parts:
            before = part.place(plan, before)
        return before


class Group(Flow[list[T]]):
    """Tasks that run in parallel. The result is the list of their results, in the given order."""

    def __init__(self, parts: Iterable[Part[T]]) -> None:
        self.parts = tuple(_part(part) for part in parts)

    @property
    def is_nothing(self) -> bool:
        return all(isinstance(part, Flow) and part.is_nothing for part in self.parts)

    def place(self, plan: Plan, before: Before) -> Before:
        ends = [end.ids for end in (part.place(plan, before) for part in self.parts) if not end.is_empty]
        if not ends:  # whatever comes next waits for what came before
            return Before(before.ids, "none", is_empty=True)
        return Before(tuple(id for ids in ends for id in ids), "all")


class Graph(Flow[Any]):
    """Named tasks that depend on each other. The result is that of its last task, or a list if there are several."""

    def __init__(self) -> None:
        self._nodes: dict[str, tuple[Step[Any], tuple[str, ...]]] = {}

    def add(self, name: str, step: Step[Any], *, after: str | Sequence[str] = ()) -> Self:
        """Add a task. `after` names the tasks it waits for; they may be added later."""
        if not isinstance(name, str) or not name:
            raise InvalidField(f"graph: {name!r} is not a name")
        if name in self._nodes:
            raise InvalidField(f"graph: there are two tasks named {name!r}")
        if not isinstance(step, Step):
            raise InvalidField(f"graph: {name!r} is not a step", hint="add steps: graph().add(name, task.s(…))")
        if not isinstance(after, str | Sequence) or not all(isinstance(parent, str) for parent in after):
            hint = "name the tasks to wait for: after=['load', 'check']"
            raise InvalidField(f"after: {after!r} is not a list of names", hint=hint)
        self._nodes[name] = (step, (after,) if isinstance(after, str) else tuple(after))
        return self

    def place(self, plan: Plan, before: Before) -> Before:
        placed: dict[str, str] = {}
        for name in self._order():
            step, after = self._nodes[name]
            parents = tuple(placed[parent] for parent in after)
            takes: Takes = "one" if len(parents) == 1 else "all"
            plan.names[name] = len(plan.tasks)
            placed[name] = step.place(plan, Before(parents, takes) if parents else before).ids[0]
        awaited = {parent for _, after in self._nodes.values() for parent in after}
        ends = tuple(id for name, id in placed.items() if name not in awaited)
        return Before(ends, "one" if len(ends) == 1 else "all")

    def _order(self) -> list[str]:
        for name, (_, after) in self._nodes.items():
            for parent in after:
                if parent not in self._nodes:
                    known = ", ".join(self._nodes)
                    raise InvalidField(
                        f"graph: {name!r} is after {parent!r}, which does not exist", hint=f"known: {known}"
                    )
        try:
            return list(TopologicalSorter({name: after for name, (_, after) in self._nodes.items()}).static_order())
        except CycleError as error:
            circle = " → ".join(reversed(error.args[1]))
            raise InvalidField(f"graph: tasks wait for each other in a circle: {circle}") from None


@overload
def chain(a: Part[T], /) -> Chain[T]: ...
@overload
def chain(a: Part[Any], b: Part[T], /) -> Chain[T]: ...
@overload
def chain(a: Part[Any], b: Part[Any], c: Part[T], /) -> Chain[T]: ...
@overload
def chain(a: Part[Any], b: Part[Any], c: Part[Any], d: Part[T], /) -> Chain[T]: ...
@overload
def chain(*parts: Part[Any]) -> Chain[Any]: ...


def chain(*parts: Part[Any]) -> Chain[Any]:
    """Return a chain: steps run in order, each taking the previous result as its first argument."""
    return Chain(parts)


@overload
def group(parts: Iterable[Part[T]], /) -> Group[T]: ...
@overload
def group(*parts: Part[T]) -> Group[T]: ...


def group(*parts: Any) -> Group[Any]:
    """Return a group: steps run in parallel: `group(a.s(1), b.s(2))`, or any iterable of steps. May be empty."""
    if len(parts) == 1 and not isinstance(parts[0], Part):
        if not isinstance(parts[0], Iterable):
            raise _no_part(parts[0])
        return Group(cast("Iterable[Part[Any]]", parts[0]))
    return Group(parts)


def graph() -> Graph:
    """Return an empty graph; add tasks with `add`."""
    return Graph()


def _part(value: Any) -> Part[Any]:
    if not isinstance(value, Part):
        raise _no_part(value)
    return value


def _no_part(value: Any) -> InvalidField:
    return InvalidField(
        f"workflow: {value!r} cannot be part of a workflow", hint="use task.s(…); do not call or enqueue the task"
    )


def _nothing() -> Workflow[Any]:
    """An empty group: there is nothing to store, and nothing to wait for."""
    return Workflow(None, "", (), (), {}, is_list=True)


def _workflow(plan: Plan, ends: Before, submitted: Sequence[Submitted]) -> Workflow[Any]:
    """What was submitted, for whoever waits. A unique task at the end may stand for one that was there before."""
    app = cast("App", plan.app)
    jobs = [Job(app, stored.task_id, task) for (task, _), stored in zip(plan.tasks, submitted, strict=True)]
    by_id = {made.task_id: job for (_, made), job in zip(plan.tasks, jobs, strict=True)}
    names = {name: jobs[index] for name, index in plan.names.items()}
    last = [by_id[id] for id in ends.ids]
    return Workflow(app, plan.workflow, jobs, last, names, is_list=ends.takes == "all", is_empty=ends.is_empty)


class Workflow(AsyncWorkflowCalls[T], WorkflowCalls[T]):
    """An enqueued chain, group or graph. `jobs` are its tasks, `ends` those that no other task waits for.

    `workflow["name"]` is the job of that name in a graph; `app.jobs(workflow=workflow.id)` finds all jobs later.
    """

    def __init__(
        self,
        app: App | None,  # None: it has no tasks
        id: str,
        jobs: Sequence[Job[Any]],
        ends: Sequence[Job[Any]],
        names: Mapping[str, Job[Any]],
        *,
        is_list: bool,
        is_empty: bool = False,
    ) -> None:
        self._app = app
        self._names = names
        self._is_list = is_list
        self._is_empty = is_empty  # an empty group ends it: an empty list once the others are done
        self.id = id
        self.jobs = tuple(jobs)
        self.ends = tuple(ends)

    @property
    def end_ids(self) -> tuple[str, ...]:
        """What waits for this workflow waits for these tasks."""
        return tuple(job.id for job in self.ends)

    def __getitem__(self, name: str) -> Job[Any]:
        if name not in self._names:
            raise InvalidField(f"workflow: no task is named {name!r}", hint=suggestion(name, tuple(self._names)))
        return self._names[name]

    def _joined(self, results: list[Any]) -> T:
        joined: Any = [] if self._is_empty else results if self._is_list else results[0]
        result: T = joined
        return result

    def __repr__(self) -> str:
        return f"<Workflow {self.id} of {len(self.jobs)} tasks>"
