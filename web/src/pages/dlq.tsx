// Dead letters: first by what went wrong, then one by one.
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { call, at, get, may, post, type Schemas } from "../api";
import { count, plural } from "../format";
import { useLoad, View } from "../parts/load";
import { exactJson, preview } from "../parts/payload";
import { type Column, Table } from "../parts/table";
import { ask, Badge, Card, Empty, Field, notify, Page, Time } from "../parts/ui";
import { refresh, rows, sortedRows, watchQueues } from "../queues";
import { Link, link, messageLink, query, setQuery } from "../router";

type Message = Schemas["MessageView"];

export default function DeadLetterPage() {
  useEffect(watchQueues, []);
  const queue = query.value.get("queue") ?? "";
  const queues = sortedRows.value.filter((row) => row.dead > 0);
  return (
    <Page title="Dead letters">
      {queue ? (
        <>
          <div class="filter-bar">
            <select aria-label="Queue" value={queue} onChange={(event) => setQuery({ queue: event.currentTarget.value, signature: "" })}>
              <option value="">All queues</option>
              {[...new Set([queue, ...queues.map((row) => row.name)])].map((name) => (
                <option key={name} value={name}>
                  {name}
                </option>
              ))}
            </select>
          </div>
          <DeadLetters queue={queue} />
        </>
      ) : (
        <Card class="flush">
          {rows.value && !queues.length ? (
            <Empty title="No dead letters">A message that fails as often as its queue allows ends here, with its error. Nothing has.</Empty>
          ) : (
            <Table
              label="Queues with dead letters"
              rows={queues}
              rowKey={(row) => row.name}
              href={(row) => link(["dlq"], { queue: row.name })}
              columns={[
                {
                  id: "queue",
                  title: "Queue",
                  narrow: true,
                  cell: (row) => (
                    <Link class="name" href={link(["dlq"], { queue: row.name })}>
                      {row.name}
                    </Link>
                  ),
                },
                { id: "dead", title: "Dead letters", narrow: true, isNumber: true, sort: (row) => row.dead, cell: (row) => count(row.dead) },
              ]}
            />
          )}
        </Card>
      )}
    </Page>
  );
}

interface Signature {
  text: string;
  messages: Message[];
  shared: string[];
}

/** What makes two errors the same: numbers, ids and quoted values do not count. */
function signatureOf(message: Message): string {
  const error = message.headers["penstock-error"] || message.headers["penstock-reason"] || "no error was given";
  const line = error.trim().split("\n").at(-1) ?? error;
  return line.replace(/[0-9a-f]{8}-[0-9a-f-]{27}/g, "<id>").replace(/0x[0-9a-f]+/gi, "<address>").replace(/\d+(\.\d+)?/g, "<n>").replace(/'[^']*'|"[^"]*"/g, "<text>").slice(0, 160);
}

function signatures(messages: readonly Message[]): Signature[] {
  const groups = new Map<string, Message[]>();
  for (const message of messages) groups.set(signatureOf(message), [...(groups.get(signatureOf(message)) ?? []), message]);
  return [...groups].map(([text, members]) => ({ text, messages: members, shared: sharedFields(members) })).sort((a, b) => b.messages.length - a.messages.length);
}

/** Fields of JSON payloads that have one value in all of them. */
function sharedFields(messages: readonly Message[]): string[] {
  const objects = messages.map((message) => message.payload).filter((payload): payload is Record<string, unknown> => typeof payload === "object" && payload !== null && !Array.isArray(payload));
  const [first] = objects;
  if (!first || objects.length < 2) return [];
  return Object.keys(first)
    .filter((field) => objects.every((object) => exactJson(object[field]) === exactJson(first[field])))
    .slice(0, 4)
    .map((field) => `${field} = ${exactJson(first[field]).slice(0, 40)}`);
}

const LIMIT = 1000;

export function DeadLetters({ queue }: { queue: string }) {
  const selected = useSignal<Set<string>>(new Set());
  const search = query.value.get("q") ?? "";
  const chosen = query.value.get("signature") ?? "";
  const loaded = useLoad(`dlq,${queue},${search}`, (abort) => get<Schemas["Messages"]>(["queues", queue, "dlq"], { limit: LIMIT, error_contains: search }, abort));
  const groups = signatures(loaded.data?.messages ?? []);
  const shown = (loaded.data?.messages ?? []).filter((message) => !chosen || signatureOf(message) === chosen);
  const done = async (): Promise<void> => {
    selected.value = new Set();
    loaded.reload();
    await refresh();
  };
  return (
    <>
      <div class="filter-bar">
        <input data-filter type="search" placeholder="Filter by error" aria-label="Filter by error" value={search} onChange={(event) => setQuery({ q: event.currentTarget.value })} />
        {may("manage", queue) ? (
          <>
            <button onClick={() => redrive(queue, null, search, done)}>Redrive all that match</button>
            <button onClick={() => purge(queue, done)}>Discard all</button>
          </>
        ) : null}
      </div>
      <View of={loaded}>
        {({ messages }) =>
          messages.length ? (
            <>
              <Card title={`${plural(groups.length, "cause")}`} class="flush">
                <Table label="Causes" rows={groups} columns={signatureColumns(queue, chosen, done)} rowKey={(group) => group.text} />
              </Card>
              {selected.value.size ? (
                <div class="selection" role="status">
                  <strong>{plural(selected.value.size, "dead letter")} selected</strong>
                  <button onClick={() => redrive(queue, [...selected.value], "", done)}>Redrive</button>
                  {selected.value.size === 1 ? <button onClick={() => edit(queue, messages.find((message) => selected.value.has(message.id)), done)}>Edit and redrive</button> : null}
                </div>
              ) : null}
              <Card class="flush">
                <Table label="Dead letters" rows={shown} columns={LETTER_COLUMNS} rowKey={(message) => message.id} href={(message) => messageLink(message.id)} selected={selected.value} onSelect={(keys) => (selected.value = keys)} />
                <div class="table-foot">
                  {plural(shown.length, "dead letter")}
                  {messages.length === LIMIT ? ` of the first ${count(LIMIT)}` : ""}
                </div>
              </Card>
            </>
          ) : (
            <Card>
              <Empty title="No dead letters">{search ? "None has this in its error." : "A message that fails as often as its queue allows ends here, with its error."}</Empty>
            </Card>
          )
        }
      </View>
    </>
  );
}

function signatureColumns(queue: string, chosen: string, done: () => Promise<void>): readonly Column<Signature>[] {
  return [
    {
      id: "cause",
      title: "Cause",
      narrow: true,
      cell: (group) => (
        <button class="quiet" aria-pressed={group.text === chosen} onClick={() => setQuery({ signature: group.text === chosen ? "" : group.text })} title={group.text}>
          <code>{group.text}</code>
        </button>
      ),
    },
    { id: "count", title: "Count", isNumber: true, narrow: true, cell: (group) => count(group.messages.length) },
    { id: "shared", title: "All of them have", cell: (group) => group.shared.map((field) => <Badge key={field}>{field}</Badge>) },
    { id: "first", title: "First", cell: (group) => <Time at={group.messages[0]?.pushed_at} /> },
    { id: "last", title: "Last", cell: (group) => <Time at={group.messages.at(-1)?.pushed_at} /> },
    { id: "redrive", title: "", cell: (group) => (may("manage", queue) ? <button onClick={() => redrive(queue, group.messages.map((message) => message.id), "", done)}>Redrive</button> : null) },
  ];
}

const LETTER_COLUMNS: readonly Column<Message>[] = [
  {
    id: "origin",
    title: "Message",
    narrow: true,
    cell: (message) => (
      <Link class="name" href={messageLink(message.id)}>
        {(message.headers["penstock-origin"] ?? message.id).split("/").slice(-2).join("/")}
      </Link>
    ),
  },
  { id: "died", title: "Died", cell: (message) => <Time at={message.pushed_at} /> },
  { id: "group", title: "Group", cell: (message) => message.headers["penstock-group"] ?? "–" },
  { id: "attempts", title: "Attempts", isNumber: true, cell: (message) => message.headers["penstock-attempts"] ?? "–" },
  { id: "error", title: "Error", narrow: true, cell: (message) => <span title={message.headers["penstock-error"]}>{message.headers["penstock-error"] || message.headers["penstock-reason"] || "–"}</span> },
  { id: "payload", title: "Payload", cell: (message) => <code dir="auto">{preview(message, 60)}</code> },
];

function redrive(queue: string, ids: string[] | null, search: string, done: () => Promise<void>): void {
  let pace = "";
  ask({
    title: ids ? `Redrive ${plural(ids.length, "dead letter")}?` : "Redrive everything that matches?",
    children: (
      <>
        <p>Each becomes ready again in the group where it failed, with its attempts counted from zero.</p>
        <Field label="At most per second" hint="Empty: as fast as possible">
          <input type="number" min="1" onInput={(event) => (pace = event.currentTarget.value)} />
        </Field>
      </>
    ),
    command: () => `penstock dlq redrive ${queue}${search ? ` --error-contains '${search}'` : ""}${pace ? ` --rate ${pace}` : ""}`,
    confirm: "Redrive",
    run: async () => {
      const body = { ...(ids ? { ids, limit: ids.length } : { limit: 1_000_000 }), ...(search ? { error_contains: search } : {}), ...(pace ? { rate: Number(pace) } : {}) };
      const { redriven } = await post<Schemas["Redriven"]>(["queues", queue, "dlq", "redrive"], body);
      notify(`${plural(redriven, "dead letter")} redriven`);
      await done();
    },
  });
}

function edit(queue: string, message: Message | undefined, done: () => Promise<void>): void {
  if (!message) return;
  let text = message.payload_base64 === undefined ? exactJson(message.payload, "  ") : "";
  ask({
    title: "Edit and redrive",
    children: (
      <Field label="Payload" hint="The edited message is pushed to the queue, and the dead letter is settled, in one step.">
        <textarea rows={14} onInput={(event) => (text = event.currentTarget.value)}>
          {text}
        </textarea>
      </Field>
    ),
    confirm: "Push and settle",
    done: "Pushed, and the dead letter is settled",
    run: async () => {
      const payload = JSON.parse(text) as unknown;
      await post(["queues", queue, "dlq", "replace"], { ids: [message.id], messages: [{ payload, ...(message.key === null ? {} : { key: message.key }) }] });
      await done();
    },
  });
}

function purge(queue: string, done: () => Promise<void>): void {
  ask({
    title: `Discard all dead letters of ${queue}?`,
    children: <p>They will not be redriven. This cannot be undone.</p>,
    command: `penstock dlq purge ${queue}`,
    confirm: "Discard",
    danger: true,
    typed: queue,
    done: "Discarded",
    run: async () => {
      await call("DELETE", at(["queues", queue, "dlq"]));
      await done();
    },
  });
}
