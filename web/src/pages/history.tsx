// The past: rates, backlog and latencies of a queue or of the whole broker, from minutes to a year.
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get, may, type Schemas } from "../api";
import { duration, local, rate, short } from "../format";
import { Chart } from "../parts/chart";
import { useInterval, useLoad, View } from "../parts/load";
import type { Series } from "../parts/numbers";
import { Card, Empty, Page } from "../parts/ui";
import { SavedViews } from "../parts/views";
import { sortedRows, watchQueues } from "../queues";
import { Link, link, query, setQuery } from "../router";
import { replay } from "./replay";

interface Mark {
  at: string;
  queue: string;
  what: string;
  by: string;
  text: string;
}

type History = Schemas["HistorySeries"];

/** Changes of a queue that are marked in its charts, by their names in the audit log. */
const MARKED = new Set(["update_queue", "pause_queue", "resume_queue", "purge_queue", "create_group", "delete_group", "seek"]);

const SPANS: readonly [string, string, number][] = [
  ["5m", "5 min", 300],
  ["1h", "1 hour", 3_600],
  ["1d", "1 day", 86_400],
  ["14d", "14 days", 14 * 86_400],
  ["90d", "90 days", 90 * 86_400],
  ["1y", "1 year", 365 * 86_400],
];

interface ChartSpec {
  title: string;
  lines: [metric: string, name: string, color: Series["color"]][];
  format: (value: number) => string;
}

const CHARTS: readonly ChartSpec[] = [
  { title: "Messages per second", format: rate, lines: [["pushed_per_second", "Pushed", "accent"], ["acked_per_second", "Acknowledged", "second"]] },
  { title: "Backlog", format: short, lines: [["backlog", "Not settled", "accent"]] },
  { title: "From push to delivery", format: duration, lines: [["latency_p50_ms", "p50", "soft"], ["latency_p95_ms", "p95", "accent"], ["latency_p99_ms", "p99", "second"]] },
  { title: "Retries and dead letters per second", format: rate, lines: [["retried_per_second", "Retried", "second"], ["died_per_second", "Dead", "danger"]] },
  { title: "Age of the oldest message", format: duration, lines: [["oldest_age_ms", "Oldest", "accent"]] },
];

const METRICS = CHARTS.flatMap((chart) => chart.lines.map(([metric]) => metric)).join();
const WEEK = 7 * 86_400;

export interface Range {
  from: number; // seconds
  to: number;
}

function range(): Range {
  const [from, to] = [query.value.get("from"), query.value.get("to")];
  if (from && to) return { from: Date.parse(from) / 1000, to: Date.parse(to) / 1000 };
  const now = Date.now() / 1000;
  const seconds = SPANS.find(([id]) => id === (query.value.get("span") ?? "1h"))?.[2] ?? 3_600;
  return { from: now - seconds, to: now };
}

export const iso = (seconds: number): string => new Date(seconds * 1000).toISOString();

function load(queue: string, shift: number, abort: AbortSignal): Promise<History> {
  const { from, to } = range();
  return get<History>(["history", "series"], { queue: queue || undefined, metric: METRICS, from: iso(from - shift), to: iso(to - shift) }, abort);
}

/** What somebody changed in the span, from the audit log; nothing for those who may not read it. */
async function loadMarks(queue: string, abort: AbortSignal): Promise<Mark[]> {
  const { from, to } = range();
  if (!may("read", "penstock.audit")) return [];
  const { records } = await get<Schemas["Records"]>(["audit"], { since: iso(from), limit: 500 }, abort);
  return records
    .filter((record) => MARKED.has(record.what) && record.outcome === "ok" && (!queue || record.queue === queue) && Date.parse(record.at) / 1000 <= to)
    .map((record) => ({ at: record.at, queue: record.queue, what: record.what, by: record.who, text: Object.entries(record.arguments).map(([name, value]) => `${name}=${String(value)}`).join(" ") }))
    .sort((a, b) => a.at.localeCompare(b.at));
}

export default function HistoryPage() {
  useEffect(watchQueues, []);
  const queue = query.value.get("queue") ?? "";
  return (
    <Page
      title="History"
      actions={
        <>
          <select aria-label="Queue" value={queue} onChange={(event) => setQuery({ queue: event.currentTarget.value })}>
            <option value="">The whole broker</option>
            {[...new Set([...(queue ? [queue] : []), ...sortedRows.value.map((row) => row.name)])].map((item) => (
              <option key={item} value={item}>
                {item}
              </option>
            ))}
          </select>
          <SavedViews page="history" />
        </>
      }
    >
      <HistoryCharts queue={queue} name={queue || "the whole broker"} />
    </Page>
  );
}

export function HistoryCharts({ queue, name }: { queue: string; name: string }) {
  const span = query.value.get("span") ?? "1h";
  const zoomed = query.value.get("from") ?? "";
  const isCompared = query.value.get("compare") === "week";
  const picked = useSignal<Range | null>(null);
  const key = [queue, span, zoomed, query.value.get("to"), isCompared].join();
  const loaded = useLoad(`history,${key}`, (abort) => load(queue, 0, abort));
  const before = useLoad(isCompared ? `week,${key}` : null, (abort) => load(queue, WEEK, abort));
  const marks = useLoad(`marks,${key}`, (abort) => loadMarks(queue, abort));
  useInterval(loaded.reload, zoomed ? 3600 : span === "5m" ? 5 : 30);
  return (
    <>
      <div class="filter-bar">
        <span class="segmented" role="group" aria-label="Span">
          {SPANS.map(([id, title]) => (
            <button key={id} aria-pressed={!zoomed && id === span} onClick={() => setQuery({ span: id, from: "", to: "" })}>
              {title}
            </button>
          ))}
        </span>
        <label class="check">
          <input type="checkbox" checked={isCompared} onChange={() => setQuery({ compare: isCompared ? "" : "week" })} /> the week before
        </label>
        {zoomed ? <button onClick={() => setQuery({ from: "", to: "" })}>Zoom out</button> : null}
        <span class="soft small grow">{picked.value ? "" : "Drag over a chart to choose a span"}</span>
      </div>
      {picked.value ? <Picked range={picked.value} queue={queue} clear={() => (picked.value = null)} /> : null}
      <View of={loaded}>
        {(history) =>
          history.times.length ? (
            <>
              {history.begins_at && Date.parse(history.begins_at) > Date.parse(history.from) ? <p class="soft small">History begins at {local(history.begins_at)}.</p> : null}
              <Marks marks={marks.data ?? []} />
              <div class="columns">
                {CHARTS.map((chart) => (
                    <Card key={chart.title} title={chart.title}>
                      <Chart label={`${chart.title} of ${name}`} times={history.times} format={chart.format} marks={(marks.data ?? []).map((mark) => Date.parse(mark.at) / 1000)} series={lines(chart, history, isCompared ? before.data : undefined)} onSelect={(from, to) => (picked.value = { from, to: !zoomed && to >= (history.times.at(-1) ?? 0) - 2 * history.step ? Date.now() / 1000 : to })} />
                    </Card>
                ))}
              </div>
            </>
          ) : (
            <Empty title="No history yet" command="penstock history">
              The broker records every second from its start on. <a href={link(["broker"])}>The setting history</a> turns it off.
            </Empty>
          )
        }
      </View>
    </>
  );
}

/** What can be done with a span that was dragged: zoom, look at a moment, replay its messages. */
function Picked({ range: { from, to }, queue, clear }: { range: Range; queue: string; clear: () => void }) {
  const zoom = (): void => {
    clear();
    setQuery({ from: iso(from), to: iso(to) }, { replace: false });
  };
  return (
    <div class="notice info inline" role="status">
      <span>
        {local(from * 1000)} to {local(to * 1000)}, {duration((to - from) * 1000)}
      </span>
      <button onClick={zoom}>Zoom in</button>
      {queue && may("read", queue) ? <button onClick={() => replay(queue, { from, to })}>Replay these messages</button> : null}
      <Link href={link(queue ? ["queues", queue] : ["queues"], { at: iso(to) })}>State at its end</Link>
      <button class="quiet" onClick={clear}>
        Clear
      </button>
    </div>
  );
}

const MARKS_SHOWN = 6;

/** Changes of options and pauses: each is a dashed line in the charts. */
function Marks({ marks }: { marks: readonly Mark[] }) {
  if (!marks.length) return null;
  return (
    <ul class="marks small soft" aria-label="Changes in this span">
      {marks.slice(-MARKS_SHOWN).map((mark) => (
        <li key={mark.at + mark.what + mark.queue} class="key warning" title={`${local(mark.at)} ${mark.by}`}>
          {local(mark.at).slice(11, 16)} {mark.what.replace(/_/g, " ")} {mark.queue} {mark.text} <span>by {mark.by || "nobody"}</span>
        </li>
      ))}
      {marks.length > MARKS_SHOWN ? <li>and {marks.length - MARKS_SHOWN} earlier</li> : null}
    </ul>
  );
}

/** The lines of a chart: as it was, and a week before. */
function lines(chart: ChartSpec, history: History, before: History | undefined): Series[] {
  const now = chart.lines.map(([metric, name, color]): Series => ({ name, color, values: history.series[metric] ?? [] }));
  const [first] = chart.lines;
  if (!before || !first) return now;
  const past = before.series[first[0]] ?? [];
  return [...now, { name: `${first[1]}, a week before`, color: "soft", isDashed: true, values: history.times.map((_, index) => past[index] ?? null) }];
}
