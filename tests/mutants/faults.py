"""The faults, and the tests that catch them."""

from __future__ import annotations

from typing import Final, NamedTuple


class Fault(NamedTuple):
    """`old` stands in `path` (below src/penstock) exactly once, and becomes `new`."""

    name: str
    what: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]


# Those that every run of the tests plants: quick ones, of different kinds.
SAMPLE: Final = frozenset(("no-fdatasync", "bad-crc-accepted", "attempts-off-by-one", "no-run-id", "any-host"))

FAULTS: Final = (
    # Storage.
    Fault(
        "no-fdatasync",
        "the journal is written and never synced",
        "journal/file.py",
        "                file.sync()\n            except",
        "                pass\n            except",
        ("tests/journal/test_journal.py", "tests/test_crash_points.py"),
    ),
    Fault(
        "confirm-before-sync",
        "a push is confirmed when it is written",
        "journal/commit.py",
        "        if self.journal.durable_sequence >= sequence:\n            return\n",
        "        if self.journal.sequence >= sequence:\n            return\n",
        ("tests/journal/test_commit.py", "tests/test_crash_points.py"),
    ),
    Fault(
        "no-directory-sync",
        "a renamed file is not synced by name",
        "storage/disk.py",
        "    disk.sync_directory(os.path.dirname(name))\n",
        "",
        (
            "tests/storage/test_disk.py",
            "tests/storage/test_checkpoint.py",
            "tests/storage/test_manifest.py",
            "tests/storage/test_seal_crashes.py",
        ),
    ),
    Fault(
        "bad-crc-accepted",
        "frames are not held to their checksums",
        "storage/frames.py",
        "    return crc32c(data[start : start + length], seed ^ length) == crc\n",
        "    return crc32c(data[start : start + length], seed ^ length) >= 0\n",
        ("tests/journal/test_frames.py",),
    ),
    Fault(
        "carry-on-after-eio",
        "a journal whose write failed goes on",
        "journal/file.py",
        "        self._refusing = True\n        if self.failed is None:",
        "        if self.failed is None:",
        ("tests/journal/test_journal.py",),
    ),
    Fault(
        "short-write-ignored",
        "half of a write counts as all of it",
        "storage/disk.py",
        "            if os.pwrite(self._fd, data, position) != len(data):",
        "            if os.pwrite(self._fd, data, position) < 0:",
        ("tests/storage/test_disk.py",),
    ),
    Fault(
        "enospc-swallowed",
        "a full disk at rotation is not noticed",
        "journal/file.py",
        "            self.disk_full = is_short or not has_reserve\n",
        "            self.disk_full = False\n",
        ("tests/storage/test_full_disk.py",),
    ),
    Fault(
        "removed-before-checkpoint",
        "a sealed journal file goes before the checkpoint past it",
        "shard/upkeep.py",
        "                self._checkpointer.save()\n                self.before_removal",
        "                self.before_removal",
        ("tests/test_reopen.py", "tests/storage/test_seal_crashes.py"),
    ),
    # Delivery.
    Fault(
        "no-nonce-check",
        "a receipt settles whatever lease holds its message",
        "delivery/settle.py",
        "        lease = core.leases.get(receipt.nonce)\n        place = lease.find",
        "        lease = next(iter(core.leases.values()), None)\n        place = lease.find",
        ("tests/behaviour/test_settling.py", "tests/behaviour/test_leasing.py"),
    ),
    Fault(
        "attempts-off-by-one",
        "a message has one attempt more than it may",
        "delivery/settle.py",
        "        if take.attempt_of(index) - lost >= (own or queue.options.max_attempts):",
        "        if take.attempt_of(index) - lost > (own or queue.options.max_attempts):",
        ("tests/behaviour/test_retries.py",),
    ),
    Fault(
        "dead-letter-twice",
        "a message that dies has two dead letters",
        "delivery/settle.py",
        "    for letters in batches:\n",
        "    for letters in [*batches, *batches]:\n",
        ("tests/behaviour/test_dead_letters.py",),
    ),
    Fault(
        "dead-letter-lost",
        "a message that dies is gone",
        "delivery/settle.py",
        "    for letters in batches:\n",
        "    for letters in batches[1:]:\n",
        ("tests/behaviour/test_dead_letters.py",),
    ),
    Fault(
        "order-lost-on-retry",
        "a retry lets others of its key go before it",
        "delivery/keys.py",
        "    if key and key in parked:\n        if offset not in",
        "    if key and key in parked and progress.attempt_next(offset) > 1:\n        if offset not in",
        ("tests/behaviour/test_ordering.py", "tests/delivery/test_model.py"),
    ),
    Fault(
        "one-token-too-many",
        "a rate limit lets one more through",
        "delivery/rate_limits.py",
        "        return self._level(who, now) // TOKEN\n",
        "        return self._level(who, now) // TOKEN + 1\n",
        ("tests/delivery/test_buckets.py", "tests/behaviour/test_rates.py"),
    ),
    Fault(
        "backoff-ignored",
        "a retry does not wait",
        "delivery/settle.py",
        "    return now + backoff(queue, attempt, rng)\n",
        "    return now\n",
        ("tests/behaviour/test_retries.py",),
    ),
    Fault(
        "ack-not-persisted",
        "acknowledged work is forgotten by a restart",
        "shard/engine.py",
        "        data, batch = encode_apart(entries)  # may refuse: nothing has changed yet\n",
        "        data, batch = encode_apart([e for e in entries if getattr(e, 'outcome', 0) != Outcome.ACKED])\n",
        ("tests/behaviour/test_traps.py", "tests/behaviour/test_restarts.py"),
    ),
    Fault(
        "half-a-frame-replayed",
        "of a frame with several entries the last is forgotten",
        "shard/opening.py",
        "            core.apply(decode(data), sequence)\n",
        "            core.apply([*decode(data)][: -1] or [*decode(data)], sequence)\n",
        ("tests/test_reopen.py", "tests/test_crash_points.py"),
    ),
    Fault(
        "offset-reused",
        "a batch begins at the offset of the last message",
        "delivery/push.py",
        "queue.partitions[0].end if ahead is None",
        "max(0, queue.partitions[0].end - 1) if ahead is None",
        ("tests/behaviour/test_pushing.py",),
    ),
    Fault(
        "interrupted-uncounted",
        "an attempt that was lost with the process does not count",
        "delivery/upkeep.py",
        "                    how = Settling(Outcome.INTERRUPTED, delay_seconds=0,",
        "                    how = Settling(Outcome.RELEASED, delay_seconds=0,",
        ("tests/behaviour/test_restarts.py", "tests/behaviour/test_traps.py"),
    ),
    Fault(
        "early-by-a-second",
        "a delayed message comes a second early",
        "delivery/timers.py",
        "        self._slot(-(-due >> TICK_BITS)).singles.append((due, offset, owner))\n",
        "        due -= 1_000_000\n        self._slot(-(-due >> TICK_BITS)).singles.append((due, offset, owner))\n",
        ("tests/behaviour/test_delays.py", "tests/behaviour/test_retries.py"),
    ),
    # Calls that are interrupted, and processes that are forked.
    Fault(
        "no-poison-flag",
        "after an exception in the middle of a change the shard goes on",
        "shard/engine.py",
        "        if self.is_closed or self.changing:\n",
        "        if self.is_closed:\n",
        ("tests/shard/test_interrupts.py",),
    ),
    Fault(
        "dedup-not-persisted",
        "keys that were pushed before a checkpoint are forgotten by a restart",
        "shard/checkpoints.py",
        "            hot = dict(queue.dedup.hot) if queue.dedup is not None else {}\n",
        "            hot = {}\n",
        ("tests/test_reopen.py", "tests/delivery/test_dedup_window.py"),
    ),
    Fault(
        "no-progress",
        "a lease that finds no extent leaves its cursor where it was",
        "delivery/selection.py",
        "    set_cursor(progress, priority, max(cursor, end))\n",
        "    set_cursor(progress, priority, cursor)\n",
        ("tests/delivery/test_selection.py::test_a_lease_ends_where_retention_removed_what_nobody_had_leased",),
    ),
    Fault(
        "misspelt-group-made",
        "a lease of a group that is not there makes it",
        "delivery/admin.py",
        "    if start is None or name in queue.group_ids:\n",
        '    start = start or "earliest"\n    if name in queue.group_ids:\n',
        ("tests/behaviour/test_groups_and_seek.py",),
    ),
    Fault(
        "cut-journal-is-sound",
        "a last file that is shorter than it was is not noticed",
        "storage/journal_files.py",
        "        return first_sequence == self.first_sequence and size < self.file_bytes and size != end_position\n",
        "        return False\n",
        ("tests/journal/test_highwater.py",),
    ),
    Fault(
        "lost-attempts-count",
        "attempts lost with a worker are not counted",
        "delivery/progress.py",
        "                attempts[offset].lost += 1\n",
        "                attempts[offset].lost += 0\n",
        ("tests/shard/test_tasks_lost.py",),
    ),
    Fault(
        "sinks-by-name-alone",
        "sinks of one name in two queues are one",
        "delivery/sinks.py",
        "        place = entry.queue, entry.sink\n",
        "        place = 0, entry.sink\n",
        ("tests/shard/test_sinks.py",),
    ),
    Fault(
        "no-check-after-a-fork",
        "a child goes on with the handles of its parent",
        "forks.py",
        "        vars(handle).clear()\n        handle.__class__ = Inherited\n",
        "",
        ("tests/shard/test_forks.py",),
    ),
    # Upkeep and sealing.
    Fault(
        "upkeep-stops",
        "an unexpected error ends a background role for good",
        "shard/upkeep.py",
        "                if self._is_over():\n                    # Callers",
        "                if True:\n                    # Callers",
        ("tests/shard/test_upkeep.py",),
    ),
    # The wire and the edge.
    Fault(
        "run-inferred-from-its-ends",
        "offsets whose ends fit are taken for consecutive",
        "model.py",
        "    return run if offsets[-1] == run[-1] and offsets == list(run) else offsets\n",
        "    return run if offsets[-1] == run[-1] else offsets\n",
        ("tests/batch/test_columns.py", "tests/wire/test_wire.py"),
    ),
    Fault(
        "nan-becomes-null",
        "NaN in a payload is stored as null",
        "batch/fields.py",
        "    if isinstance(value, float) and not isfinite(value):\n",
        "    if isinstance(value, float) and value is None:\n",
        ("tests/behaviour/test_bad_input.py",),
    ),
    Fault(
        "half-a-body-is-run",
        "the frames of a body are run although the last of them is cut short",
        "server/http/frames.py",
        "        if position < start or position > end:\n",
        "        if position < start:\n",
        ("tests/http/test_http_frames.py",),
    ),
    Fault(
        "any-host",
        "a request may name any host",
        "server/http/origins.py",
        '        if name in self._hosts or name.endswith(b".localhost") or _is_address(name):\n',
        "        if name:\n",
        ("tests/http/test_http_browsers.py",),
    ),
    # Workers.
    Fault(
        "no-run-id",
        "what a process sends counts for whatever it runs by then",
        "worker/processes.py",
        "            if frame.run != self._run:\n",
        "            if frame.run < 0:\n",
        ("tests/worker/test_worker_children.py",),
    ),
    Fault(
        "lease-deadline-ignored",
        "a worker begins a task whose lease is over",
        "worker/executors.py",
        "        return run.lease.holds(self._clock.monotonic())\n",
        "        return True\n",
        ("tests/worker/test_worker_late.py",),
    ),
    Fault(
        "child-begins-too-late",
        "a process that stood still begins a task whose lease is over",
        "worker/child.py",
        "    if SystemClock().monotonic() >= job.sure_until:\n",
        "    if SystemClock().monotonic() < 0:\n",
        ("tests/worker/test_worker_late.py", "tests/worker/test_worker_children.py"),
    ),
    # Spark.
    Fault(
        "payloads-judged-together",
        "a payload may end in its neighbour",
        "spark/json_payload.py",
        '            if not pc.all(pc.and_(pc.starts_with(lines, "{"), pc.ends_with(lines, "}"))).as_py():\n',
        '            if not pc.all(pc.starts_with(lines, "{")).as_py():\n',
        ("tests/spark_units/test_spark_json.py",),
    ),
)
