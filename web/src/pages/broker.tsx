// The broker itself: health, storage, namespaces.
import { get, may, post, type Schemas } from "../api";
import { bytes, count, duration, plural } from "../format";
import { useInterval, useLoad, View } from "../parts/load";
import { Table } from "../parts/table";
import { ask, Badge, Card, Facts, notify, Page, type Tone } from "../parts/ui";

type Health = Schemas["Health"];
const TONES: Record<Health["status"], Tone> = { ok: "ok", spare: "info", degraded: "warning", stopping: "warning", failed: "danger" };

export default function Broker() {
  const loaded = useLoad("health", (abort) => get<Health>(["health"], {}, abort));
  useInterval(loaded.reload, 3);
  return (
    <Page
      title="Broker"
      actions={
        may("operate") ? (
          <>
            <button onClick={seal}>Seal</button>
            <button onClick={compact}>Compact</button>
          </>
        ) : null
      }
    >
      <View of={loaded}>
        {(health) => (
          <>
            {health.problems.map((problem) => (
              <p key={problem} class="notice danger" role="alert">
                {problem}
              </p>
            ))}
            <Card title="Health">
              <Facts
                items={[
                  ["State", <Badge key="state" tone={TONES[health.status]}>{health.status}</Badge>],
                  ["Version", health.version],
                  ["Running for", duration(health.uptime_ms)],
                  ["Durability", health.durability],
                  ["Queues", count(health.queues)],
                  ["Connections", count(health.connections)],
                  ["Leases that wait", count(health.waiting_leases)],
                ]}
              />
            </Card>
            <Card title="Storage">
              <Facts
                items={[
                  ["Journal", `${bytes(health.journal_bytes)} in ${plural(health.journal_files, "file")}`],
                  ["Sealed history", `${bytes(health.segment_bytes)} in ${plural(health.segment_files, "file")}`],
                  ["Free on the disk", health.disk_free_bytes === null ? "–" : bytes(health.disk_free_bytes)],
                  ["Takes pushes", health.disk_full ? <Badge key="full" tone="danger">no: the disk is full</Badge> : "yes"],
                ]}
              />
            </Card>
            {health.namespaces.length ? (
              <Card title="Namespaces" class="flush">
                <Table
                  label="Namespaces"
                  rows={health.namespaces}
                  rowKey={(namespace) => namespace.name}
                  columns={[
                    { id: "name", title: "Namespace", narrow: true, cell: (namespace) => <span class="name">{namespace.name}</span> },
                    { id: "queues", title: "Queues", isNumber: true, narrow: true, cell: (namespace) => `${namespace.usage.queues} of ${namespace.quotas.queues ?? "any"}` },
                    { id: "bytes", title: "Stored", isNumber: true, cell: (namespace) => `${bytes(namespace.usage.bytes)}${namespace.quotas.bytes === null ? "" : ` of ${bytes(namespace.quotas.bytes)}`}` },
                    { id: "connections", title: "Connections", isNumber: true, cell: (namespace) => String(namespace.usage.connections) },
                  ]}
                />
              </Card>
            ) : null}
          </>
        )}
      </View>
    </Page>
  );
}

function seal(): void {
  ask({
    title: "Seal the journal now?",
    children: <p>Full journal files become Parquet. This happens by itself; do it now to query the newest messages from files.</p>,
    command: "penstock seal",
    confirm: "Seal",
    run: async () => {
      const { sealed } = await post<Schemas["Sealed"]>(["seal"]);
      notify(`${plural(sealed, "file")} sealed`);
    },
  });
}

function compact(): void {
  ask({
    title: "Compact the history now?",
    children: <p>Files whose messages are past retention are removed or rewritten. This happens by itself.</p>,
    command: "penstock compact",
    confirm: "Compact",
    run: async () => {
      const freed = await post<Schemas["Freed"]>(["compact"]);
      notify(`${bytes(freed.bytes_freed)} freed, ${plural(freed.files_removed, "file")} removed`);
    },
  });
}
