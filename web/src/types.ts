// The shapes of replies that pages share.
import type { Schemas } from "./api";

export type Task = Schemas["Task"];
export type Workflow = Schemas["Workflow"];
export type Message = Schemas["MessageView"];
export type Operation = Schemas["Operation"];
export type Holder = Schemas["Holder"];
export type QueueWhy = Schemas["QueueWait"];
export type WhyReason = Schemas["WaitReason"];
export type TaskWhy = Schemas["TaskWait"];
export type QueueKeys = Schemas["KeyPage"];
export type KeyRow = Schemas["KeyBacklog"];
export type Signature = Schemas["Signature"];
export type Signatures = Schemas["SignatureReport"];
export type Tick = Schemas["NextTick"];
export type Ticks = Schemas["ScheduleTicks"];
export type Connections = Schemas["ConnectionPage"];
export type Cluster = Schemas["Cluster"];
export type TraceStep = Schemas["TraceStep"];
export type Trace = Schemas["Trace"];
export type PipelineRun = Schemas["PipelineRun"];
export type PastQueue = Schemas["PastQueue"];
export type Past = Schemas["PastState"];
export type Account = Schemas["QueueAccount"];
