"""Every operation can be called from a handle of the library, or is listed with the reason why not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import penstock
from penstock import operations as ops

SOURCE: Final = Path(penstock.__file__).parent
WRITTEN: Final = [*SOURCE.glob("client/_async/*.py"), *SOURCE.glob("tasks/_async/*.py")]
OF_WORKERS: Final = "workers call it themselves"
OF_SINKS: Final = "the Spark sink calls it, for each micro-batch"
OF_HISTORY: Final = "`penstock.history` and Spark call it, to read stored files"
REASONS: Final = {
    **dict.fromkeys((ops.FinishTasks, ops.NoteProgress, ops.HeartbeatWorker, ops.AwaitNews), OF_WORKERS),
    ops.ForgetWorker: OF_WORKERS,
    **dict.fromkeys((ops.Stage, ops.DiscardStaged, ops.CommitSink, ops.GetSinkState), OF_SINKS),
    **dict.fromkeys((ops.History, ops.ListFiles, ops.Fetch, ops.Pin, ops.Unpin, ops.GetDataKeys), OF_HISTORY),
    ops.InitProducer: "a session numbers its pushes itself",
    ops.PutPipelineRun: "pipelines report their own runs",
    ops.RewrapDataKeys: "for operators, beside the key file: HTTP and the command line",
    ops.TakeProfile: "for operators: HTTP and the command line",
}


def test_every_operation_is_called_by_a_handle_or_has_a_reason_not_to_be():
    text = "\n".join(path.read_text() for path in WRITTEN)
    called = set(re.findall(r"\bops\.(\w+)\b", text))
    unreachable = {kind.__name__ for kind in ops.TABLE.values()} - called
    assert unreachable == {kind.__name__ for kind in REASONS}
