// Work on many tasks at once: how far each operation is, and how to stop it.
import { at, call, get, type Schemas } from "../api";
import { count } from "../format";
import { useInterval, useLoad, View } from "../parts/load";
import { type Column, Table } from "../parts/table";
import { ask, Badge, Card, Empty, Page, Time, type Tone } from "../parts/ui";

type Operation = Schemas["Operation"];
const TONES: Record<string, Tone> = { running: "info", done: "ok", failed: "danger", stopped: "warning" };

function columns(reload: () => void): readonly Column<Operation>[] {
  return [
    { id: "id", title: "Operation", narrow: true, cell: (operation) => <code>{operation.operation_id.slice(0, 18)}</code> },
    { id: "action", title: "Action", narrow: true, cell: (operation) => operation.action },
    { id: "status", title: "State", narrow: true, cell: (operation) => <Badge tone={TONES[operation.status] ?? "neutral"} title={operation.error}>{operation.status}</Badge> },
    { id: "matched", title: "Matched", isNumber: true, cell: (operation) => count(operation.matched) },
    { id: "done", title: "Done", isNumber: true, narrow: true, cell: (operation) => count(operation.cancelled + operation.purged) },
    { id: "filter", title: "Filter", cell: (operation) => <code>{JSON.stringify(Object.fromEntries(Object.entries(operation.filter).filter(([, value]) => value !== null && String(value) !== "")))}</code> },
    { id: "started", title: "Started", cell: (operation) => <Time at={operation.started_at} /> },
    { id: "ended", title: "Ended", cell: (operation) => <Time at={operation.ended_at} /> },
    { id: "stop", title: "", cell: (operation) => (operation.status === "running" ? <button onClick={() => stop(operation, reload)}>Stop</button> : null) },
  ];
}

export default function Operations() {
  const loaded = useLoad("operations", (abort) => get<Schemas["Operations"]>(["operations"], {}, abort));
  useInterval(loaded.reload, 2);
  return (
    <Page title="Operations">
      <Card class="flush">
        <View of={loaded}>
          {({ operations }) =>
            operations.length ? (
              <Table label="Operations" rows={operations} columns={columns(loaded.reload)} rowKey={(operation) => operation.operation_id} />
            ) : (
              <Empty title="No operations" command="penstock operations begin cancel --status pending --task-type report">
                Work on everything that matches a filter is listed here while it runs, and for a while after.
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
    children: <p>What was done stays done.</p>,
    command: `penstock operations stop ${operation.operation_id}`,
    confirm: "Stop",
    run: async () => {
      await call("DELETE", at(["operations", operation.operation_id]));
      reload();
    },
  });
}
