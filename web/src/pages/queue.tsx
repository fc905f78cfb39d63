// One queue: its numbers, messages, groups, dead letters, leases and options.
import { useEffect, useState } from "preact/hooks";
import { call, get, at, may, post, type Schemas } from "../api";
import { bytes, count, duration, plural, rate, short } from "../format";
import { Chart } from "../parts/chart";
import { useInterval, useLoad, View } from "../parts/load";
import { preview } from "../parts/payload";
import { type Column, Table } from "../parts/table";
import { ask, Badge, Card, Command, Empty, Facts, Field, notify, Page, Tabs, Time } from "../parts/ui";
import { refresh, rows, watchQueues } from "../queues";
import { Link, link, messageLink, navigate, path, query, setQuery } from "../router";
import { DeadLetters } from "./dlq";
import { HistoryCharts } from "./history";

type Message = Schemas["MessageView"];
type GroupStats = Schemas["GroupStats"];

export default function Queue() {
  useEffect(watchQueues, []);
  const [, name = "", tab = "overview"] = path.value;
  const row = rows.value?.get(name);
  const href = (id: string): string => link(id === "overview" ? ["queues", name] : ["queues", name, id]);
  const tabs = [
    { id: "overview", title: "Overview", href: href("overview") },
    { id: "messages", title: "Messages", href: href("messages") },
    { id: "groups", title: "Groups", href: href("groups"), badge: row ? Object.keys(row.stats.groups).length : 0 },
    { id: "dlq", title: "Dead letters", href: href("dlq"), badge: row?.dead ?? 0 },
    { id: "history", title: "History", href: href("history") },
    { id: "leases", title: "Leases", href: href("leases") },
    { id: "options", title: "Options", href: href("options") },
  ];
  const isPaused = row?.stats.paused ?? false;
  return (
    <Page
      title={name}
      crumbs={[["Queues", link(["queues"])]]}
      actions={
        <>
          {may("push", name) ? <button onClick={() => pushMessage(name)}>Push</button> : null}
          {may("manage", name) ? (
            <>
              <button onClick={() => setPaused(name, !isPaused)}>{isPaused ? "Resume" : "Pause"}</button>
              <button onClick={() => purge(name, row?.ready ?? 0)}>Purge</button>
              <button onClick={() => remove(name)}>Delete</button>
            </>
          ) : null}
        </>
      }
    >
      {isPaused ? (
        <p class="notice warning">
          This queue is paused: pushes are stored, nothing is delivered. <Command text={`penstock queues resume ${name}`} />
        </p>
      ) : null}
      <Tabs tabs={tabs} current={tab} label="Parts of the queue" />
      {tab === "overview" ? <Overview name={name} /> : null}
      {tab === "messages" ? <Messages name={name} /> : null}
      {tab === "groups" ? <Groups name={name} /> : null}
      {tab === "dlq" ? <DeadLetters queue={name} /> : null}
      {tab === "history" ? <HistoryCharts queue={name} name={name} /> : null}
      {tab === "leases" ? <Leases name={name} /> : null}
      {tab === "options" ? <Options name={name} /> : null}
    </Page>
  );
}

function Overview({ name }: { name: string }) {
  const row = rows.value?.get(name);
  const [samples, setSamples] = useState<{ at: number; pushed: number | null; acked: number | null; backlog: number }[]>([]);
  useEffect(() => {
    if (!row) return;
    const sample = { at: Date.now(), pushed: row.pushedPerSecond, acked: row.ackedPerSecond, backlog: row.ready + row.leased + row.waiting };
    setSamples((old) => [...old.slice(-299), sample]);
  }, [row]);
  if (!row) return rows.value ? <Empty title="There is no such queue" command={`penstock push ${name} '{"id": 1}'`} /> : null;
  const times = samples.map((sample) => sample.at / 1000);
  return (
    <>
      <dl class="tiles">
        {(
          [
            ["Ready", short(row.ready)],
            ["Leased", short(row.leased)],
            ["Waiting", short(row.waiting)],
            ["Dead", short(row.dead)],
            ["Pushed per second", rate(row.pushedPerSecond)],
            ["Acknowledged per second", rate(row.ackedPerSecond)],
          ] as const
        ).map(([title, value]) => (
          <div class="tile" key={title}>
            <dt>{title}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      <div class="columns">
        <Card title="Messages per second">
          <Chart
            label={`Messages per second in ${name}`}
            times={times}
            series={[
              { name: "Pushed", color: "accent", values: samples.map((sample) => sample.pushed) },
              { name: "Acknowledged", color: "second", values: samples.map((sample) => sample.acked) },
            ]}
          />
        </Card>
        <Card title="Backlog">
          <Chart label={`Messages of ${name} that are not settled`} times={times} series={[{ name: "Not settled", color: "accent", values: samples.map((sample) => sample.backlog) }]} />
        </Card>
      </div>
      <Card title="Groups" class="flush">
        <Table label="Groups" rows={Object.values(row.stats.groups)} columns={GROUP_COLUMNS} rowKey={(group) => group.name} />
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

const GROUP_COLUMNS: readonly Column<GroupStats>[] = [
  { id: "group", title: "Group", narrow: true, cell: (group) => <span class="name">{group.name}</span> },
  { id: "lag", title: "Lag", narrow: true, isNumber: true, hint: "Messages that are not settled", cell: (group) => short(group.lag) },
  { id: "ready", title: "Ready", isNumber: true, cell: (group) => short(group.ready) },
  { id: "leased", title: "Leased", isNumber: true, cell: (group) => short(group.leased) },
  { id: "waiting", title: "Waiting", isNumber: true, cell: (group) => short(group.waiting) },
  { id: "acked", title: "Acked", isNumber: true, cell: (group) => short(group.acked) },
  { id: "dead", title: "Dead", isNumber: true, cell: (group) => short(group.dead) },
  { id: "dropped", title: "Dropped", isNumber: true, cell: (group) => short(group.dropped) },
  { id: "oldest", title: "Oldest", isNumber: true, narrow: true, cell: (group) => <Time at={group.oldest_unsettled_at} /> },
];

const MESSAGE_COLUMNS: readonly Column<Message>[] = [
  {
    id: "offset",
    title: "Offset",
    narrow: true,
    cell: (message) => (
      <Link class="name" href={messageLink(message.id)}>
        {message.partition}/{message.offset}
      </Link>
    ),
  },
  { id: "pushed", title: "Pushed", cell: (message) => <Time at={message.pushed_at} /> },
  { id: "key", title: "Key", cell: (message) => message.key ?? <span class="soft">–</span> },
  { id: "payload", title: "Payload", narrow: true, cell: (message) => <code dir="auto">{preview(message)}</code> },
];

const PAGE_SIZE = 100;

function Messages({ name }: { name: string }) {
  const partition = query.value.get("partition") ?? "0";
  const offset = query.value.get("offset") ?? "";
  const timestamp = query.value.get("timestamp") ?? "";
  const mode = query.value.get("show") ?? "log";
  const key = ["messages", name, partition, offset, timestamp, mode].join();
  const loaded = useLoad(key, (abort) => {
    if (mode === "log") return get<Schemas["Messages"]>(["queues", name, "messages"], { partition, offset, timestamp, limit: PAGE_SIZE }, abort);
    return get<Schemas["Messages"]>(["queues", name, mode], { limit: PAGE_SIZE }, abort);
  });
  const last = loaded.data?.messages.at(-1);
  return (
    <>
      <div class="filter-bar">
        <select aria-label="Show" value={mode} onChange={(event) => setQuery({ show: event.currentTarget.value })}>
          <option value="log">Everything that was pushed</option>
          <option value="peek">Next to be delivered</option>
          <option value="delayed">Not due yet</option>
        </select>
        {mode === "log" ? (
          <>
            <label class="row">
              Partition <input class="short" size={4} value={partition} onChange={(event) => setQuery({ partition: event.currentTarget.value, offset: "" })} />
            </label>
            <label class="row">
              From offset <input size={10} inputMode="numeric" value={offset} onChange={(event) => setQuery({ offset: event.currentTarget.value, timestamp: "" })} />
            </label>
            <label class="row">
              or time
              <input type="datetime-local" step="1" onChange={(event) => setQuery({ timestamp: event.currentTarget.value ? new Date(event.currentTarget.value).toISOString() : "", offset: "" })} />
            </label>
          </>
        ) : null}
        <button onClick={loaded.reload}>Reload</button>
      </div>
      <Card class="flush">
        <View of={loaded}>
          {({ messages }) =>
            messages.length ? (
              <>
                <Table label="Messages" rows={messages} columns={MESSAGE_COLUMNS} rowKey={(message) => message.id} href={(message) => messageLink(message.id)} />
                <div class="table-foot row">
                  {plural(messages.length, "message")}
                  {mode === "log" && messages.length === PAGE_SIZE && last ? <button onClick={() => setQuery({ offset: last.offset + 1, timestamp: "" }, { replace: false })}>Next {PAGE_SIZE}</button> : null}
                </div>
              </>
            ) : (
              <Empty title="No messages here" command={`penstock push ${name} '{"id": 1}'`}>
                {mode === "log" ? "Nothing is stored from this offset on." : "Nothing waits."}
              </Empty>
            )
          }
        </View>
      </Card>
    </>
  );
}

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
                may("manage", name) ? (
                  <span class="row">
                    <button onClick={() => seek(name, group.name)}>Move</button>
                    {group.name === "default" ? null : <button onClick={() => removeGroup(name, group.name, loaded.reload)}>Delete</button>}
                  </span>
                ) : null
              }
              class="flush"
            >
              <Members queue={name} group={group.name} />
              <Table
                label={`Partitions of ${group.name}`}
                rows={group.partitions}
                rowKey={(partition) => partition.partition}
                columns={[
                  { id: "partition", title: "Partition", narrow: true, cell: (partition) => partition.partition },
                  { id: "committed", title: "Settled up to", isNumber: true, narrow: true, cell: (partition) => count(partition.committed_offset) },
                  { id: "end", title: "End", isNumber: true, cell: (partition) => count(partition.end_offset) },
                  { id: "lag", title: "Lag", isNumber: true, narrow: true, cell: (partition) => count(partition.lag) },
                ]}
              />
            </Card>
          ))}
          {may("manage", name) ? <button onClick={() => createGroup(name, loaded.reload)}>Create a group</button> : null}
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
        { id: "member", title: "Member", narrow: true, cell: (member) => <span class="name">{member.member}</span> },
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
                { id: "consumer", title: "Consumer", narrow: true, cell: (lease) => lease.consumer || <span class="soft">unnamed</span> },
                { id: "group", title: "Group", cell: (lease) => lease.group },
                { id: "messages", title: "Messages", isNumber: true, narrow: true, cell: (lease) => count(lease.messages) },
                { id: "since", title: "Held since", cell: (lease) => <Time at={lease.leased_at} /> },
                { id: "until", title: "Runs out", narrow: true, cell: (lease) => <Time at={lease.expires_at} /> },
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
  const loaded = useLoad(`options,${name}`, (abort) => get<Schemas["QueueView"]>(["queues", name], {}, abort));
  return (
    <Card title="Options" actions={may("manage", name) ? <button onClick={() => loaded.data && editOptions(name, loaded.data, loaded.reload)}>Edit</button> : null}>
      <View of={loaded}>
        {(options) => (
          <Facts
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
  if (value === null || (Array.isArray(value) && !value.length)) return <span class="soft">not set</span>;
  if (typeof value === "number" && field.endsWith("_ms")) return duration(value);
  if (typeof value === "number" && field.endsWith("_bytes")) return bytes(value);
  if (typeof value === "boolean") return value ? <Badge tone="info">yes</Badge> : "no";
  return String(value);
}

function editOptions(name: string, options: Schemas["QueueView"], reload: () => void): void {
  const { name: _name, ...current } = options;
  let text = JSON.stringify(current, null, 2);
  ask({
    title: `Options of ${name}`,
    children: (
      <Field label="Change what you want to change" hint="Durations are milliseconds. Partitions can be added, never removed.">
        <textarea rows={18} spellcheck={false} onInput={(event) => (text = event.currentTarget.value)}>
          {text}
        </textarea>
      </Field>
    ),
    command: `penstock queues update ${name} --max-attempts 10`,
    confirm: "Save",
    done: "Saved",
    run: async () => {
      const edited = JSON.parse(text) as Record<string, unknown>;
      const before = current as Record<string, unknown>;
      const changes = Object.fromEntries(Object.entries(edited).filter(([field, value]) => JSON.stringify(value) !== JSON.stringify(before[field])));
      await call("PATCH", at(["queues", name]), changes);
      reload();
    },
  });
}

function pushMessage(name: string): void {
  let [payload, key, delay] = ['{"hello": "world"}', "", ""];
  ask({
    title: `Push to ${name}`,
    children: (
      <>
        <Field label="Payload" hint="JSON; anything else is stored as text.">
          <textarea onInput={(event) => (payload = event.currentTarget.value)}>{payload}</textarea>
        </Field>
        <Field label="Key">
          <input onInput={(event) => (key = event.currentTarget.value)} />
        </Field>
        <Field label="Delay, seconds">
          <input type="number" min="0" onInput={(event) => (delay = event.currentTarget.value)} />
        </Field>
      </>
    ),
    command: () => `penstock push ${name} '${payload}'${key ? ` --key ${key}` : ""}${delay ? ` --delay ${delay}` : ""}`,
    confirm: "Push",
    run: async () => {
      const { results } = await post<Schemas["PushResults"]>(["queues", name, "messages"], { messages: [{ ...content(payload), ...(key ? { key } : {}), ...(delay ? { delay_ms: Number(delay) * 1000 } : {}) }] });
      notify(`Pushed as ${results[0]?.id ?? "?"}`);
    },
  });
}

/** What is JSON is pushed as JSON, everything else as text. */
export function content(text: string): Record<string, unknown> {
  try {
    return { payload: JSON.parse(text) as unknown };
  } catch {
    const encoded = String.fromCharCode(...new TextEncoder().encode(text));
    return { payload_base64: btoa(encoded), content_type: "text/plain" };
  }
}

function setPaused(name: string, isPaused: boolean): void {
  const action = isPaused ? "pause" : "resume";
  ask({
    title: isPaused ? `Pause ${name}?` : `Resume ${name}?`,
    children: <p>{isPaused ? "Pushes go on; nothing is delivered until you resume." : "Messages are delivered again."}</p>,
    command: `penstock queues ${action} ${name}`,
    confirm: isPaused ? "Pause" : "Resume",
    run: async () => {
      await post(["queues", name, action]);
      await refresh();
    },
  });
}

function purge(name: string, ready: number): void {
  ask({
    title: `Drop everything in ${name}?`,
    children: <p>About {plural(ready, "message")} will not be delivered, in any group. What was pushed can still be read as history.</p>,
    command: `penstock queues purge ${name}`,
    confirm: "Purge",
    danger: true,
    ...(ready > 1000 ? { typed: String(ready) } : {}),
    done: "Purged",
    run: async () => {
      await post(["queues", name, "purge"]);
      await refresh();
    },
  });
}

function remove(name: string): void {
  ask({
    title: `Delete ${name}?`,
    children: <p>Its messages, groups and dead letters are deleted. This cannot be undone.</p>,
    command: `penstock queues delete ${name}`,
    confirm: "Delete",
    danger: true,
    typed: name,
    done: `${name} was deleted`,
    run: async () => {
      await call("DELETE", at(["queues", name]));
      await refresh();
      navigate(link(["queues"]));
    },
  });
}

function seek(queue: string, group: string): void {
  let to = "latest";
  ask({
    title: `Move ${group}`,
    children: (
      <>
        <p>The group reads on from there. What its consumers hold is taken from them.</p>
        <Field label="To" hint="earliest, latest, an offset, or a time such as 2026-01-31T09:00:00Z">
          <input value={to} onInput={(event) => (to = event.currentTarget.value)} />
        </Field>
      </>
    ),
    command: () => `penstock seek ${queue} ${group} --to ${to}`,
    confirm: "Move",
    done: "Moved",
    run: () => post(["queues", queue, "groups", group, "seek"], { to: /^\d+$/.test(to) ? Number(to) : to }),
  });
}

function createGroup(queue: string, reload: () => void): void {
  let [name, start] = ["", "earliest"];
  ask({
    title: "Create a group",
    children: (
      <>
        <p>A group reads the queue by itself: each message is delivered once to each group.</p>
        <Field label="Name">
          <input required onInput={(event) => (name = event.currentTarget.value)} />
        </Field>
        <Field label="Starts at">
          <select onChange={(event) => (start = event.currentTarget.value)}>
            <option value="earliest">the earliest message that is kept</option>
            <option value="latest">the next message</option>
          </select>
        </Field>
      </>
    ),
    command: () => `penstock groups create ${queue} ${name || "NAME"} --start ${start}`,
    confirm: "Create",
    run: async () => {
      await post(["queues", queue, "groups"], { name, start });
      reload();
    },
  });
}

function removeGroup(queue: string, group: string, reload: () => void): void {
  ask({
    title: `Delete the group ${group}?`,
    children: <p>How far it has read is forgotten. The messages stay.</p>,
    command: `penstock groups delete ${queue} ${group}`,
    confirm: "Delete",
    danger: true,
    typed: group,
    run: async () => {
      await call("DELETE", at(["queues", queue, "groups", group]));
      reload();
    },
  });
}
