"""gRPC is written out, since the numbers of its fields are a promise; here it is compared with the table."""

from __future__ import annotations

from typing import Any, Final

import pytest

from penstock import operations as ops
from penstock.server.grpc.generated import queues_pb2, tasks_pb2

# For each operation the service and the method that do it.
CALLS: Final[dict[Any, tuple[str, str]]] = {
    **{
        operation: ("Queues", method)
        for operation, method in {
            ops.Queues: "ListQueues",
            ops.CreateQueue: "CreateQueue",
            ops.UpdateQueue: "UpdateQueue",
            ops.DeleteQueue: "DeleteQueue",
            ops.GetOptions: "GetQueue",
            ops.Stats: "GetStats",
            ops.Leases: "ListLeases",
            ops.Pause: "Pause",
            ops.Resume: "Resume",
            ops.Pauses: "ListPauses",
            ops.PauseBroker: "PauseBroker",
            ops.ResumeBroker: "ResumeBroker",
            ops.PauseNamespace: "PauseNamespace",
            ops.ResumeNamespace: "ResumeNamespace",
            ops.Purge: "Purge",
            ops.CompactQueue: "CompactQueue",
            ops.DeadLetters: "ListDeadLetters",
            ops.Redrive: "Redrive",
            ops.PurgeDeadLetters: "PurgeDeadLetters",
            ops.ReplaceLetters: "ReplaceDeadLetters",
            ops.Read: "Read",
            ops.Peek: "Peek",
            ops.Latest: "GetLatest",
            ops.Delayed: "ListDelayed",
            ops.Cancel: "Cancel",
            ops.Why: "Why",
            ops.WhyQueue: "WhyQueue",
            ops.MessageKeys: "ListKeys",
            ops.Account: "GetAccount",
            ops.GetMessage: "GetMessage",
            ops.Events: "ListMessageEvents",
            ops.FindMessages: "FindMessages",
            ops.SearchMessages: "SearchMessages",
            ops.Groups: "ListGroups",
            ops.CreateGroup: "CreateGroup",
            ops.DeleteGroup: "DeleteGroup",
            ops.Seek: "Seek",
            ops.PreviewSeek: "PreviewSeek",
            ops.Latest: "GetLatest",
            ops.Members: "ListMembers",
            ops.Join: "Join",
            ops.Heartbeat: "Heartbeat",
            ops.Leave: "Leave",
        }.items()
    },
    **{
        operation: ("Tasks", method)
        for operation, method in {
            ops.WhyTask: "WhyTask",
            ops.SubmitTasks: "SubmitTasks",
            ops.FinishTasks: "FinishTasks",
            ops.FindTask: "GetTaskStatus",
            ops.WaitTask: "GetTaskStatus",
            ops.ListTasks: "ListTasks",
            ops.CancelTask: "CancelTask",
            ops.RetryTask: "RetryTask",
            ops.BeginOperation: "BeginOperation",
            ops.RedriveLetters: "RedriveLetters",
            ops.DiscardLetters: "DiscardLetters",
            ops.ReplayMessages: "ReplayMessages",
            ops.ContinueOperation: "ContinueOperation",
            ops.FindOperation: "GetOperation",
            ops.ListOperations: "ListOperations",
            ops.StopOperation: "StopOperation",
            ops.HeartbeatWorker: "HeartbeatWorker",
            ops.ForgetWorker: "ForgetWorker",
            ops.Workers: "ListWorkers",
            ops.QuietWorker: "QuietWorker",
            ops.ResumeWorker: "ResumeWorker",
            ops.StopWorker: "StopWorker",
            ops.RunSchedule: "RunSchedule",
            ops.Ticks: "ListTicks",
            ops.CountTasks: "CountTasks",
            ops.SetSchedule: "SetSchedule",
            ops.DeleteSchedule: "DeleteSchedule",
            ops.Schedules: "ListSchedules",
        }.items()
    },
}
# What gRPC does not offer, and why.
LEFT_OUT: Final = {
    ops.NoteProgress: "progress travels with HeartbeatWorker",
    ops.AwaitNews: "news travel with HeartbeatWorker",
    **dict.fromkeys((ops.LetterSignatures, ops.AllSignatures), "for operators: HTTP, the SDK and the command line"),
    **dict.fromkeys((ops.ListWorkflows, ops.FindWorkflow), "ListTasks finds the tasks of a workflow"),
    ops.TakeProfile: "for operators: HTTP and the command line",
    ops.SuggestTasks: "for who types a search: HTTP, the SDK and the command line",
    ops.Info: "health and reflection say who answers",
    ops.Sync: "for operators: HTTP and the command line",
    ops.Seal: "for operators: HTTP and the command line",
    **dict.fromkeys((ops.StartBackup, ops.GetBackup), "for operators: HTTP and the command line"),
    ops.Compact: "for operators: HTTP and the command line",
    ops.TakeProfile: "for operators: HTTP and the command line",
    **dict.fromkeys(
        (
            *(ops.ListConnections, ops.EndConnection, ops.Cluster, ops.GetTrace),
            *(ops.Pipelines, ops.GetPipelineRun, ops.PutPipelineRun, ops.GetPipelineReport),
        ),
        "for operators: HTTP and the command line",
    ),
    **dict.fromkeys((ops.GetMetrics, ops.GetSeries), "metrics and their history: HTTP, the SDK and the command line"),
    **dict.fromkeys((ops.ListAudit, ops.VerifyAudit), "for operators: HTTP and the command line"),
    **dict.fromkeys(
        (ops.GetDataKeys, ops.ListDataKeys, ops.RotateDataKey, ops.EraseDataKeys, ops.RewrapDataKeys),
        "data keys: HTTP, the SDK, Spark and the command line",
    ),
    **dict.fromkeys(
        (
            *(ops.CreateKey, ops.ListKeys, ops.RotateKey, ops.RevokeKey, ops.SetUser, ops.ListUsers, ops.DeleteUser),
            *(ops.SetRole, ops.ListRoles, ops.DeleteRole, ops.SetNamespace, ops.ListNamespaces, ops.DeleteNamespace),
            ops.Me,
        ),
        "who may do what is managed over HTTP and TCP, and on the command line",
    ),
    ops.InitProducer: "gRPC pushes are not numbered",
    **dict.fromkeys((ops.History, ops.ListFiles, ops.Fetch, ops.Pin, ops.Unpin), "stored files: the SDK and Spark"),
    **dict.fromkeys((ops.Stage, ops.DiscardStaged, ops.CommitSink, ops.GetSinkState), "sinks: the SDK and Spark"),
}
# Fields that are spelt otherwise.
RENAMED: Final = {
    (ops.UpdateQueue, "changes"): "options",
    (ops.Redrive, "rate"): "per_second",
    (ops.ReplaceLetters, "batch"): "messages",
    (ops.WaitTask, "seconds"): "wait_ms",
    (ops.SetSchedule, "schedule"): "name",  # its fields stand beside each other
}


def request_of(service: str, method: str) -> Any:
    module = queues_pb2 if service == "Queues" else tasks_pb2
    return module.DESCRIPTOR.services_by_name[service].methods_by_name[method].input_type


def test_every_operation_has_a_call_or_a_reason_to_have_none():
    assert set(ops.TABLE.values()) == CALLS.keys() | LEFT_OUT.keys()
    assert not CALLS.keys() & LEFT_OUT.keys()


@pytest.mark.parametrize("operation", CALLS, ids=lambda operation: operation.__name__)
def test_every_argument_of_an_operation_is_a_field_of_its_request(operation):
    fields = {field.name for field in request_of(*CALLS[operation]).fields}
    for name in operation.__struct_fields__:
        in_json = name.removesuffix("_seconds") + "_ms" if name.endswith("_seconds") else name
        assert RENAMED.get((operation, name), in_json) in fields, f"{operation.__name__}.{name}"
