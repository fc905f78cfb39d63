"""Faults of a shard in PostgreSQL, and the tests that catch them."""

from __future__ import annotations

from typing import Final

from tests.mutants.fault import Fault

ZOMBIES: Final = "tests/postgres/test_zombies.py"
UNKNOWN: Final = "tests/postgres/test_unknown_commits.py"
CLOCK: Final = "tests/postgres/test_store_clock.py"
INTERRUPTED: Final = "tests/postgres/test_takeover_interrupted.py"
LOOP: Final = "tests/postgres/test_loop_commits.py"

POSTGRES_FAULTS: Final = (
    Fault(
        "append-without-term",
        "a former owner can still append",
        "postgres/journal.py",
        "SELECT 1 FROM penstock.shards WHERE shard = $1 AND term = $2 FOR SHARE",
        "SELECT 1 FROM penstock.shards WHERE shard = $1 AND term >= $2 FOR SHARE",
        (f"{ZOMBIES}::test_a_former_owner_appends_nothing_from_the_moment_of_the_takeover",),
    ),
    Fault(
        "append-without-answer",
        "an append that stored no row, because the term is over, counts as done",
        "postgres/journal.py",
        "        if not changed:\n            raise self._fenced.deposed()\n",
        "",
        (
            f"{ZOMBIES}::test_a_former_owner_appends_nothing_from_the_moment_of_the_takeover",
            f"{LOOP}::test_a_loop_whose_term_is_over_confirms_nothing",
        ),
    ),
    Fault(
        "swap-without-term",
        "a former owner can still swap a manifest and write files",
        "postgres/links.py",
        "            if link.one(FENCE, self.shard, self.term) is None:\n                raise self.deposed()\n",
        "",
        (f"{ZOMBIES}::test_a_former_owner_changes_nothing",),
    ),
    Fault(
        "sweep-without-term",
        "a former owner can still remove files",
        "postgres/disk.py",
        "        if not self._change(name, remove):\n",
        "        if not self._unfenced(remove):\n",
        (f"{ZOMBIES}::test_a_former_owner_changes_nothing",),
    ),
    Fault(
        "read-back-without-commit",
        "a row that was read back is believed at once",
        "postgres/journal.py",
        "        if not link.execute(RENEW, self._fenced.shard, self._fenced.term):\n"
        "            raise self._fenced.deposed()\n",
        "",
        (f"{UNKNOWN}::test_a_row_that_was_read_back_is_believed_only_after_a_synchronous_commit",),
    ),
    Fault(
        "unreplicated-believed",
        "a commit that no standby has confirmed counts as done",
        "postgres/link.py",
        "            self._warned = True\n",
        "            pass\n",
        (f"{UNKNOWN}::test_a_warning_that_a_commit_was_not_replicated_is_no_success",),
    ),
    Fault(
        "commit-cancelled",
        "a commit that takes too long is cancelled",
        "postgres/link.py",
        "        self.close()\n        return StoreUnavailable(",
        "        if self.is_open:\n            self._conn.get_cancel().cancel()\n"
        "        self.close()\n        return StoreUnavailable(",
        (f"{UNKNOWN}::test_a_commit_that_takes_too_long_is_given_up_and_never_cancelled",),
    ),
    Fault(
        "lease-not-waited-for",
        "a lease is handed out before its frame is durable",
        "shard/engine.py",
        '        return sequence if level == "fsync" or self.is_remote else 0\n\n    def commit_freeing',
        '        return sequence if level == "fsync" else 0\n\n    def commit_freeing',
        (f"{UNKNOWN}::test_a_lease_waits_for_its_own_frame_and_its_time_starts_with_the_reply",),
    ),
    Fault(
        "name-without-term",
        "sealed files of two owners may have the same name",
        "storage/segment_files.py",
        "-{next(self._numbers)}-{self.term}.parquet",
        "-{next(self._numbers)}-1.parquet",
        (f"{ZOMBIES}::test_a_sealed_file_carries_the_term_of_who_wrote_it",),
    ),
    Fault(
        "served-before-opened",
        "an owner serves before it has said durably that it is one",
        "shard/opening.py",
        "            shard.upkeep_commit(entries)\n\n\ndef _latest",
        "            pass\n\n\ndef _latest",
        (f"{ZOMBIES}::test_a_new_owner_has_said_so_durably_before_it_serves",),
    ),
    Fault(
        "frames-dropped-before-the-checkpoint",
        "frames are removed before a checkpoint covers them",
        "shard/upkeep.py",
        "                self._checkpointer.save()\n                self.before_removal(file.end_sequence - 1)\n"
        "                self._shard.journal.remove_file(file)\n",
        "                self._shard.journal.remove_file(file)\n                self._checkpointer.save()\n"
        "                self.before_removal(file.end_sequence - 1)\n",
        (f"{ZOMBIES}::test_frames_stay_until_a_checkpoint_covers_them",),
    ),
    Fault(
        "stall-burns-leases",
        "leases run out while the store does not answer",
        "postgres/clock.py",
        "        return now + self._ahead_us, monotonic - self.stalled_us()\n",
        "        return now + self._ahead_us, monotonic\n",
        (f"{UNKNOWN}::test_no_lease_runs_out_while_a_commit_stalls",),
    ),
    Fault(
        "rotation-stops-leases",
        "after a rotation no lease runs out until the next commit",
        "postgres/journal.py",
        "        self.stalls.commit_answered()\n        self._full.append(full)\n",
        "        self._full.append(full)\n",
        (f"{UNKNOWN}::test_a_lease_runs_out_after_a_rotation_though_nothing_else_is_committed",),
    ),
    Fault(
        "clock-of-the-node",
        "the time of a shard is the wall clock of its node",
        "postgres/store.py",
        "StoreClock(SystemClock(self._server_time.wall_ns))",
        "StoreClock(SystemClock())",
        (f"{CLOCK}::test_a_new_owner_whose_clock_is_hours_wrong_uses_the_time_of_the_server",),
    ),
    Fault(
        "takeover-not-given-up",
        "a node that is stopped while its takeover waits for the store never ends",
        "server/node.py",
        "                store.links.hurry()\n",
        "                pass\n",
        (f"{INTERRUPTED}::test_a_node_that_is_stopped_while_its_takeover_waits_for_the_store_ends",),
    ),
    Fault(
        "stale-answers",
        "an owner that may be deposed answers from memory",
        "postgres/clock.py",
        "        return self.is_watched and self._clock.monotonic() - self._alive_at > STALE_US\n",
        "        return False\n",
        (f"{UNKNOWN}::test_an_owner_that_heard_nothing_of_the_store_answers_nothing_and_takes_no_pushes",),
    ),
    Fault(
        "name-taken-back",
        "a node takes its name back from another process, and both depose each other",
        "postgres/membership.py",
        "            if other is not None and other[0] and self._moves(link, other[1]):\n",
        "            if False:\n",
        ("tests/postgres/test_nodes.py::test_a_second_process_with_the_name_of_a_node_is_refused",),
    ),
)
