// The broker itself: health, storage, namespaces, who is connected, and the nodes beside it.
import { at, call, get, post, type Schemas } from "../api";
import { bytes, count, duration, plural } from "../format";
import { ask, notify } from "../parts/dialog";
import { useInterval, useLoad, View } from "../parts/load";
import { type Column, Table } from "../parts/table";
import { Action, Badge, Card, Dash, Empty, Facts, Page, Stats, Tabs, Time, type Tone } from "../parts/ui";
import { link, path } from "../router";
import type { Cluster, Connections } from "../types";

type Health = Schemas["Health"];
const TONES: Record<string, Tone> = { ok: "ok", alive: "ok", spare: "info", draining: "warning", degraded: "warning", stopping: "warning", away: "warning", failed: "danger", dead: "danger" };

export default function Broker() {
  const [, tab = "health"] = path.value;
  const tabs = [
    { id: "health", title: "Health", href: link(["broker"]) },
    { id: "connections", title: "Connections", href: link(["broker", "connections"]) },
    { id: "cluster", title: "Cluster", href: link(["broker", "cluster"]) },
  ];
  return (
    <Page
      title="Broker"
      actions={
        <>
          <Action right="operate" onClick={seal}>
            Seal
          </Action>
          <Action right="operate" onClick={compact}>
            Compact
          </Action>
        </>
      }
    >
      <Tabs tabs={tabs} current={tab} label="Parts of the broker" />
      {tab === "health" ? <HealthTab /> : null}
      {tab === "connections" ? <ConnectionsTab /> : null}
      {tab === "cluster" ? <ClusterTab /> : null}
    </Page>
  );
}

function HealthTab() {
  const loaded = useLoad("health", (abort) => get<Health>(["health"], {}, abort));
  useInterval(loaded.reload, 3);
  return (
    <View of={loaded}>
      {(health) => (
        <>
          {health.problems.map((problem) => (
            <p key={problem} class="notice danger" role="alert">
              {problem}
            </p>
          ))}
          <Stats
            items={[
              { name: "Queues", value: count(health.queues) },
              { name: "Connections", value: count(health.connections) },
              { name: "Waiting consumers", value: count(health.waiting_leases) },
              { name: "Journal", value: bytes(health.journal_bytes) },
              { name: "Sealed history", value: bytes(health.segment_bytes) },
              { name: "Free disk space", value: health.disk_free_bytes === null ? "–" : bytes(health.disk_free_bytes), tone: health.disk_full ? "danger" : undefined },
            ]}
          />
          <div class="columns">
            <Card title="Health">
              <Facts
                items={[
                  ["State", <Badge key="state" tone={TONES[health.status] ?? "neutral"}>{health.status}</Badge>],
                  ["Version", health.version],
                  ["Running for", duration(health.uptime_ms)],
                  ["Durability", health.durability],
                ]}
              />
            </Card>
            <Card title="Storage">
              <Facts
                items={[
                  ["Journal files", count(health.journal_files)],
                  ["Sealed files", count(health.segment_files)],
                  ["Accepts pushes", health.disk_full ? <Badge key="full" tone="danger">no: the disk is full</Badge> : "yes"],
                ]}
              />
            </Card>
          </div>
          {health.namespaces.length ? (
            <Card title="Namespaces" class="flush">
              <Table
                label="Namespaces"
                rows={health.namespaces}
                rowKey={(namespace) => namespace.name}
                columns={[
                  { id: "name", title: "Namespace", narrow: true, fills: true, cell: (namespace) => <span class="name">{namespace.name}</span> },
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
  );
}

type Connection = Connections["connections"][number];

/** The name of a client; of a browser, which sends a long one, its kind. */
function clientName(client: string): string {
  const browser = client.match(/(Firefox|Edg|Chrome|Version)\/(\d+)/);
  if (!client.startsWith("Mozilla/") || !browser) return client || "unnamed";
  return `${{ Edg: "Edge", Version: "Safari" }[browser[1] ?? ""] ?? browser[1]} ${browser[2]}`;
}

function ConnectionsTab() {
  const loaded = useLoad("connections", (abort) => get<Connections>(["connections"], { limit: 1000 }, abort));
  useInterval(loaded.reload, 3);
  const columns: readonly Column<Connection>[] = [
    { id: "client", title: "Client", narrow: true, cell: (row) => <span class="name" title={row.client}>{clientName(row.client)}</span> },
    { id: "principal", title: "Who", narrow: true, cell: (row) => row.principal || "nobody" },
    { id: "protocol", title: "Protocol", sort: (row) => row.protocol, cell: (row) => <Badge plain>{row.protocol}</Badge> },
    { id: "address", title: "Address", fills: true, cell: (row) => <code>{row.address}</code> },
    { id: "streams", title: "Streams", isNumber: true, hint: "Deliveries and event subscriptions", sort: (row) => row.streams, cell: (row) => count(row.streams) },
    { id: "flight", title: "In flight", isNumber: true, hint: "Requests without a reply yet", sort: (row) => row.in_flight, cell: (row) => count(row.in_flight) },
    { id: "since", title: "Since", isNumber: true, sort: (row) => row.since, cell: (row) => <Time at={row.since} /> },
    { id: "end", title: "", cell: (row) => <Action class="in-row" right="operate" onClick={() => disconnect(row, loaded.reload)}>Close</Action> },
  ];
  return (
    <Card class="flush">
      <View of={loaded}>
        {({ connections, total }) =>
          connections.length ? (
            <>
              <Table label="Connections" rows={connections} columns={columns} rowKey={(row) => row.connection_id} total={total} />
              <div class="table-foot">{plural(total, "connection")}</div>
            </>
          ) : (
            <Empty title="Nobody is connected" command="penstock worker myapp:app">
              Clients over TCP, HTTP, WebSocket and gRPC are listed here while they are connected.
            </Empty>
          )
        }
      </View>
    </Card>
  );
}

function ClusterTab() {
  const loaded = useLoad("cluster", (abort) => get<Cluster>(["cluster"], {}, abort));
  useInterval(loaded.reload, 2);
  return (
    <View of={loaded}>
      {(cluster) => (
        <>
          {cluster.problem ? (
            <p class="notice danger" role="alert">
              {cluster.problem}
            </p>
          ) : null}
          <Card title="Store">
            <Facts
              items={[
                ["Kind", cluster.store],
                ["State", <Badge key="state" tone={TONES[cluster.status] ?? "neutral"}>{cluster.status}</Badge>],
                ["Where", cluster.location ? <code key="where">{cluster.location}</code> : "–"],
                ["This node", cluster.node || "–"],
                ["Owner", cluster.owner || "–"],
                ["Term", count(cluster.term)],
              ]}
            />
          </Card>
          <Card title={plural(cluster.nodes.length, "node")} class="flush">
            <Table
              label="Nodes"
              rows={cluster.nodes}
              rowKey={(node) => node.node}
              columns={[
                { id: "node", title: "Node", narrow: true, cell: (node) => <span class="name">{node.node || "this one"}</span> },
                { id: "role", title: "Role", narrow: true, cell: (node) => <Badge plain tone={node.role === "owner" ? "info" : "neutral"}>{node.role}</Badge> },
                { id: "state", title: "State", narrow: true, cell: (node) => <Badge tone={TONES[node.status] ?? "neutral"}>{node.status}</Badge> },
                { id: "address", title: "Address", fills: true, cell: (node) => <code>{node.address}</code> },
                { id: "heartbeat", title: "Heartbeat", isNumber: true, cell: (node) => node.heartbeat_age_ms === null ? <Dash /> : `${duration(node.heartbeat_age_ms)} ago` },
                { id: "sequence", title: "Durable up to", isNumber: true, cell: (node) => (node.durable_sequence === null ? <Dash /> : count(node.durable_sequence)) },
                { id: "lag", title: "Behind", isNumber: true, cell: (node) => (node.lag === null ? <Dash /> : count(node.lag)) },
              ]}
            />
          </Card>
          {cluster.is_shared ? null : <p class="soft">This broker keeps its data itself. With a PostgreSQL store, several nodes share it and one takes over when another fails.</p>}
        </>
      )}
    </View>
  );
}

function disconnect(row: Connection, reload: () => void): void {
  ask({
    title: `Close the connection of ${row.client || row.address}?`,
    children: <p>What it has leased stays leased until the lease runs out. Clients usually connect again by themselves.</p>,
    command: `penstock connections end ${row.connection_id}`,
    confirm: "Close it",
    danger: true,
    done: "Closed",
    run: async () => {
      await call("DELETE", at(["connections", row.connection_id]));
      reload();
    },
  });
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
