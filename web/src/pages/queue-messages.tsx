// The messages of a queue: everything that was pushed, what is next, and what is not due yet.
import { get, type Schemas } from "../api";
import { plural } from "../format";
import { useLoad, View } from "../parts/load";
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

export function Messages({ name }: { name: string }) {
  const mode = query.value.get("show") ?? "log";
  return (
    <>
      <div class="filter-bar">
        <select aria-label="Show" value={mode} onChange={(event) => setQuery({ show: event.currentTarget.value })}>
          <option value="log">Everything that was pushed</option>
          <option value="peek">Next to be delivered</option>
          <option value="delayed">Not due yet</option>
        </select>
        {mode === "log" ? <Position /> : null}
      </div>
      <Card class="flush">
        <Listed name={name} mode={mode} />
      </Card>
    </>
  );
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
