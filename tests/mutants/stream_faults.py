"""Faults of compaction and of stages."""

from __future__ import annotations

from typing import Final

from tests.mutants.fault import Fault

LATEST = ("tests/shard/test_latest.py",)
STAGES = ("tests/streams/test_stages.py",)

STREAM_FAULTS: Final = (
    Fault(
        "compacts-what-is-unread",
        "compaction does not ask what groups have settled",
        "delivery/compaction.py",
        "            self.end = min(self.end, floors_of(core, queue, [number])[number])\n",
        "            pass\n",
        LATEST,
    ),
    Fault(
        "compacts-what-is-held",
        "compaction removes what a consumer holds",
        "delivery/compaction.py",
        ".without(bounds.held)\n",
        "\n",
        LATEST,
    ),
    Fault(
        "first-of-a-key-stays",
        "the oldest message of a key stays instead of the latest",
        "storage/compaction.py",
        "        for extent in reversed(extents):\n",
        "        for extent in extents:\n",
        LATEST,
    ),
    Fault(
        "tombstones-at-once",
        "a tombstone goes before its time",
        "storage/compaction.py",
        "            old &= table[",
        "            old | table[",
        LATEST,
    ),
    Fault(
        "removed-not-persisted",
        "a checkpoint does not know what compaction removed",
        "delivery/snapshot.py",
        "            partition.removed = Ranges.from_bytes(piece.removed[len(added)])\n",
        "            pass\n",
        LATEST,
    ),
    Fault(
        "spans-what-is-elsewhere",
        "an extent spans offsets that another file holds",
        "storage/compaction.py",
        "            may[some] = gone == gaps[some]\n",
        "            may[some] = gone <= gaps[some]\n",
        LATEST,
    ),
    Fault(
        "files-before-the-journal",
        "files are rewritten although the journal may not know that messages are removed",
        "shard/compaction.py",
        "                shard.commit.wait(sequence)\n",
        "                pass\n",
        LATEST,
    ),
    Fault(
        "state-after-the-transaction",
        "the state of a stage is not in the transaction of its output",
        "client/_sync/stage.py",
        "            operations += _pushes(self._stage.state_queue, fold.changes(), partition)\n",
        "            fold.changes()\n",
        STAGES,
    ),
    Fault(
        "acks-apart",
        "what a stage emits and what it acknowledges are two transactions",
        "client/_sync/stage.py",
        "        self._session.transact(operations)\n",
        "        for kind in (PushOperation, SettleOperation):\n"
        "            self._session.transact([step for step in operations if isinstance(step, kind)])\n",
        STAGES,
    ),
    Fault(
        "failed-state-kept",
        "a state that a function had changed before it failed is used again",
        "client/_sync/stage.py",
        "                del self._folds[partition]  # a function may have changed a state before it failed\n",
        "                pass\n",
        STAGES,
    ),
    Fault(
        "watermark-forgotten",
        "the watermark of a stage is not stored",
        "streams.py",
        "            changes.append(Message(payload=self.watermark, key=WATERMARK))\n",
        "            pass\n",
        STAGES,
    ),
    Fault(
        "late-by-batch",
        "whether a message is late depends on the batch that it came in",
        "streams.py",
        "            if start + size <= watermark:\n",
        "            if start + size <= self.watermark:\n",
        STAGES,
    ),
    Fault(
        "view-kept-by-a-frame",
        "compaction keeps a view of the states of a partition in a local variable",
        "delivery/progress.py",
        "        states = np.frombuffer(self.states[low:high], np.uint8)\n",
        "        states = np.frombuffer(self.states, np.uint8)[low:high]\n",
        ("tests/shard/test_latest.py",),
    ),
)
