// Dead letters: first by what went wrong, with what the failed share and the healthy do not; then one by one.
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get, may, post, type Schemas } from "../api";
import { count, local, plural } from "../format";
import { selectAllMatching } from "../keyboard";
import { subscribe } from "../live";
import { askBulk } from "../parts/bulk";
import { ask } from "../parts/dialog";
import { useInterval, useLoad, View } from "../parts/load";
import { exactJson, isPlainText, preview } from "../parts/payload";
import { QueueSelect } from "../parts/queue-select";
import { Trend } from "../parts/spark";
import { type Column, Table } from "../parts/table";
import { Action, Badge, Bar, Card, Dash, Empty, Field, Page, Time } from "../parts/ui";
import { refresh, sortedRows, watchQueues } from "../queues";
import { Link, link, messageLink, query, setQuery } from "../router";
import type { Message, Signature, Signatures } from "../types";

export default function DeadLetterPage() {
  useEffect(watchQueues, []);
  const queue = query.value.get("queue") ?? "";
  const names = sortedRows.value.filter((row) => row.dead > 0).map((row) => row.name);
  return (
    <Page title="Dead letters" actions={<QueueSelect all="All queues" names={names} clears="signature" />}>
      {queue ? <DeadLetters queue={queue} /> : <Causes queue="" />}
    </Page>
  );
}

/** Dead letters of one queue: by cause, and one by one. */
export function DeadLetters({ queue }: { queue: string }) {
  return (
    <>
      <Causes queue={queue} />
      <Letters queue={queue} />
    </>
  );
}

const UNREAD_SHOWN = 3;

function Causes({ queue }: { queue: string }) {
  const loaded = useLoad(`signatures,${queue}`, (abort) => get<Signatures>(queue ? ["queues", queue, "dlq", "signatures"] : ["dlq", "signatures"], { limit: 100 }, abort));
  useInterval(loaded.reload, 15);
  const unread = sortedRows.value.filter((row) => row.dead > 0 && (!queue || row.name === queue) && !may("read", row.name));
  const chosen = query.value.get("signature") ?? "";
  const chosenCause = loaded.data?.signatures.find((cause) => cause.signature === chosen && (!queue || cause.queue === queue));
  return (
    <>
      <Card class="flush" title={loaded.data?.signatures.length ? plural(loaded.data.signatures.length, "cause") : undefined} actions={loaded.data ? <Sample of={loaded.data} /> : null}>
        <View of={loaded}>
          {({ signatures }) =>
            signatures.length ? (
              <Table label="Causes" rows={signatures} columns={causeColumns(queue, loaded.reload)} rowKey={(cause) => cause.queue + cause.signature} defaultSort="-count" rowClass={(cause) => (cause === chosenCause ? "cursor" : "")} />
            ) : unread.length ? (
              <p class="notice warning" role="alert">
                You may not read the dead letters of {unread.slice(0, UNREAD_SHOWN).map((row) => row.name).join(", ")}
                {unread.length > UNREAD_SHOWN ? ` and ${count(unread.length - UNREAD_SHOWN)} more` : ""}: ask an owner for the grant read:{unread[0]?.name}
              </p>
            ) : (
              <Empty title="No dead letters" command={`penstock dlq list ${queue || "QUEUE"}`}>
                A message that fails as many times as its queue allows ends up here, with its last error.
              </Empty>
            )
          }
        </View>
      </Card>
      {chosenCause ? <Cause cause={chosenCause} trendFrom={loaded.data?.trend_from ?? ""} reload={loaded.reload} /> : null}
    </>
  );
}

/** Large queues are sampled: the newest of their letters. */
function Sample({ of }: { of: Signatures }) {
  const sampled = of.queues.filter((queue) => queue.is_sampled);
  return sampled.length ? <span class="soft small">of the newest {sampled.map((queue) => `${count(queue.looked_at)} of ${count(queue.letters)} in ${queue.queue}`).join(", ")}</span> : null;
}

function causeColumns(queue: string, reload: () => void): readonly Column<Signature>[] {
  const open = (cause: Signature): string => link(queue ? ["queues", queue, "dlq"] : ["dlq"], { queue: queue ? "" : cause.queue, signature: cause.signature });
  return [
    { id: "cause", title: "Cause", narrow: true, fills: true, cell: (cause) => <Link class="name" href={query.value.get("queue") ? link(["dlq"], { queue: cause.queue, signature: cause.signature }) : open(cause)}><span title={cause.text}>{cause.text}</span></Link> },
    ...(queue ? [] : [{ id: "queue", title: "Queue", cell: (cause: Signature) => <Link href={link(["queues", cause.queue])}>{cause.queue}</Link> }]),
    { id: "shares", title: "What they share", cell: (cause) => <Shared cause={cause} /> },
    { id: "trend", title: "24 hours", cell: (cause) => <Trend values={cause.trend} label={`${cause.count} in the last 24 hours by the hour: ${cause.trend.join(", ")}`} /> },
    { id: "count", title: "Count", isNumber: true, narrow: true, sort: (cause) => cause.count, cell: (cause) => count(cause.count) },
    { id: "first", title: "First", isNumber: true, sort: (cause) => cause.first_seen_at, cell: (cause) => <Time at={cause.first_seen_at} /> },
    { id: "last", title: "Last", isNumber: true, sort: (cause) => cause.last_seen_at, cell: (cause) => <Time at={cause.last_seen_at} /> },
    { id: "redrive", title: "", cell: (cause) => <Action class="in-row" queue={cause.queue} onClick={() => redrive(cause.queue, { signature: cause.signature }, reload)}>Redrive</Action> },
  ];
}

function Shared({ cause }: { cause: Signature }) {
  const [first] = cause.shares;
  if (!first) return <Dash />;
  return (
    <Badge plain title={`${first.failed_percent} % of the failed, ${first.healthy_percent} % of the healthy`}>
      <code>
        {first.field} = {first.value.slice(0, 32)}
      </code>
    </Badge>
  );
}

/** One cause: what its letters share, and what can be done about all of them. */
function Cause({ cause, trendFrom, reload }: { cause: Signature; trendFrom: string; reload: () => void }) {
  const filter = { signature: cause.signature };
  return (
    <Card
      title={cause.text}
      actions={
        <span class="row">
          <Action queue={cause.queue} class="primary" onClick={() => redrive(cause.queue, filter, reload)}>
            Redrive {count(cause.count)}
          </Action>
          {may("push", cause.queue) ? (
            <Action queue={cause.queue} onClick={() => editAll(cause, reload)}>
              Edit and redrive
            </Action>
          ) : null}
          <Action queue={cause.queue} onClick={() => discard(cause.queue, filter, reload)}>
            Discard
          </Action>
          <button class="quiet" onClick={() => setQuery({ signature: "" })}>
            Close
          </button>
        </span>
      }
    >
      <p class="soft small">
        {Object.entries(cause.reasons).map(([reason, number]) => `${count(number)} ${reason}`).join(", ")}
        {trendFrom ? ` · trend since ${local(trendFrom)}` : ""} · such as{" "}
        {cause.samples.slice(0, 3).map((id, index) => (
          <span key={id}>
            {index ? ", " : ""}
            <Link href={messageLink(id)}>{id}</Link>
          </span>
        ))}
      </p>
      {cause.shares.length ? (
        <>
          <h3>What the failed share and the healthy do not</h3>
          <div class="shares">
            {cause.shares.map((share) => (
              <div key={share.field + share.value} class="share">
                <code>
                  {share.field} = {share.value}
                </code>
                <Bar part={share.failed_percent} whole={100} tone="danger" label={`${share.failed_percent} % of the failed`} />
                <span class="number">{share.failed_percent.toFixed(0)} % failed</span>
                <Bar part={share.healthy_percent} whole={100} label={`${share.healthy_percent} % of the healthy`} />
                <span class="number soft">{share.healthy_percent.toFixed(0)} % healthy</span>
              </div>
            ))}
          </div>
        </>
      ) : (
        <p class="soft">Nothing in the payloads, keys and headers tells them from messages that were acknowledged.</p>
      )}
    </Card>
  );
}

const LIMIT = 1000;

function Letters({ queue }: { queue: string }) {
  const selected = useSignal<Set<string>>(new Set());
  const arrived = useSignal(0);
  const isAll = useSignal(false);
  const search = query.value.get("q") ?? "";
  const signature = query.value.get("signature") ?? "";
  const loaded = useLoad(`dlq,${queue},${search},${signature}`, async (abort) => {
    const page = await get<Schemas["Messages"]>(["queues", queue, "dlq"], { limit: LIMIT, error_contains: search, signature }, abort);
    arrived.value = 0;
    return page;
  });
  useEffect(() => {
    let known: number | null = null;
    return subscribe({ topics: ["dead_letters"], interval_ms: 1000 }, (event) => {
      const changed = (event["dead_letters"] ?? []) as { queue: string; dead: number }[];
      const dead = changed.find((item) => item.queue === queue)?.dead;
      if (dead === undefined) return;
      if (known !== null) arrived.value += Math.max(0, dead - known);
      known = dead;
    }, () => undefined);
  }, [queue]);
  useEffect(() => {
    selectAllMatching.value = () => (isAll.value = true);
    return () => void (selectAllMatching.value = null);
  }, []);
  const done = (): void => {
    selected.value = new Set();
    isAll.value = false;
    loaded.reload();
    void refresh();
  };
  const filter = { ...(search ? { error_contains: search } : {}), ...(signature ? { signature } : {}) };
  if (loaded.data && !loaded.data.messages.length && !search && !signature) return null; // the causes say so already
  return (
    <>
      <div class="filter-bar">
        <input data-filter type="search" placeholder="Filter by error" aria-label="Filter by error" value={search} onChange={(event) => setQuery({ q: event.currentTarget.value })} />
        <Action queue={queue} onClick={() => redrive(queue, filter, done)}>
          Redrive all that match
        </Action>
        <Action queue={queue} onClick={() => discard(queue, filter, done)}>
          Discard all that match
        </Action>
      </div>
      <Card class="flush">
        <View of={loaded}>
          {({ messages }) =>
            messages.length ? (
              <>
                <Table
                  label="Dead letters"
                  rows={messages}
                  columns={LETTER_COLUMNS}
                  rowKey={(message) => message.id}
                  href={(message) => messageLink(message.id)}
                  selected={selected.value}
                  onSelect={(keys) => (selected.value = keys)}
                  news={{ count: arrived.value, show: loaded.reload }}
                />
                <div class="table-foot">
                  {plural(messages.length, "dead letter")}
                  {messages.length === LIMIT ? ", the oldest; a filter finds others" : ""}
                </div>
              </>
            ) : (
              <Empty title="No dead letter matches">Change the filter to see others.</Empty>
            )
          }
        </View>
      </Card>
      {selected.value.size || isAll.value ? (
        <div class="selection" role="status">
          <strong>{isAll.value ? "All that match are selected" : `${plural(selected.value.size, "dead letter")} selected`}</strong>
          {isAll.value ? null : <button onClick={() => (isAll.value = true)}>Select all that match</button>}
          <Action queue={queue} onClick={() => redrive(queue, isAll.value ? filter : { ids: [...selected.value] }, done)}>
            Redrive
          </Action>
          {selected.value.size === 1 && !isAll.value ? (
            <Action queue={queue} onClick={() => edit(queue, loaded.data?.messages.find((message) => selected.value.has(message.id)), done)}>
              Edit and redrive
            </Action>
          ) : null}
          <Action queue={queue} onClick={() => discard(queue, isAll.value ? filter : { ids: [...selected.value] }, done)}>
            Discard
          </Action>
          <button class="quiet" onClick={() => ((selected.value = new Set()), (isAll.value = false))}>
            Clear
          </button>
        </div>
      ) : null}
    </>
  );
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
  { id: "died", title: "Died", isNumber: true, cell: (message) => <Time at={message.pushed_at} /> },
  { id: "group", title: "Group", cell: (message) => message.headers["penstock-group"] ?? "–" },
  { id: "attempts", title: "Attempts", isNumber: true, cell: (message) => message.headers["penstock-attempts"] ?? "–" },
  { id: "error", title: "Error", narrow: true, cell: (message) => <span title={message.headers["penstock-error"]}>{message.headers["penstock-error"] || message.headers["penstock-reason"] || "–"}</span> },
  { id: "payload", title: "Payload", fills: true, cell: (message) => <code dir="auto">{preview(message)}</code> },
];

type LetterFilter = { signature?: string; error_contains?: string; ids?: string[] };

function flags(filter: LetterFilter): string {
  const words = [...(filter.signature ? [`--signature ${filter.signature}`] : []), ...(filter.error_contains ? [`--error-contains '${filter.error_contains}'`] : []), ...(filter.ids ?? []).map((id) => `--id ${id}`)];
  return words.length ? ` ${words.join(" ")}` : "";
}

function redrive(queue: string, filter: LetterFilter, done: () => void): void {
  askBulk({
    parts: ["queues", queue, "dlq", "redrive"],
    body: filter,
    verb: "Redrive",
    noun: "dead letter",
    effect: "Each becomes ready again in the group where it failed, with its attempts counted from zero.",
    command: `penstock dlq redrive ${queue}${flags(filter)}`,
    done,
  });
}

function discard(queue: string, filter: LetterFilter, done: () => void): void {
  askBulk({
    parts: ["queues", queue, "dlq", "purge"],
    body: filter,
    verb: "Discard",
    noun: "dead letter",
    effect: "They will not be redriven. This cannot be undone.",
    danger: true,
    command: `penstock dlq purge ${queue}${flags(filter)}`,
    done,
  });
}

/** The same change to every payload of a cause, then redrive: a merge patch. */
function editAll(cause: Signature, done: () => void): void {
  const fields = cause.shares.filter((share) => /^[\w.]+$/.test(share.field) && share.field !== "key");
  const [first] = fields;
  let text = exactJson(first ? nested(first.field.split("."), "") : { field: "value" }, "  ");
  askBulk({
    parts: ["queues", cause.queue, "dlq", "redrive"],
    body: { signature: cause.signature },
    verb: "Edit and redrive",
    noun: "dead letter",
    effect: "Each is replaced by a new message with the changed payload, in one step.",
    command: `penstock dlq redrive ${cause.queue} --signature ${cause.signature} --edit '…'`,
    fields: (
      <Field label="Change to every payload" hint="JSON: a field with a value sets it, null removes it, other fields stay as they are.">
        <textarea rows={6} spellcheck={false} onInput={(event) => (text = event.currentTarget.value)}>
          {text}
        </textarea>
      </Field>
    ),
    more: () => ({ edit: JSON.parse(text) as unknown }),
    done,
  });
}

const nested = (path: readonly string[], value: unknown): unknown => path.reduceRight((inner, name) => ({ [name]: inner }), value);

function edit(queue: string, message: Message | undefined, done: () => void): void {
  if (!message) return;
  let text = isPlainText(message) ? message.payload : message.payload_base64 === undefined ? exactJson(message.payload, "  ") : "";
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
      const payload = isPlainText(message) ? { payload: text, content_type: "text/plain" } : { payload: JSON.parse(text) as unknown };
      await post(["queues", queue, "dlq", "replace"], { ids: [message.id], messages: [{ ...payload, ...(message.key === null ? {} : { key: message.key }) }] });
      done();
    },
  });
}
