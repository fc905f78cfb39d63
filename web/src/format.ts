// Numbers, sizes, durations and times as people read them. Numbers always have a unit or a heading that names one.

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value: number): string => grouped.format(value);
export const short = (value: number): string => (Math.abs(value) < 10_000 ? grouped.format(value) : compact.format(value));

export function rate(perSecond: number | null): string {
  if (perSecond === null) return "–";
  if (perSecond === 0) return "0";
  return perSecond < 10 ? perSecond.toFixed(1) : short(Math.round(perSecond));
}

export function bytes(value: number): string {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let index = 0;
  while (value >= 1000 && index < units.length - 1) {
    value /= 1000;
    index += 1;
  }
  return `${index === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[index]}`;
}

const STEPS: readonly [number, string][] = [
  [86_400, "d"],
  [3_600, "h"],
  [60, "min"],
  [1, "s"],
];

export function duration(milliseconds: number): string {
  const seconds = milliseconds / 1000;
  if (seconds < 1) return `${Math.round(milliseconds)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const index = Math.max(0, STEPS.findIndex(([size]) => seconds >= size));
  const [size, unit] = STEPS[index] ?? [1, "s"];
  const whole = Math.floor(seconds / size);
  const next = STEPS[index + 1];
  const rest = next && whole < 10 ? Math.floor((seconds - whole * size) / next[0]) : 0;
  return next && rest ? `${whole} ${unit} ${rest} ${next[1]}` : `${whole} ${unit}`;
}

/** Milliseconds that the broker's clock is ahead of the browser's, from the last live event. */
let skew = 0;
export const setServerTime = (iso: string): void => void (skew = Date.parse(iso) - Date.now());
export const serverNow = (): number => Date.now() + skew;

/** A distance from now with one unit: it is read at a glance and does not change every second. */
export function relative(iso: string): string {
  const distance = Date.parse(iso) - serverNow();
  if (Math.abs(distance) < 1000) return "now";
  return distance > 0 ? `in ${brief(distance)}` : `${brief(-distance)} ago`;
}

/** A duration with one unit. */
export function brief(milliseconds: number): string {
  const seconds = Math.floor(milliseconds / 1000);
  const [size, unit] = STEPS.find(([step]) => seconds >= step) ?? [1, "s"];
  return `${Math.floor(seconds / size)} ${unit}`;
}

export const exact = (iso: string): string => `${new Date(iso).toLocaleString("sv")}.${iso.match(/\.(\d{3})/)?.[1] ?? "000"} · ${iso}`;
const days = new Intl.DateTimeFormat("en-GB", { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
/** A time of the next days: "Sat 31 Jan, 09:05". */
export const dayTime = (iso: string): string => days.format(new Date(iso)).replace(",", "");
/** A time in the zone of the browser: "2026-01-31 09:05:00". */
export const local = (iso: string | number): string => new Date(iso).toLocaleString("sv");

export function plural(value: number, noun: string, many = `${noun}s`): string {
  return `${count(value)} ${value === 1 ? noun : many}`;
}

/** A trace in few letters: the id in a traceparent such as 00-4bf9…-00f0…-01. */
export const traceText = (trace: string): string => `${(trace.split("-")[1] ?? trace).slice(0, 13)}…`;
