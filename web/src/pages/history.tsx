// The past: rates, backlog and latencies of a queue or of the whole broker, from minutes to a year.
import { useEffect } from "preact/hooks";
import { get, type Schemas } from "../api";
import { duration, rate, short } from "../format";
import { Chart, type Series } from "../parts/chart";
import { useInterval, useLoad, View } from "../parts/load";
import { Card, Empty, Page } from "../parts/ui";
import { sortedRows, watchQueues } from "../queues";
import { link, query, setQuery } from "../router";

type History = Schemas["HistorySeries"];

const SPANS: readonly [string, string, number][] = [
  ["5m", "5 minutes", 300],
  ["1h", "1 hour", 3_600],
  ["1d", "1 day", 86_400],
  ["14d", "14 days", 14 * 86_400],
  ["90d", "90 days", 90 * 86_400],
  ["1y", "1 year", 365 * 86_400],
];

interface ChartSpec {
  title: string;
  unit: string;
  lines: [metric: string, name: string, color: Series["color"]][];
  format: (value: number) => string;
}

const CHARTS: readonly ChartSpec[] = [
  { title: "Messages per second", unit: "per second", format: rate, lines: [["pushed_per_second", "Pushed", "accent"], ["acked_per_second", "Acknowledged", "second"]] },
  { title: "Backlog", unit: "messages", format: short, lines: [["backlog", "Not settled", "accent"]] },
  { title: "From push to delivery", unit: "time", format: duration, lines: [["latency_p50_ms", "p50", "soft"], ["latency_p95_ms", "p95", "accent"], ["latency_p99_ms", "p99", "second"]] },
  { title: "Retries and dead letters per second", unit: "per second", format: rate, lines: [["retried_per_second", "Retried", "second"], ["died_per_second", "Dead", "danger"]] },
  { title: "Age of the oldest message", unit: "time", format: duration, lines: [["oldest_age_ms", "Oldest", "accent"]] },
];

const METRICS = CHARTS.flatMap((chart) => chart.lines.map(([metric]) => metric)).join();
const WEEK = 7 * 86_400;

interface Range {
  from: number;
  to: number;
}

function range(): Range {
  const [from, to] = [query.value.get("from"), query.value.get("to")];
  if (from && to) return { from: Date.parse(from) / 1000, to: Date.parse(to) / 1000 };
  const now = Date.now() / 1000;
  const seconds = SPANS.find(([id]) => id === (query.value.get("span") ?? "1h"))?.[2] ?? 3_600;
  return { from: now - seconds, to: now };
}

const iso = (seconds: number): string => new Date(seconds * 1000).toISOString();

function load(queue: string, { from, to }: Range, shift: number, abort: AbortSignal): Promise<History> {
  return get<History>(["history", "series"], { queue: queue || undefined, metric: METRICS, from: iso(from - shift), to: iso(to - shift) }, abort);
}

export default function HistoryPage() {
  useEffect(watchQueues, []);
  const queue = query.value.get("queue") ?? "";
  const name = queue || "the whole broker";
  return (
    <Page title="History">
      <div class="filter-bar">
        <select aria-label="Queue" value={queue} onChange={(event) => setQuery({ queue: event.currentTarget.value })}>
          <option value="">The whole broker</option>
          {[...new Set([...(queue ? [queue] : []), ...sortedRows.value.map((row) => row.name)])].map((item) => (
            <option key={item} value={item}>
              {item}
            </option>
          ))}
        </select>
      </div>
      <HistoryCharts queue={queue} name={name} />
    </Page>
  );
}

export function HistoryCharts({ queue, name }: { queue: string; name: string }) {
  const span = query.value.get("span") ?? "1h";
  const chosen = query.value.get("from") ?? "";
  const isCompared = query.value.get("compare") === "week";
  const key = [queue, span, chosen, query.value.get("to"), isCompared].join();
  const loaded = useLoad(`history,${key}`, (abort) => load(queue, range(), 0, abort));
  const before = useLoad(isCompared ? `week,${key}` : null, (abort) => load(queue, range(), WEEK, abort));
  useInterval(loaded.reload, chosen ? 3600 : span === "5m" ? 5 : 30);
  const zoom = (from: number, to: number): void => setQuery({ from: iso(from), to: iso(to) }, { replace: false });
  return (
    <>
      <div class="filter-bar">
        <span class="segmented" role="group" aria-label="Span">
          {SPANS.map(([id, title]) => (
            <button key={id} aria-pressed={!chosen && id === span} onClick={() => setQuery({ span: id, from: "", to: "" })}>
              {title}
            </button>
          ))}
        </span>
        <label class="check">
          <input type="checkbox" checked={isCompared} onChange={() => setQuery({ compare: isCompared ? "" : "week" })} /> with the week before
        </label>
        {chosen ? <button onClick={() => setQuery({ from: "", to: "" })}>Zoom out</button> : <span class="soft small">Drag over a chart to zoom in</span>}
      </div>
      <View of={loaded}>
        {(history) =>
          history.times.length ? (
            <>
              {history.begins_at && Date.parse(history.begins_at) > Date.parse(history.from) ? <p class="soft small">History of this resolution begins at {new Date(history.begins_at).toLocaleString("sv")}.</p> : null}
              <div class="columns">
                {CHARTS.map((chart) => (
                  <Card key={chart.title} title={chart.title}>
                    <Chart label={`${chart.title} of ${name}`} times={history.times} format={chart.format} onSelect={zoom} series={lines(chart, history, isCompared ? before.data : undefined)} />
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

function lines(chart: ChartSpec, history: History, before: History | undefined): Series[] {
  const now = chart.lines.map(([metric, name, color]): Series => ({ name, color, values: history.series[metric] ?? [] }));
  const [first] = chart.lines;
  if (!before || !first) return now;
  const past = before.series[first[0]] ?? [];
  return [...now, { name: `${first[1]}, a week before`, color: "soft", isDashed: true, values: history.times.map((_, index) => past[index] ?? null) }];
}
