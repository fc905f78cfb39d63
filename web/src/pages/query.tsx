// SQL over everything the broker keeps, live and past. It only reads, and only what the person may read.
import { useEffect, useState } from "preact/hooks";
import { type ApiError, post, type Schemas } from "../api";
import { count, duration, plural } from "../format";
import { asError } from "../parts/dialog";
import { Problem, Skeleton } from "../parts/load";
import { exactJson } from "../parts/payload";
import { Table } from "../parts/table";
import { Card, Command, Empty, Page } from "../parts/ui";
import { query as address, setQuery } from "../router";

type Result = Schemas["QueryResult"];

const EXAMPLES: readonly [string, string][] = [
  ["Messages of each queue", "select queue, count(*) as messages, max(pushed_at) as newest\nfrom messages group by queue order by messages desc"],
  ["How deliveries ended", "select queue, outcome, sum(count) as messages, max(attempt) as attempts\nfrom events group by queue, outcome order by messages desc"],
  ["Errors of tasks", "select task_type, error, count(*) as tasks\nfrom tasks where state = 'dead' group by task_type, error order by tasks desc"],
  ["Pushed per minute", "select date_trunc('minute', pushed_at) as minute, count(*) as messages\nfrom messages group by 1 order by 1 desc limit 60"],
];

export default function QueryPage() {
  const [text, setText] = useState(address.value.get("query") ?? EXAMPLES[0]?.[1] ?? "");
  const [result, setResult] = useState<{ data: Result; milliseconds: number } | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const [isBusy, setBusy] = useState(false);
  const run = async (statement: string): Promise<void> => {
    setQuery({ query: statement, sort: "" });
    setBusy(true);
    setError(null);
    const began = performance.now();
    try {
      const data = await post<Result>(["history", "query"], { query: statement, limit: 1000 });
      setResult({ data, milliseconds: performance.now() - began });
    } catch (problem) {
      setError(asError(problem));
    } finally {
      setBusy(false);
    }
  };
  useEffect(() => {
    if (address.value.get("query")) void run(text); // a link shows what it found
  }, []);
  const onKey = (event: KeyboardEvent): void => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      void run(text);
    }
  };
  return (
    <Page title="Query">
      <Card>
        <label class="unseen" for="statement">
          SQL
        </label>
        <textarea id="statement" class="sql" spellcheck={false} rows={6} value={text} onInput={(event) => setText(event.currentTarget.value)} onKeyDown={onKey} />
        <div class="row query-foot">
          <button class="primary" disabled={isBusy || !text.trim()} onClick={() => void run(text)}>
            {isBusy ? "Running…" : "Run"}
          </button>
          <kbd>Ctrl Enter</kbd>
          <span class="soft small">Views: messages, events, tasks, and one for each queue. At most 10 s and 1,000 rows.</span>
        </div>
      </Card>
      {error ? <Problem error={error} retry={() => void run(text)} /> : null}
      {isBusy && !result ? <Skeleton rows={5} /> : null}
      {result && !error ? <ResultTable result={result.data} milliseconds={result.milliseconds} /> : null}
      {result || isBusy ? null : <Examples run={(statement) => (setText(statement), void run(statement))} />}
      <p class="soft small">
        In a terminal: <Command text={`penstock sql ${JSON.stringify(text.replace(/\s+/g, " "))}`} />
      </p>
    </Page>
  );
}

function Examples({ run }: { run: (statement: string) => void }) {
  return (
    <Card title="Examples">
      <ul class="examples">
        {EXAMPLES.map(([title, statement]) => (
          <li key={title}>
            <button class="link" onClick={() => run(statement)}>
              {title}
            </button>
            <code>{statement.replace(/\s+/g, " ")}</code>
          </li>
        ))}
      </ul>
    </Card>
  );
}

function ResultTable({ result, milliseconds }: { result: Result; milliseconds: number }) {
  const rows = result.rows.map((values, index) => ({ index, values }));
  if (!rows.length) return <Empty title="No rows">The statement ran in {duration(milliseconds)} and found nothing.</Empty>;
  const isNumber = result.columns.map((column) => /^(u?int|float|double|decimal)/.test(column.type));
  return (
    <Card class="flush">
      <Table
        label="Result"
        rows={rows}
        rowKey={(row) => String(row.index)}
        columns={result.columns.map((column, index) => ({
          id: `${index}`,
          title: column.name,
          hint: column.type,
          narrow: true,
          isNumber: isNumber[index] ?? false,
          sort: (row: (typeof rows)[number]) => sortValue(row.values[index]),
          cell: (row: (typeof rows)[number]) => <Cell value={row.values[index]} />,
        }))}
      />
      <div class="table-foot">
        {plural(rows.length, "row")}
        {result.is_cut ? ", and more that are not shown" : ""} in {duration(milliseconds)}
      </div>
    </Card>
  );
}

function sortValue(value: unknown): number | string {
  return typeof value === "number" ? value : value === null ? "" : typeof value === "string" ? value : exactJson(value);
}

function Cell({ value }: { value: unknown }) {
  if (value === null || value === undefined) return <span class="soft">null</span>;
  if (typeof value === "number") return <>{Number.isInteger(value) ? count(value) : value}</>;
  const text = typeof value === "string" ? value : exactJson(value);
  return <span dir="auto" title={text.slice(0, 2000)}>{text.slice(0, 200)}</span>;
}

