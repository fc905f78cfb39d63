// The live statistics of every queue, with rates and a short memory for sparklines.
import { computed, signal } from "@preact/signals";
import { ApiError, get, type Schemas } from "./api";
import { serverNow } from "./format";
import { isPaused, subscribe, type LiveEvent } from "./live";

export type QueueStats = Schemas["QueueStats"];

export interface QueueRow {
  name: string;
  stats: QueueStats;
  ready: number;
  leased: number;
  waiting: number;
  dead: number;
  acked: number;
  lag: number;
  oldestAt: string | null;
  pushedPerSecond: number | null;
  ackedPerSecond: number | null;
  backlogs: number[]; // unsettled messages, one sample per second, the newest last
}

const SAMPLES = 60;
const RATE_MS = 5_000;

interface Sample {
  at: number;
  messages: number;
  acked: number;
}

const samples = new Map<string, Sample[]>();
const backlogs = new Map<string, number[]>();
const stats = new Map<string, QueueStats>();
let sampledAt = 0;
let publishedAt = 0;

/** Null until the first numbers are there. */
export const rows = signal<Map<string, QueueRow> | null>(null);
/** Why the numbers could not be fetched the last time. */
export const problem = signal<ApiError | null>(null);
export const updatedAt = signal(0);

export interface Total {
  at: number;
  pushed: number | null;
  acked: number | null;
  backlog: number | null;
}

export const TOTALS = 300;
/** Totals over all queues, one sample per second: for the chart of the overview. */
export const totals = signal<Total[]>([]);
let isSeeded = false;

/** Put what the broker remembers before the samples of this page, once. */
export function seedTotals(): void {
  if (isSeeded) return;
  isSeeded = true;
  void recent().then(
    (past) => {
      const first = totals.value[0]?.at ?? Infinity;
      totals.value = [...past.filter((sample) => sample.at < first - 500), ...totals.value].slice(-TOTALS);
    },
    () => undefined, // without a history the charts begin now
  );
}

export const sortedRows = computed(() => [...(rows.value?.values() ?? [])].sort((a, b) => a.name.localeCompare(b.name)));

let listeners = 0;
let stop: (() => void) | null = null;

/** What the broker remembers of the last minutes: charts are full from the beginning. */
export async function recent(queue?: string): Promise<Total[]> {
  const now = serverNow();
  const { times, series } = await get<Schemas["HistorySeries"]>(["history", "series"], {
    queue,
    metric: "pushed_per_second,acked_per_second,backlog",
    from: new Date(now - TOTALS * 1000).toISOString(),
    to: new Date(now).toISOString(),
  });
  return times
    .map((time, index) => ({ at: time * 1000, pushed: smooth(series["pushed_per_second"], index), acked: smooth(series["acked_per_second"], index), backlog: series["backlog"]?.[index] ?? null }))
    .filter((sample) => sample.backlog !== null || sample.pushed !== null);
}

/** The mean of the last seconds, as long as those over which this page itself computes rates. */
function smooth(values: readonly (number | null)[] | undefined, index: number): number | null {
  const near = (values ?? []).slice(Math.max(0, index + 1 - RATE_MS / 1000), index + 1).filter((value): value is number => value !== null);
  return near.length ? near.reduce((sum, value) => sum + value, 0) / near.length : null;
}

/** Keep the statistics current while somebody looks; returns how to stop. */
export function watchQueues(): () => void {
  listeners += 1;
  if (stop === null) stop = subscribe({ topics: ["queues"], interval_ms: 1000 }, onEvent, () => void refresh());
  return () => {
    listeners -= 1;
    // Pages follow each other at once: the subscription is kept for a moment.
    setTimeout(() => {
      if (listeners === 0 && stop) {
        stop();
        stop = null;
      }
    }, 1000);
  };
}

// Queues deleted while numbers are fetched: an answer older than the deletion must not bring them back.
const fetching = new Set<Set<string>>();

/** Fetch all numbers; what goes wrong is in `problem`. */
export async function refresh(): Promise<void> {
  const deleted = new Set<string>();
  fetching.add(deleted);
  let queues: readonly QueueStats[];
  try {
    ({ queues } = await get<Schemas["StatsView"]>(["stats"]));
    problem.value = null;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    problem.value = error;
    return;
  } finally {
    fetching.delete(deleted);
  }
  queues = queues.filter((queue) => !deleted.has(queue.name));
  const names = new Set(queues.map((queue) => queue.name));
  for (const name of [...stats.keys()]) if (!names.has(name)) forget(name);
  take(queues, Date.now());
}

function onEvent(event: LiveEvent): void {
  if (event.event === "deleted") onDeleted(String(event["queue"]));
  else if (event.event === "created" || event.event === "updated") void refresh();
  else if (event.event === "counters") take(event["counters"] as QueueStats[], Date.parse(event.at));
  else if (event.event === "paused" || event.event === "resumed") void refresh();
}

function onDeleted(name: string): void {
  for (const deleted of fetching) deleted.add(name);
  forget(name);
}

function forget(name: string): void {
  stats.delete(name);
  samples.delete(name);
  backlogs.delete(name);
  publish(Date.now());
}

function take(changed: readonly QueueStats[], at: number): void {
  for (const queue of changed) stats.set(queue.name, queue);
  updatedAt.value = Date.now();
  publish(at);
}

function publish(at: number): void {
  const isSample = at - sampledAt >= 900;
  if (isSample) sampledAt = at;
  const next = new Map<string, QueueRow>();
  for (const [name, queue] of stats) next.set(name, row(queue, at, isSample));
  rows.value = next;
  publishedAt = Date.now();
  if (isSample) sampleTotals(at, next);
}

// Queues that do not change send nothing: time passes for them all the same, or their rates would never fall to zero.
setInterval(() => {
  if (stop && stats.size && !isPaused.value && Date.now() - publishedAt > 1500) publish(Date.now());
}, 1000);

function row(queue: QueueStats, at: number, isSample: boolean): QueueRow {
  const groups = Object.values(queue.groups);
  const sum = (pick: (group: Schemas["GroupStats"]) => number): number => groups.reduce((total, group) => total + pick(group), 0);
  const ages = groups.map((group) => group.oldest_unsettled_at).filter((age): age is string => Boolean(age));
  const [ready, leased, waiting, acked] = [sum((g) => g.ready), sum((g) => g.leased), sum((g) => g.waiting), sum((g) => g.acked)];
  const memory = remember(queue.name, { at, messages: queue.messages, acked });
  const history = backlogs.get(queue.name) ?? [];
  if (isSample) {
    history.push(ready + leased + waiting);
    if (history.length > SAMPLES) history.shift();
    backlogs.set(queue.name, history);
  }
  return {
    name: queue.name,
    stats: queue,
    ready,
    leased,
    waiting,
    acked,
    dead: sum((g) => g.dead),
    lag: Math.max(0, ...groups.map((g) => g.lag)),
    oldestAt: ages.sort()[0] ?? null,
    pushedPerSecond: perSecond(memory, (s) => s.messages),
    ackedPerSecond: perSecond(memory, (s) => s.acked),
    backlogs: history,
  };
}

function remember(name: string, sample: Sample): Sample[] {
  const memory = samples.get(name) ?? [];
  samples.set(name, memory);
  memory.push(sample);
  while (memory.length > 2 && sample.at - (memory[1]?.at ?? 0) >= RATE_MS) memory.shift();
  return memory;
}

function perSecond(memory: readonly Sample[], pick: (sample: Sample) => number): number | null {
  const [first, last] = [memory[0], memory.at(-1)];
  if (!first || !last || last.at - first.at < 500) return null;
  return Math.max(0, ((pick(last) - pick(first)) * 1000) / (last.at - first.at));
}

function sampleTotals(at: number, all: ReadonlyMap<string, QueueRow>): void {
  const list = [...all.values()].filter((queue) => !queue.name.startsWith("penstock."));
  const known = list.filter((queue) => queue.pushedPerSecond !== null);
  const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0);
  const sample = {
    at,
    pushed: known.length ? sum(known.map((queue) => queue.pushedPerSecond ?? 0)) : null,
    acked: known.length ? sum(known.map((queue) => queue.ackedPerSecond ?? 0)) : null,
    backlog: sum(list.map((queue) => queue.ready + queue.leased + queue.waiting)),
  };
  totals.value = [...totals.value.slice(1 - TOTALS), sample];
}

/** Seconds until the backlog is empty at the current rates, or null when it is not shrinking. */
export function drainSeconds(queue: QueueRow): number | null {
  const falling = (queue.ackedPerSecond ?? 0) - (queue.pushedPerSecond ?? 0);
  const backlog = queue.ready + queue.waiting + queue.leased;
  return backlog > 0 && falling > 0 ? backlog / falling : null;
}
