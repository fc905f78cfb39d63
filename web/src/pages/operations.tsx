// Work on many things at once: how far each operation is, and how to go on with it or stop it.
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { at, call, get, post } from "../api";
import { count, duration, serverNow } from "../format";
import { subscribe } from "../live";
import { ask } from "../parts/dialog";
import { useInterval, useLoad, View } from "../parts/load";
import { type Column, Table } from "../parts/table";
import { Action, Badge, Bar, Card, Dash, Empty, Page, Time, type Tone } from "../parts/ui";
import type { Operation } from "../types";

const TONES: Record<string, Tone> = { running: "info", waiting_for_canary: "warning", done: "ok", failed: "danger", stopped: "neutral" };

function columns(reload: () => void): readonly Column<Operation>[] {
  return [
    { id: "action", title: "Action", narrow: true, cell: (operation) => <span class="name" title={operation.operation_id}>{operation.action}{operation.queue ? ` · ${operation.queue}` : ""}</span> },
    { id: "state", title: "State", narrow: true, cell: (operation) => <State operation={operation} /> },
    { id: "progress", title: "Progress", cell: (operation) => <Bar part={operation.done + operation.failed} whole={operation.matched} label={`${operation.done + operation.failed} of ${operation.matched}`} /> },
    { id: "done", title: "Done", isNumber: true, narrow: true, cell: (operation) => `${count(operation.done)} of ${operation.matched ? count(operation.matched) : "…"}` },
    { id: "failed", title: "Failed", isNumber: true, cell: (operation) => (operation.failed ? count(operation.failed) : <span class="zero">0</span>) },
    { id: "eta", title: "Left", isNumber: true, cell: (operation) => timeLeft(operation) },
    { id: "filter", title: "What", fills: true, cell: (operation) => <code title={filterText(operation)}>{filterText(operation)}</code> },
    { id: "who", title: "Who", cell: (operation) => operation.who || "–" },
    { id: "started", title: "Started", isNumber: true, cell: (operation) => <Time at={operation.started_at} /> },
    {
      id: "act",
      title: "",
      cell: (operation) => (
        <span class="row">
          {operation.status === "waiting_for_canary" ? (
            <Action class="in-row" queue={operation.queue ?? ""} onClick={() => void post(["operations", operation.operation_id, "continue"]).then(reload, reload)}>
              Continue
            </Action>
          ) : null}
          {operation.ended_at ? null : (
            <Action class="in-row" queue={operation.queue ?? ""} onClick={() => stop(operation, reload)}>
              Stop
            </Action>
          )}
        </span>
      ),
    },
  ];
}

const STATES: Record<string, string> = { waiting_for_canary: "waiting" };

/** The state of an operation, and why it ended early or what it waits for. */
function State({ operation }: { operation: Operation }) {
  return (
    <>
      <Badge tone={TONES[operation.status] ?? "neutral"}>{STATES[operation.status] ?? operation.status}</Badge>
      {operation.error ? (
        <>
          {" "}
          <span class="soft small" title={operation.error}>
            {operation.error}
          </span>
        </>
      ) : null}
    </>
  );
}

function timeLeft(operation: Operation) {
  if (operation.expires_at) return <>stops <Time at={operation.expires_at} /></>;
  const through = operation.done + operation.failed;
  const spent = serverNow() - Date.parse(operation.started_at);
  if (operation.status !== "running" || !through || !operation.matched) return <Dash />;
  return duration(((operation.matched - through) * spent) / through);
}

const PAGING: ReadonlySet<string> = new Set(["limit", "cursor", "from_offset"]); // of a listing, not of what is meant

function filterText(operation: Operation): string {
  const filter = operation.filter ?? operation.letters ?? operation.messages ?? {};
  const set = Object.entries(filter).filter(([name, value]) => !PAGING.has(name) && value !== null && value !== "" && !(Array.isArray(value) && !value.length));
  return set.map(([name, value]) => `${name}:${typeof value === "string" ? value : JSON.stringify(value)}`).join(" ") + (operation.target ? ` → ${operation.target}` : "") || "everything";
}

/** The list with what events changed since; those that began since come first. */
function merged(operations: Operation[], changed: ReadonlyMap<string, Operation>): Operation[] {
  const listed = new Set(operations.map((operation) => operation.operation_id));
  const begun = [...changed.values()].filter((operation) => !listed.has(operation.operation_id));
  return [...begun, ...operations.map((operation) => changed.get(operation.operation_id) ?? operation)];
}

export default function Operations() {
  const changed = useSignal<ReadonlyMap<string, Operation>>(new Map());
  const loaded = useLoad("operations", async (abort) => {
    const list = await get<{ operations: Operation[] }>(["operations"], {}, abort);
    changed.value = new Map();
    return list;
  });
  useInterval(loaded.reload, 10);
  useEffect(
    () =>
      subscribe({ topics: ["operations"], interval_ms: 500 }, (event) => {
        const operations = (event["operations"] ?? []) as Operation[];
        changed.value = new Map([...changed.value, ...operations.map((item) => [item.operation_id, item] as const)]);
      }, loaded.reload),
    [],
  );
  return (
    <Page title="Operations">
      <Card class="flush">
        <View of={loaded}>
          {({ operations }) =>
            operations.length || changed.value.size ? (
              <Table label="Operations" rows={merged(operations, changed.value)} columns={columns(loaded.reload)} rowKey={(operation) => operation.operation_id} />
            ) : (
              <Empty title="No operations" command="penstock operations begin cancel --status pending --type report">
                Bulk operations such as redrives, retries and replays are listed here while they run, and for some time afterwards. Start one from Tasks or Dead letters.
              </Empty>
            )
          }
        </View>
      </Card>
    </Page>
  );
}

function stop(operation: Operation, reload: () => void): void {
  ask({
    title: "Stop this operation?",
    children: <p>What was done stays done: {count(operation.done)} of {count(operation.matched)}.</p>,
    command: `penstock operations stop ${operation.operation_id}`,
    confirm: "Stop",
    run: async () => {
      await call("DELETE", at(["operations", operation.operation_id]));
      reload();
    },
  });
}
