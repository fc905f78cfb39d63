// A time series of the past, drawn by uPlot: a span of it can be dragged.
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { local, short } from "../format";
import { isDark } from "../theme";
import { ChartFrame, type Series } from "./chart-frame";

interface ChartProps {
  label: string;
  times: readonly number[]; // seconds since 1970
  series: readonly Series[];
  marks?: readonly number[]; // seconds: something happened
  format?: (value: number) => string;
  steps?: number[] | undefined; // between two ticks of the value axis, where tens do not suit
  onSelect?: ((from: number, to: number) => void) | undefined; // seconds; a range was dragged
}

const HEIGHT = 176;
const [SECOND, MINUTE, HOUR] = [1000, 60_000, 3_600_000];
/** Milliseconds between two ticks of an axis of durations. */
export const DURATION_STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, ...[1, 2, 5, 10, 15, 30].map((step) => step * SECOND), ...[1, 2, 5, 10, 15, 30].map((step) => step * MINUTE), ...[1, 2, 6, 12, 24, 48, 168, 336, 720].map((step) => step * HOUR)];

export function Chart({ label, times, series, marks = [], format = short, steps, onSelect }: ChartProps) {
  const host = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const hovered = useSignal<number | null>(null);
  const current = useRef({ marks, onSelect });
  current.current = { marks, onSelect };
  const data = [times as number[], ...series.map((line) => line.values as (number | null)[])] as uPlot.AlignedData;
  const shape = series.map((line) => line.name + line.color).join() + isDark.value + Boolean(onSelect);

  useEffect(() => {
    const element = host.current;
    if (!element) return undefined;
    const chart = new uPlot(options(element, series, { format, steps }, current.current, (index) => (hovered.value = index), () => current.current), data, element);
    plot.current = chart;
    const resize = new ResizeObserver(() => chart.setSize({ width: element.clientWidth, height: HEIGHT }));
    resize.observe(element);
    return () => {
      resize.disconnect();
      chart.destroy();
      plot.current = null;
    };
  }, [shape]);

  // Drawn only when there is something new: a page may be drawn again for other reasons.
  const version = `${times.length},${times.at(-1)},${series.map((line) => line.values.at(-1)).join()},${marks.length}`;
  useEffect(() => plot.current?.setData(data), [version, shape]);

  return (
    <ChartFrame label={label} times={times} series={series} format={format} index={hovered.value}>
      <div ref={host} class="plot" aria-hidden="true" />
    </ChartFrame>
  );
}

function timeText(seconds: number, step: number): string {
  const text = local(seconds * 1000); // 2026-01-31 09:05:00
  if (step >= 86_400) return text.slice(5, 10);
  return step >= 60 ? text.slice(11, 16) : text.slice(11, 19);
}

function color(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

type Live = Pick<ChartProps, "marks" | "onSelect">;
// Seconds between two ticks of the time axis: round numbers, never parts of a second.
const TIME_STEPS = [1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 1_209_600, 2_592_000, 7_776_000];

function options(element: HTMLElement, series: readonly Series[], { format, steps }: { format: (value: number) => string; steps: number[] | undefined }, first: Live, onHover: (index: number | null) => void, live: () => Live): uPlot.Options {
  const font = `11px ${getComputedStyle(document.body).fontFamily}`;
  const axis = { stroke: color("soft"), grid: { stroke: color("line"), width: 1 }, ticks: { show: false }, font };
  const lines = series.map((line) => ({
    label: line.name,
    stroke: color(line.color),
    width: 1.5,
    points: { show: false },
    spanGaps: false,
    ...(line.isDashed ? { dash: [4, 4] } : {}),
    ...(line.color === "accent" && !line.isDashed ? { fill: `${color("accent")}16` } : {}),
  }));
  return {
    width: element.clientWidth || 600,
    height: HEIGHT,
    padding: [8, 20, 0, 0],
    cursor: { y: false, points: { size: 5 }, drag: { x: Boolean(first.onSelect), y: false, setScale: false } },
    legend: { show: false },
    scales: {
      y: { range: (_plot, _low, high) => [0, Math.max(1, high * 1.1)] },
    },
    axes: [
      { ...axis, grid: { show: false }, size: 24, space: 70, incrs: TIME_STEPS, values: (_plot, times, _axis, _space, step) => times.map((time) => timeText(time, step)) },
      { ...axis, size: (_plot, values) => Math.max(30, ...(values ?? []).map((text) => text.length * 6.5 + 14)), space: 36, ...(steps ? { incrs: steps } : {}), values: (_plot, values) => values.map((value) => format(value)) },
    ],
    series: [{}, ...lines],
    hooks: {
      setCursor: [(chart) => onHover(chart.cursor.idx ?? null)],
      draw: [(chart) => drawMarks(chart, live().marks ?? [])],
      setSelect: [
        (chart) => {
          const { onSelect } = live();
          if (!onSelect || chart.select.width < 4) return;
          onSelect(chart.posToVal(chart.select.left, "x"), chart.posToVal(chart.select.left + chart.select.width, "x"));
          chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        },
      ],
    },
  };
}

function drawMarks(chart: uPlot, marks: readonly number[]): void {
  const { ctx, bbox } = chart;
  ctx.save();
  ctx.strokeStyle = color("warning");
  ctx.setLineDash([2, 3]);
  for (const mark of marks) {
    const x = chart.valToPos(mark, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}
