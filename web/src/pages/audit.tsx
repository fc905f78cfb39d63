// Who did what: the audit log, newest first.
import { get, type Schemas } from "../api";
import { plural } from "../format";
import { useLoad, View } from "../parts/load";
import { type Column, Table } from "../parts/table";
import { Badge, Card, Empty, Page, Time } from "../parts/ui";
import { query, setQuery } from "../router";

type AuditRecord = Schemas["AuditRecord"];

const LIMIT = 500;
const PLACEHOLDERS = { who: "Who, such as alice", what: "What, such as purge_queue", outcome: "Outcome, such as denied" };

function argumentsText(record: AuditRecord): string {
  return Object.entries(record.arguments).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`).join(" ") || "–";
}

const COLUMNS: readonly Column<AuditRecord>[] = [
  { id: "at", title: "When", narrow: true, cell: (record) => <Time at={record.at} /> },
  { id: "who", title: "Who", narrow: true, cell: (record) => <span class="name">{record.who || "nobody"}</span> },
  { id: "what", title: "What", narrow: true, cell: (record) => record.what },
  { id: "outcome", title: "Outcome", cell: (record) => <Badge tone={record.outcome === "ok" ? "ok" : "danger"}>{record.outcome}</Badge> },
  { id: "queue", title: "Queue", cell: (record) => record.queue || "–" },
  { id: "arguments", title: "Arguments", fills: true, cell: (record) => <code>{argumentsText(record)}</code> },
  { id: "count", title: "Times", isNumber: true, cell: (record) => record.count },
  { id: "from", title: "From", cell: (record) => `${record.address} ${record.protocol}` },
];

const FILTERS = ["who", "what", "outcome"] as const;

export default function Audit() {
  const filter = Object.fromEntries(FILTERS.map((name) => [name, query.value.get(name) ?? ""]));
  const isFiltered = Object.values(filter).some(Boolean);
  const loaded = useLoad(`audit,${JSON.stringify(filter)}`, (abort) => get<Schemas["Records"]>(["audit"], { ...filter, limit: LIMIT }, abort));
  return (
    <Page title="Audit" actions={<button onClick={loaded.reload}>Reload</button>}>
      <div class="filter-bar even">
        {FILTERS.map((name, index) => (
          <input key={name} {...(index === 0 ? { "data-filter": true } : {})} type="search" aria-label={name} placeholder={PLACEHOLDERS[name]} value={filter[name] ?? ""} onChange={(event) => setQuery({ [name]: event.currentTarget.value })} />
        ))}
      </div>
      <Card class="flush">
        <View of={loaded}>
          {({ records }) =>
            records.length ? (
              <>
                <Table label="Audit log" rows={records} columns={COLUMNS} rowKey={(record) => String(record.sequence)} />
                <div class="table-foot">
                  {plural(records.length, "record")}
                  {records.length === LIMIT ? ", the newest; a filter finds others" : ""}
                </div>
              </>
            ) : (
              <Empty title={isFiltered ? "No record matches" : "No records yet"} command="penstock audit list">
                Changes by operators, denied requests and logins are recorded here.
              </Empty>
            )
          }
        </View>
      </Card>
    </Page>
  );
}
