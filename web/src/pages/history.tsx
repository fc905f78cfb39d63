// The past: rates, backlog and latencies of a queue or of the whole broker, from minutes to a year.
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get, may, type Schemas } from "../api";
import { duration, local, rate, serverNow, short } from "../format";
import { Chart, DURATION_STEPS } from "../parts/chart";
import { useInterval, useLoad, View } from "../parts/load";
import type { Series } from "../parts/chart-frame";
import { QueueSelect } from "../parts/queue-select";
import { Card, Empty, Page } from "../parts/ui";
import { SavedViews } from "../parts/views";
import { sortedRows, watchQueues } from "../queues";
import { Link, link, query, setQuery } from "../router";
import { replay } from "./replay";

type History = Schemas["HistorySeries"];

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

/** A forecast reaches as far ahead as a quarter of the span. */
async function load(queue: string, compare: number | undefined, isForecast: boolean, abort: AbortSignal): Promise<History> {
  const { from, to } = range();
  const forecast = isForecast ? Math.ceil((to - from) / 4) : undefined;
  return finished(await get<History>(["history", "series"], { queue, metric: METRICS, from: iso(from), to: iso(to), compare, forecast, marks: "true" }, abort));
}

/** Without a last step that is still going on: its rates would look like a fall. */
function finished(history: History): History {
  const last = history.times.at(-1);
  if (last === undefined || history.times.length < 3 || last + history.step <= serverNow() / 1000) return history;
  const cut = (series: History["series"]): History["series"] => Object.fromEntries(Object.entries(series).map(([name, values]) => [name, values.slice(0, -1)]));
  return { ...history, times: history.times.slice(0, -1), series: cut(history.series), previous: cut(history.previous) };
}

export default function HistoryPage() {
  useEffect(watchQueues, []);
  const queue = query.value.get("queue") ?? "";
  return (
    <Page
      title="History"
      actions={
        <>
          <QueueSelect all="The whole broker" names={sortedRows.value.map((row) => row.name)} />
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
  const isForecast = query.value.get("forecast") === "on";
  const picked = useSignal<Range | null>(null);
  const key = [queue, span, zoomed, query.value.get("to"), isCompared, isForecast].join();
  const loaded = useLoad(`history,${key}`, (abort) => load(queue, isCompared ? WEEK : undefined, isForecast, abort));
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
          <input type="checkbox" checked={isCompared} onChange={() => setQuery({ compare: isCompared ? "" : "week" })} /> Compare with the previous week
        </label>
        <label class="check">
          <input type="checkbox" checked={isForecast} onChange={() => setQuery({ forecast: isForecast ? "" : "on" })} /> Show the forecast
        </label>
        {zoomed ? <button onClick={() => setQuery({ from: "", to: "" })}>Zoom out</button> : null}
        <span class="soft small">{picked.value ? "" : "Drag across a chart to select a time range"}</span>
      </div>
      {picked.value ? <Picked range={picked.value} queue={queue} clear={() => (picked.value = null)} /> : null}
      <View of={loaded}>
        {(history) =>
          history.times.length ? (
            <>
              <Marks history={history} />
              {history.forecast && !isKnown(history.forecast) ? <p class="small soft">There is too little history for a forecast: it takes 8 whole hours, or days where a step is a day.</p> : null}
              <div class="columns">
                {CHARTS.map((chart) => (
                  <Card key={chart.title} title={chart.title}>
                    <Chart
                      label={`${chart.title} of ${name}`}
                      times={[...history.times, ...(history.forecast?.times ?? [])]}
                      format={chart.format}
                      steps={chart.format === duration ? DURATION_STEPS : undefined}
                      marks={history.marks.map((mark) => Date.parse(mark.at) / 1000)}
                      series={lines(chart, history)}
                      onSelect={(from, to) => (picked.value = { from, to: !zoomed && to >= (history.times.at(-1) ?? 0) - 2 * history.step ? Date.now() / 1000 : to })}
                    />
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

/** Where history begins, and changes of options and pauses: each is a dashed line in the charts. */
function Marks({ history }: { history: History }) {
  const { marks, begins_at } = history;
  const isCut = begins_at !== null && Date.parse(begins_at) > Date.parse(history.from);
  if (!marks.length && !isCut) return null;
  return (
    <ul class="marks small soft" aria-label="Changes in this span">
      {isCut ? <li>History begins at {local(begins_at)}</li> : null}
      {marks.slice(-MARKS_SHOWN).map((mark) => (
        <li key={mark.at + mark.what + mark.queue} class="key warning" title={`${local(mark.at)} ${mark.by}`}>
          {local(mark.at).slice(11, 16)} {mark.what.replace(/_/g, " ")} {mark.queue} {mark.text} {mark.by ? <span>by {mark.by}</span> : null}
        </li>
      ))}
      {marks.length > MARKS_SHOWN ? <li>and {marks.length - MARKS_SHOWN} earlier</li> : null}
    </ul>
  );
}

const isKnown = (forecast: Schemas["SeriesForecast"]): boolean => Object.values(forecast.series).some((band) => band.value.some((value) => value !== null));

/** The lines of a chart: as it was, and of its first metric a week before and what is expected, where that is asked for. */
function lines(chart: ChartSpec, history: History): Series[] {
  const drawn = chart.lines.map(([metric, name, color]): Series => ({ name, color, values: history.series[metric] ?? [] }));
  const [first] = chart.lines;
  if (!first) return drawn;
  const [metric, name] = first;
  const dashed = (what: string, values: Series["values"]): Series => ({ name: `${name}, ${what}`, color: "soft", isDashed: true, values });
  const before = history.previous[metric];
  const band = history.forecast && isKnown(history.forecast) ? history.forecast.series[metric] : undefined;
  const later = (values: Series["values"]): Series["values"] => [...history.times.map(() => null), ...values];
  return [
    ...drawn,
    ...(before ? [dashed("a week before", before)] : []),
    ...(band ? [dashed("expected", later(band.value)), dashed("at least", later(band.low)), dashed("at most", later(band.high))] : []),
  ];
}
