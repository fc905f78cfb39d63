// One queue: its numbers, messages, groups, dead letters, leases, keys and options.
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get, type Schemas } from "../api";
import { brief, bytes, count, duration, rate, serverNow, short } from "../format";
import { AsOf, Cut, usePast } from "../parts/as-of";
import { Flow } from "../parts/flow";
import { Problem, Skeleton, useInterval, useLoad, View } from "../parts/load";
import { type Column, Table } from "../parts/table";
import { Action, Age, Amount, Badge, Card, Command, Empty, Facts, Page, Stats, Tabs, Time } from "../parts/ui";
import { WhyCard } from "../parts/why";
import { drainSeconds, problem, type QueueRow, recent, refresh, rows, type Total, TOTALS, watchQueues } from "../queues";
import { link, path } from "../router";
import type { Account, PastQueue } from "../types";
import { DeadLetters } from "./dlq";
import { HistoryCharts } from "./history";
import { createGroup, deleteGroup, deleteQueue, editOptions, purgeQueue, pushMessage, seek, setPaused } from "./queue-actions";
import { Keys } from "./queue-keys";
import { Messages } from "./queue-messages";

type GroupStats = Schemas["GroupStats"];

export default function Queue() {
  useEffect(watchQueues, []);
  const [, name = "", tab = "overview"] = path.value;
  const row = rows.value?.get(name);
  const href = (id: string): string => link(id === "overview" ? ["queues", name] : ["queues", name, id]);
  const tabs = [
    { id: "overview", title: "Overview" },
    { id: "messages", title: "Messages" },
    { id: "groups", title: "Groups", badge: row ? Object.keys(row.stats.groups).length : 0 },
    { id: "dlq", title: "Dead letters", badge: row?.dead ?? 0 },
    { id: "keys", title: "Keys" },
    { id: "leases", title: "Leases", badge: row?.leased ?? 0 },
    { id: "history", title: "History" },
    { id: "options", title: "Options" },
  ].map((item) => ({ ...item, href: href(item.id) }));
  const isPaused = row?.stats.paused ?? false;
  return (
    <Page
      title={name}
      badges={
        <>
          {isPaused ? <Badge tone="warning">paused</Badge> : null} <AccountBadge name={name} />
        </>
      }
      crumbs={[["Queues", link(["queues"])]]}
      actions={
        <>
          {tab === "overview" ? <AsOf /> : null}
          <Action right="push" queue={name} onClick={() => pushMessage(name)}>
            Push
          </Action>
          <Action queue={name} onClick={() => setPaused(name, !isPaused)}>
            {isPaused ? "Resume" : "Pause"}
          </Action>
          <Action queue={name} onClick={() => purgeQueue(name, row?.ready ?? 0)}>
            Purge
          </Action>
          <Action queue={name} onClick={() => deleteQueue(name)}>
            Delete
          </Action>
        </>
      }
    >
      {isPaused ? (
        <p class="notice warning inline">
          This queue is paused: pushes are stored, nothing is delivered. <Command text={`penstock queues resume ${name}`} />
        </p>
      ) : null}
      <Tabs tabs={tabs} current={tab} label="Parts of the queue" />
      {tab === "overview" ? <Overview name={name} /> : null}
      {tab === "messages" ? <Messages name={name} /> : null}
      {tab === "groups" ? <Groups name={name} /> : null}
      {tab === "dlq" ? <DeadLetters queue={name} /> : null}
      {tab === "keys" ? <Keys name={name} /> : null}
      {tab === "history" ? <HistoryCharts queue={name} name={name} /> : null}
      {tab === "leases" ? <Leases name={name} /> : null}
      {tab === "options" ? <Options name={name} /> : null}
    </Page>
  );
}

/** Whether every message that was accepted is accounted for. */
function AccountBadge({ name }: { name: string }) {
  const loaded = useLoad(`account,${name}`, (abort) => get<Account>(["queues", name, "account"], {}, abort));
  useInterval(loaded.reload, 60);
  const account = loaded.data;
  if (!account) return null;
  const lines = account.groups.map((group) => `${group.group}: ${count(group.accepted)} accepted = ${count(group.acked)} acked + ${count(group.dead)} dead + ${count(group.dropped)} dropped + ${count(group.open)} open`);
  return (
    <Badge tone={account.is_balanced ? "ok" : "danger"} title={lines.join("\n")}>
      {account.is_balanced ? "accounted for" : "does not add up"}
    </Badge>
  );
}

function Overview({ name }: { name: string }) {
  const row = rows.value?.get(name);
  const past = usePast(name);
  if (past.at) {
    return <View of={past}>{(data) => <PastOverview queue={data.queues.find((queue) => queue.queue === name)} cut={data} />}</View>;
  }
  if (rows.value === null) return problem.value ? <Problem error={problem.value} retry={() => void refresh()} /> : <Skeleton rows={8} />;
  if (!row) return <Empty title="There is no such queue" command={`penstock push ${name} '{"id": 1}'`}>Pushing a message creates it.</Empty>;
  return (
    <>
      <Stats items={statsOf(row)} />
      <QueueFlow row={row} />
      <WhyCard queue={name} />
      <Card title="Groups" class="flush">
        <Table label="Groups" rows={Object.values(row.stats.groups)} columns={GROUP_COLUMNS} rowKey={(group) => group.name} href={() => link(["queues", name, "groups"])} />
      </Card>
      <Card title="Storage">
        <Facts
          items={[
            ["Messages ever pushed", count(row.stats.messages)],
            ["Partitions", count(row.stats.partitions)],
            ["Stored", bytes(row.stats.bytes_stored)],
            ["Oldest not settled", <Time key="oldest" at={row.oldestAt} />],
          ]}
        />
      </Card>
    </>
  );
}

function statsOf(row: QueueRow) {
  const seconds = drainSeconds(row);
  const age = row.oldestAt ? serverNow() - Date.parse(row.oldestAt) : 0;
  return [
    { name: "Ready", value: short(row.ready) },
    { name: "Leased", value: short(row.leased) },
    { name: "Waiting", value: short(row.waiting) },
    { name: "Dead", value: short(row.dead), tone: row.dead ? ("danger" as const) : undefined },
    { name: "Pushed", value: rate(row.pushedPerSecond), unit: "per s" },
    { name: "Acknowledged", value: rate(row.ackedPerSecond), unit: "per s" },
    { name: "Oldest", value: row.oldestAt ? brief(age) : "–" },
    { name: "Empty in", value: seconds === null ? "–" : brief(seconds * 1000) },
  ];
}

/** Rates and backlog of the last five minutes: what the broker remembers, then what comes. */
function useSamples(row: QueueRow): readonly Total[] {
  const samples = useSignal<Total[]>([]);
  useEffect(() => {
    recent(row.name).then(
      (past) => (samples.value = [...past.filter((sample) => sample.at < (samples.value[0]?.at ?? Infinity) - 500), ...samples.value].slice(-TOTALS)),
      () => undefined,
    );
  }, [row.name]);
  useEffect(() => {
    const sample = { at: serverNow(), pushed: row.pushedPerSecond, acked: row.ackedPerSecond, backlog: row.ready + row.leased + row.waiting };
    const last = samples.value.at(-1);
    if (!last || sample.at - last.at > 800) samples.value = [...samples.value.slice(1 - TOTALS), sample];
  }, [row]);
  return samples.value;
}

function QueueFlow({ row }: { row: QueueRow }) {
  return <Flow of={row.name} samples={useSamples(row)} />;
}

function PastOverview({ queue, cut }: { queue: PastQueue | undefined; cut: { is_cut: boolean; begins_at: string | null } }) {
  if (!queue) return <Empty title="The queue was not there at that moment" />;
  const number = (value: number | null): string => (value === null ? "–" : short(value));
  return (
    <>
      <Cut past={queue.is_cut ? queue : cut} />
      <Stats
        items={[
          { name: "Depth", value: number(queue.depth) },
          { name: "Leased", value: number(queue.leased) },
          { name: "Lag", value: number(queue.lag) },
        ]}
      />
      <Card title="Groups" class="flush">
        <Table
          label="Groups at that moment"
          rows={queue.groups}
          rowKey={(group) => group.group}
          columns={[
            { id: "group", title: "Group", narrow: true, fills: true, cell: (group) => <span class="name">{group.group}</span> },
            { id: "depth", title: "Depth", isNumber: true, narrow: true, cell: (group) => number(group.depth) },
            { id: "leased", title: "Leased", isNumber: true, cell: (group) => number(group.leased) },
            { id: "lag", title: "Lag", isNumber: true, narrow: true, cell: (group) => number(group.lag) },
          ]}
        />
      </Card>
    </>
  );
}

const amount = (value: number) => <Amount value={value} text={short(value)} />;

const GROUP_COLUMNS: readonly Column<GroupStats>[] = [
  { id: "group", title: "Group", narrow: true, fills: true, cell: (group) => <span class="name">{group.name}</span> },
  { id: "lag", title: "Lag", narrow: true, isNumber: true, hint: "Messages that are not settled", cell: (group) => amount(group.lag) },
  { id: "ready", title: "Ready", isNumber: true, cell: (group) => amount(group.ready) },
  { id: "leased", title: "Leased", isNumber: true, cell: (group) => amount(group.leased) },
  { id: "waiting", title: "Waiting", isNumber: true, cell: (group) => amount(group.waiting) },
  { id: "acked", title: "Acked", isNumber: true, cell: (group) => amount(group.acked) },
  { id: "dead", title: "Dead", isNumber: true, cell: (group) => amount(group.dead) },
  { id: "dropped", title: "Dropped", isNumber: true, cell: (group) => amount(group.dropped) },
  { id: "oldest", title: "Oldest", isNumber: true, narrow: true, cell: (group) => <Age at={group.oldest_unsettled_at} /> },
];

function Groups({ name }: { name: string }) {
  const loaded = useLoad(`groups,${name}`, (abort) => get<Schemas["Groups"]>(["queues", name, "groups"], {}, abort));
  useInterval(loaded.reload, 5);
  return (
    <View of={loaded}>
      {({ groups }) => (
        <>
          {groups.map((group) => (
            <Card
              key={group.name}
              title={group.name}
              actions={
                <span class="row">
                  <Action queue={name} onClick={() => seek(name, group.name)}>
                    Move
                  </Action>
                  {group.name === "default" ? null : (
                    <Action queue={name} onClick={() => deleteGroup(name, group.name, loaded.reload)}>
                      Delete
                    </Action>
                  )}
                </span>
              }
              class="flush"
            >
              <Members queue={name} group={group.name} />
              <Table
                label={`Partitions of ${group.name}`}
                rows={group.partitions}
                rowKey={(partition) => partition.partition}
                columns={[
                  { id: "partition", title: "Partition", narrow: true, fills: true, cell: (partition) => partition.partition },
                  { id: "committed", title: "Settled up to", isNumber: true, narrow: true, cell: (partition) => count(partition.committed_offset) },
                  { id: "end", title: "End", isNumber: true, cell: (partition) => count(partition.end_offset) },
                  { id: "lag", title: "Lag", isNumber: true, narrow: true, cell: (partition) => amount(partition.lag) },
                ]}
              />
            </Card>
          ))}
          <Action queue={name} onClick={() => createGroup(name, loaded.reload)}>
            Create a group
          </Action>
        </>
      )}
    </View>
  );
}

function Members({ queue, group }: { queue: string; group: string }) {
  const loaded = useLoad(`members,${queue},${group}`, (abort) => get<Schemas["Members"]>(["queues", queue, "groups", group, "members"], {}, abort));
  const members = loaded.data?.members ?? [];
  if (!members.length) return null;
  return (
    <Table
      label={`Members of ${group}`}
      rows={members}
      rowKey={(member) => member.member}
      columns={[
        { id: "member", title: "Member", narrow: true, fills: true, cell: (member) => <span class="name">{member.member}</span> },
        { id: "partitions", title: "Partitions", narrow: true, cell: (member) => member.partitions.join(", ") || "–" },
        { id: "seen", title: "Heartbeat", cell: (member) => <Time at={member.last_heartbeat_at} /> },
      ]}
    />
  );
}

function Leases({ name }: { name: string }) {
  const loaded = useLoad(`leases,${name}`, (abort) => get<Schemas["Leases"]>(["queues", name, "leases"], { limit: 1000 }, abort));
  useInterval(loaded.reload, 2);
  return (
    <Card class="flush">
      <View of={loaded}>
        {({ leases }) =>
          leases.length ? (
            <Table
              label="Leases"
              rows={leases}
              rowKey={(lease) => lease.lease_id}
              columns={[
                { id: "consumer", title: "Consumer", narrow: true, fills: true, cell: (lease) => lease.consumer || <span class="soft">unnamed</span> },
                { id: "group", title: "Group", cell: (lease) => lease.group },
                { id: "messages", title: "Messages", isNumber: true, narrow: true, cell: (lease) => count(lease.messages) },
                { id: "since", title: "Held since", isNumber: true, cell: (lease) => <Time at={lease.leased_at} /> },
                { id: "until", title: "Runs out", isNumber: true, narrow: true, cell: (lease) => <Time at={lease.expires_at} /> },
                { id: "partitions", title: "Partitions", cell: (lease) => lease.partitions.join(", ") },
              ]}
            />
          ) : (
            <Empty title="Nothing is leased" command={`penstock lease ${name}`}>
              No consumer holds a message of this queue right now.
            </Empty>
          )
        }
      </View>
    </Card>
  );
}

function Options({ name }: { name: string }) {
  const loaded = useLoad(`options,${name}`, (abort) => get<Schemas["QueueState"]>(["queues", name], {}, abort));
  return (
    <Card
      title="Options"
      actions={
        <Action queue={name} onClick={() => loaded.data && editOptions(name, loaded.data, loaded.reload)}>
          Edit
        </Action>
      }
    >
      <View of={loaded}>
        {(options) => (
          <Facts
            wide
            items={Object.entries(options)
              .filter(([field]) => field !== "name")
              .map(([field, value]) => [field, optionText(field, value)])}
          />
        )}
      </View>
    </Card>
  );
}

function optionText(field: string, value: unknown) {
  if (value === null || value === "" || (Array.isArray(value) && !value.length)) return <span class="soft">not set</span>;
  if (typeof value === "number" && field.endsWith("_ms")) return duration(value);
  if (typeof value === "number" && field.endsWith("_bytes")) return bytes(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  return typeof value === "object" ? <code>{JSON.stringify(value)}</code> : String(value);
}
