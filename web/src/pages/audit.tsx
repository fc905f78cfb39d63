// Who did what: the audit log, newest first.
import { get, type Schemas } from "../api";
import { useLoad, View } from "../parts/load";
import { type Column, Table } from "../parts/table";
import { Badge, Card, Empty, Page, Time } from "../parts/ui";
import { query, setQuery } from "../router";

type AuditRecord = Schemas["AuditRecord"];

const COLUMNS: readonly Column<AuditRecord>[] = [
  { id: "at", title: "When", narrow: true, cell: (record) => <Time at={record.at} /> },
  { id: "who", title: "Who", narrow: true, cell: (record) => <span class="name">{record.who || "nobody"}</span> },
  { id: "what", title: "What", narrow: true, cell: (record) => record.what },
  { id: "outcome", title: "Outcome", cell: (record) => <Badge tone={record.outcome === "ok" ? "ok" : "danger"}>{record.outcome}</Badge> },
  { id: "queue", title: "Queue", cell: (record) => record.queue || "–" },
  { id: "arguments", title: "Arguments", cell: (record) => <code>{JSON.stringify(record.arguments)}</code> },
  { id: "count", title: "Times", isNumber: true, cell: (record) => record.count },
  { id: "from", title: "From", cell: (record) => `${record.address} ${record.protocol}` },
];

export default function Audit() {
  const filter = Object.fromEntries(["who", "what", "outcome"].map((name) => [name, query.value.get(name) ?? ""]));
  const loaded = useLoad(`audit,${JSON.stringify(filter)}`, (abort) => get<Schemas["Records"]>(["audit"], { ...filter, limit: 500 }, abort));
  return (
    <Page title="Audit">
      <div class="filter-bar">
        {Object.entries(filter).map(([name, value], index) => (
          <label key={name} class="row">
            {name}
            <input {...(index === 0 ? { "data-filter": true } : {})} size={14} value={value} onChange={(event) => setQuery({ [name]: event.currentTarget.value })} />
          </label>
        ))}
        <button onClick={loaded.reload}>Reload</button>
      </div>
      <Card class="flush">
        <View of={loaded}>
          {({ records }) => (records.length ? <Table label="Audit log" rows={[...records].reverse()} columns={COLUMNS} rowKey={(record) => String(record.sequence)} /> : <Empty title="No record matches">Changes by operators, denied requests and logins are recorded here.</Empty>)}
        </View>
      </Card>
    </Page>
  );
}
