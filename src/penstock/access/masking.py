"""Masked fields: values that who may read a queue, but not unmask it, sees as "•••".

A field is a path into JSON, its steps joined by dots: a name, a position in a list, or `*` for all members. A name that
meets a list means each of its elements, so that `items.price` hides the price of every item. A path begins at the
payload; in tasks also at the arguments, the result and the progress, each by itself. A payload that is no object and no
list is hidden as a whole, and so are texts of errors: nobody knows what they contain.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import msgspec

from penstock.model import Message, Reason
from penstock.model_letters import DEAD_ERROR, SignatureView
from penstock.model_tasks import RESULT_ERROR_START, OperationView, Run, ScheduleView, TaskView
from penstock.replies import MessageDetails, MessageEvent, MessagePage, MessageSearch, TraceRun

MASK: Final = "•••"
EVERYTHING: Final = ("*",)  # the fields of a queue that is gone, and of which nobody knows any more
_ENCODED: Final = msgspec.json.encode(MASK)
_CONTAINERS: Final = ("args", "kwargs")
_LOOKED_FOR: Final = ("argument", "error_contains", "text", "key", "trace")  # in filters: what messages may hold
_TASK_PARTS: Final = ("args", "kwargs", "result", "progress")


class Mask:
    """Hides the fields of one queue."""

    def __init__(self, fields: Iterable[str]) -> None:
        self._paths = [tuple(field.split(".")) for field in fields]

    def message(self, message: Message) -> Message:
        """A message whose payload, and whose error if it is a dead letter, show nothing that is masked."""
        headers = message.headers
        if headers is not None and DEAD_ERROR in headers:
            headers = {**headers, DEAD_ERROR: MASK}
        retry = message.retry
        if retry is not None:
            retry = retry._replace(error=_masked_text(retry.error))
        return replace(message, payload=self.payload(message.payload), headers=headers, retry=retry)

    def event(self, event: MessageEvent) -> MessageEvent:
        """Something that happened to a message: its error."""
        return msgspec.structs.replace(event, error=_masked_text(event.error))

    def details(self, details: MessageDetails) -> MessageDetails:
        """A message and its state in each group."""
        groups = [msgspec.structs.replace(state, error=_masked_text(state.error)) for state in details.groups]
        return MessageDetails(self.message(details.message), groups)

    def search(self, search: MessageSearch) -> MessageSearch:
        """Messages that were found, with their events."""
        timelines = [
            msgspec.structs.replace(timeline, events=list(map(self.event, timeline.events)))
            for timeline in search.timelines
        ]
        return msgspec.structs.replace(search, timelines=timelines)

    def page(self, page: MessagePage) -> MessagePage:
        """A page of messages."""
        return msgspec.structs.replace(page, messages=list(map(self.message, page.messages)))

    def trace_run(self, run: TraceRun) -> TraceRun:
        """A run of a trace: its error."""
        return msgspec.structs.replace(run, error=_masked_text(run.error))

    def signature(self, signature: SignatureView) -> SignatureView:
        """Dead letters by signature: its text is that of an error, and what they share are values."""
        return msgspec.structs.replace(signature, text=MASK, shares=[])

    def reason(self, reason: Reason) -> Reason:
        """Why a message waits: the last error."""
        return reason._replace(error=_masked_text(reason.error))

    def payload(self, data: Any) -> bytes:
        """The payload of a message, be it a task or not."""
        value = _decoded(data)
        if not isinstance(value, dict | list):
            return MASK.encode()
        parts = [value[name] for name in _TASK_PARTS if name in value] if isinstance(value, dict) else []
        self._hide([value, *parts])
        return msgspec.json.encode(value)

    def task(self, task: TaskView) -> TaskView:
        """A task: arguments, result, progress and errors."""
        shown = {name: self._part(name, getattr(task, name)) for name in _TASK_PARTS}
        runs = tuple(_masked_run(run) for run in task.runs)
        return msgspec.structs.replace(task, **shown, error=_masked_text(task.error), runs=runs)

    def schedule(self, schedule: ScheduleView) -> ScheduleView:
        """A schedule: the arguments of the tasks that it submits."""
        spec = schedule.spec
        args, kwargs = self._part("args", spec.args), self._part("kwargs", spec.kwargs)
        return msgspec.structs.replace(schedule, spec=msgspec.structs.replace(spec, args=args, kwargs=kwargs))

    def _part(self, name: str, data: bytes | None) -> bytes | None:
        """One part of a task: a path may begin at it, or with its name."""
        if data is None or data.startswith(RESULT_ERROR_START):
            return data
        value = _decoded(data)
        whole = {name: value}
        self._hide([whole, value])
        if whole[name] is MASK and name in _CONTAINERS:
            _hide_path(value, EVERYTHING)  # arguments stay a list and an object: clients read them as such
        else:
            value = whole[name]
        if not isinstance(value, dict | list) and value is not None and not isinstance(value, bool):
            return _ENCODED
        return msgspec.json.encode(value)

    def _hide(self, roots: Iterable[Any]) -> None:
        for root in roots:
            for path in self._paths:
                _hide_path(root, path)


def masked_operation(view: OperationView) -> OperationView:
    """An operation whose filters do not show what they look for: with the count, that tells what is stored."""
    return msgspec.structs.replace(
        view,
        filter=_masked_filter(view.filter),
        letters=_masked_filter(view.letters),
        messages=_masked_filter(view.messages),
    )


def _masked_filter(filter: Any) -> Any:
    if filter is None:
        return filter
    hidden: dict[str, Any] = {name: MASK for name in _LOOKED_FOR if getattr(filter, name, None) is not None}
    headers = getattr(filter, "headers", None)
    if headers is not None:
        hidden["headers"] = dict.fromkeys(headers, MASK)
    return msgspec.structs.replace(filter, **hidden)


def _hide_path(root: Any, path: tuple[str, ...]) -> None:
    todo = [(root, 0)]  # not by recursion: the depth is chosen by who pushes
    while todo:
        value, depth = todo.pop()
        step, is_last = path[depth], depth + 1 == len(path)
        if isinstance(value, list) and step != "*" and not step.isdecimal():
            todo += [(item, depth) for item in value]
            continue
        for member in _members(value, step):
            if is_last:
                value[member] = MASK
            else:
                todo.append((value[member], depth + 1))


def _members(value: Any, step: str) -> Iterable[Any]:
    if isinstance(value, dict):
        return list(value) if step == "*" else [step] if step in value else []
    if isinstance(value, list):
        return range(len(value)) if step == "*" else [int(step)] if int(step) < len(value) else []
    return []


def _decoded(data: bytes) -> Any:
    """The JSON value, or the mask if it is none."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return MASK


def _masked_text(text: str) -> str:
    return MASK if text else text


def _masked_run(run: Run) -> Run:
    return msgspec.structs.replace(run, error=_masked_text(run.error))


@lru_cache(maxsize=256)
def mask_of(fields: tuple[str, ...]) -> Mask:
    """The mask for these fields."""
    return Mask(fields)
