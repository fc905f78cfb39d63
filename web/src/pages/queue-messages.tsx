// The messages of a queue: those that match a filter; or everything that was pushed, what is next, and what is not due yet.
import { useSignal } from "@preact/signals";
import { at, call, get, type Schemas } from "../api";
import { count, local, plural } from "../format";
import { type Filter, FilterBar, parseFilter } from "../parts/filter";
import { useLoad, usePages, View } from "../parts/load";
import { preview } from "../parts/payload";
import { type Column, Table } from "../parts/table";
import { Card, Empty, Time } from "../parts/ui";
import { Link, messageLink, query, setQuery } from "../router";
import type { Message } from "../types";

export const MESSAGE_COLUMNS: readonly Column<Message>[] = [
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
  { id: "payload", title: "Payload", narrow: true, fills: true, cell: (message) => <code dir="auto">{preview(message)}</code> },
];

const PAGE_SIZE = 100;

const STATES = ["ready", "delayed", "leased", "waiting", "settled", "dead", "skipped"];
const FIELDS = { status: STATES, key: [], trace: [], group: [], from: [], to: [] };

export function Messages({ name }: { name: string }) {
  const text = query.value.get("q") ?? "";
  const mode = query.value.get("show") ?? "log";
  return (
    <>
      <div class="filter-bar">
        <FilterBar label="Search messages" example="status:dead key:acme text of the payload" text={text} fields={FIELDS} onChange={(q) => setQuery({ q })} />
      </div>
      {text ? null : (
        <div class="filter-bar">
          <select aria-label="Show" value={mode} onChange={(event) => setQuery({ show: event.currentTarget.value })}>
            <option value="log">Everything that was pushed</option>
            <option value="peek">Next to be delivered</option>
            <option value="delayed">Not due yet</option>
          </select>
          {mode === "log" ? <Position /> : null}
        </div>
      )}
      <Card class="flush">{text ? <Found name={name} text={text} /> : <Listed name={name} mode={mode} />}</Card>
    </>
  );
}

/** What matches, the newest first. A page of it may be short or empty though there is more to look at. */
function Found({ name, text }: { name: string; text: string }) {
  const seen = useSignal<{ examined: number; to: string | null }>({ examined: 0, to: null });
  const filter = parseFilter(text, Object.keys(FIELDS), "text");
  const pages = usePages(`found,${name},${text}`, async (cursor, abort) => {
    const body = { ...filter, limit: PAGE_SIZE, cursor };
    const page = await call<Schemas["MessagePage"]>("POST", at(["queues", name, "messages", "search"]), body, abort);
    seen.value = { examined: (cursor ? seen.value.examined : 0) + page.examined, to: page.looked_back_to };
    return { rows: page.messages, cursor: page.cursor };
  });
  const more = pages.hasMore ? (
    <button class="in-row" onClick={pages.loadMore}>
      Look further back
    </button>
  ) : null;
  return (
    <View of={pages}>
      {(messages) => (
        <>
          {messages.length ? (
            <Table label="Messages" rows={messages} columns={MESSAGE_COLUMNS} rowKey={(message) => message.id} href={(message) => messageLink(message.id)} onEnd={pages.loadMore} />
          ) : (
            <Empty title="No message matches" command={searchCommand(name, filter)}>
              {pages.hasMore ? "None so far: older messages have not been looked at." : "Change the filter to see others."}
            </Empty>
          )}
          <div class="table-foot">
            {plural(messages.length, "message")} of {count(seen.value.examined)} that were looked at
            {seen.value.to ? `, back to ${local(seen.value.to)}` : ""} {more}
          </div>
        </>
      )}
    </View>
  );
}

function searchCommand(name: string, { text, ...fields }: Filter): string {
  const flags = Object.entries(fields).map(([field, value]) => ` --${field === "status" ? "state" : field} '${value}'`);
  return `penstock search ${name}${text ? ` '${text}'` : ""}${flags.join("")}`;
}

/** Where in the log: a partition, and an offset or a time. */
function Position() {
  const [partition, offset] = [query.value.get("partition") ?? "0", query.value.get("offset") ?? ""];
  return (
    <>
      <label class="row">
        <span class="soft">Partition</span> <input size={3} value={partition} onChange={(event) => setQuery({ partition: event.currentTarget.value, offset: "" })} />
      </label>
      <label class="row">
        <span class="soft">from offset</span> <input size={8} inputMode="numeric" value={offset} onChange={(event) => setQuery({ offset: event.currentTarget.value, timestamp: "" })} />
      </label>
      <label class="row">
        <span class="soft">or time</span>
        <input type="datetime-local" step="1" onChange={(event) => setQuery({ timestamp: event.currentTarget.value ? new Date(event.currentTarget.value).toISOString() : "", offset: "" })} />
      </label>
    </>
  );
}

function Listed({ name, mode }: { name: string; mode: string }) {
  const [partition, offset, timestamp] = [query.value.get("partition") ?? "0", query.value.get("offset") ?? "", query.value.get("timestamp") ?? ""];
  const loaded = useLoad(["messages", name, partition, offset, timestamp, mode].join(), (abort) => {
    if (mode === "log") return get<Schemas["Messages"]>(["queues", name, "messages"], { partition, offset, timestamp, limit: PAGE_SIZE }, abort);
    return get<Schemas["Messages"]>(["queues", name, mode], { limit: PAGE_SIZE }, abort);
  });
  return (
    <View of={loaded}>
      {({ messages }) => {
        const last = messages.at(-1);
        return messages.length ? (
          <>
            <Table label="Messages" rows={messages} columns={MESSAGE_COLUMNS} rowKey={(message) => message.id} href={(message) => messageLink(message.id)} />
            <div class="table-foot">
              {plural(messages.length, "message")}
              {mode === "log" && messages.length === PAGE_SIZE && last ? (
                <button class="in-row" onClick={() => setQuery({ offset: last.offset + 1, timestamp: "" }, { replace: false })}>
                  Next {PAGE_SIZE}
                </button>
              ) : null}
              <button class="in-row" onClick={loaded.reload}>
                Reload
              </button>
            </div>
          </>
        ) : (
          <Empty title="No messages here" command={`penstock push ${name} '{"id": 1}'`}>
            {mode === "log" ? "Nothing is stored from this offset on." : "Nothing waits."}
          </Empty>
        );
      }}
    </View>
  );
}
