"""Faults of questions about many messages and tasks, and of operations on them."""

from __future__ import annotations

from typing import Final

from tests.mutants.fault import Fault


def _grows(cost: str) -> tuple[str, ...]:
    return (f"tests/test_growth.py::test_a_cost_grows_no_faster_than_it_may[{cost}]",)


QUESTION_FAULTS: Final = (
    Fault(
        "search-in-one-hold",
        "a search reads more and more messages in one hold of the lock",
        "shard/search.py",
        "min(READ_MAX, 2 * run.size)",
        "2 * run.size",
        _grows("search for what is nowhere"),
    ),
    Fault(
        "search-skips-one",
        "the next page of a search begins one message too late",
        "shard/search.py",
        "run.rows[-1].offset + 1 if run.rows",
        "run.rows[-1].offset if run.rows",
        ("tests/behaviour/test_search.py",),
    ),
    Fault(
        "search-repeats-an-instant",
        "the next page of a search begins with the instant of the last one again",
        "shard/search.py",
        "partition.offset_at(at + (partition.id <= number))",
        "partition.offset_at(at + 1)",
        ("tests/behaviour/test_search.py",),
    ),
    Fault(
        "seek-preview-counts-all",
        "a preview of a seek counts messages that are not settled as redelivered",
        "shard/browse.py",
        "partition.count_kept(start, partition.end) - left",
        "partition.count_kept(start, partition.end)",
        ("tests/behaviour/test_groups_and_seek.py",),
    ),
    Fault(
        "seek-dry-run-moves",
        "a dry run of a seek over HTTP moves the group",
        "server/http/actions.py",
        "    if not request.body.dry_run:\n",
        "    if True:\n",
        ("tests/http/test_http_routes.py",),
    ),
    Fault(
        "retry-refused-too-early",
        "a child counts as failed since its parent is retried after it",
        "shard/tasks/operations.py",
        "list(failures.items()) if operation.phase else []",
        "list(failures.items())",
        ("tests/behaviour/test_bulk.py",),
    ),
    Fault(
        "retry-newest-first-again",
        "children are tried again before their parents",
        "task_index/queries.py",
        "    search.is_oldest_first = is_last_pass\n",
        "",
        ("tests/behaviour/test_bulk.py",),
    ),
    Fault(
        "retry-lost-child-is-done",
        "a child that is cancelled again for another parent counts as done",
        "task_index/queries.py",
        "    search.freeze(with_cancelled_again=is_last_pass)\n",
        "    search.freeze()\n",
        ("tests/behaviour/test_bulk.py",),
    ),
    Fault(
        "retry-against-a-cancel",
        "a task that somebody cancelled during an operation comes back",
        "shard/tasks/operations.py",
        "        return withdrawn is not None and bool(withdrawn.because)\n",
        "        return True\n",
        ("tests/behaviour/test_bulk.py",),
    ),
    Fault(
        "retry-reads-all-letters",
        "the dead letter of each task that is retried is looked for among all",
        "shard/tasks/changes.py",
        '    since = 0 if died_at is None else to_micros(died_at, "died_at")\n',
        "    since = 0\n",
        _grows("tasks: retry all"),
    ),
    Fault(
        "signatures-share-everything",
        "what the healthy ones have too is shown as what the failed ones share",
        "shard/signatures.py",
        "in_failed >= COMMON and in_failed - in_healthy >= GAP",
        "in_failed >= COMMON",
        ("tests/behaviour/test_signatures.py",),
    ),
    Fault(
        "why-hides-the-rest",
        "reasons beyond the limit are not added up",
        "shard/backlog.py",
        "    if rest:\n        reasons.append",
        "    if False:\n        reasons.append",
        ("tests/behaviour/test_why_queue.py",),
    ),
    Fault(
        "survey-in-one-hold",
        "keys are counted in one hold of the lock",
        "delivery/backlog.py",
        "SLICE: Final = 20_000 ",
        "SLICE: Final = 2_000_000 ",
        _grows("keys of a queue"),
    ),
    Fault(
        "keys-count-leased",
        "messages in flight count as the backlog of their key",
        "shard/backlog.py",
        'np.bincount(inverse[codes != CODE["leased"]], minlength=count)',
        "np.bincount(inverse, minlength=count)",
        ("tests/behaviour/test_why_queue.py", "tests/behaviour/test_key_limits.py"),
    ),
    Fault(
        "workflow-on-two-pages",
        "a workflow is on each page that has a task of it",
        "task_index/workflows.py",
        "        if _newest_of(connection, workflow, queues) != number:\n",
        "        if False:\n",
        ("tests/behaviour/test_workflow_views.py",),
    ),
)
