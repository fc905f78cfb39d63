// The last minutes as a chart of a few lines, drawn as SVG: the first page stays small, and uPlot is loaded where the past
// is looked at.
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { short } from "../format";
import { ChartFrame, type Series } from "./chart-frame";

interface LiveChartProps {
  label: string;
  times: readonly number[]; // seconds since 1970
  series: readonly Series[];
  span: number; // seconds that are shown
  format?: (value: number) => string;
}

const HEIGHT = 176;
const NARROW = 400; // fewer labels fit below
const [LEFT, RIGHT, TOP, BOTTOM] = [44, 4, 8, 22];

/** Round numbers up to the highest value: two or three lines of a grid. */
export function gridLines(highest: number): number[] {
  const rough = Math.max(highest, 1) / 2.5;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].map((factor) => factor * size).find((value) => value >= rough) ?? 10 * size);
  return Array.from({ length: Math.floor(Math.max(highest, 1) / step) + 1 }, (_, index) => index * step);
}

export function LiveChart({ label, times, series, span, format = short }: LiveChartProps) {
  const host = useRef<HTMLDivElement>(null);
  const width = useSignal(0);
  const hovered = useSignal<number | null>(null);
  useEffect(() => {
    const element = host.current;
    if (!element) return undefined;
    const observer = new ResizeObserver(() => (width.value = element.clientWidth));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  const end = times.at(-1) ?? 0;
  const highest = Math.max(1, ...series.flatMap((line) => line.values.map((value) => value ?? 0))) * 1.08;
  const right = Math.max(LEFT + 1, width.value - RIGHT);
  const x = (time: number): number => right - ((end - time) / span) * (right - LEFT);
  const y = (value: number): number => HEIGHT - BOTTOM - (value / highest) * (HEIGHT - TOP - BOTTOM);
  const index = hovered.value === null ? times.length - 1 : hovered.value;
  const onMove = (event: PointerEvent): void => {
    const box = (event.currentTarget as Element).getBoundingClientRect();
    const time = end - ((right - (event.clientX - box.left)) / (right - LEFT)) * span;
    hovered.value = nearest(times, time);
  };
  return (
    <ChartFrame label={label} times={times} series={series} format={format} index={hovered.value}>
      <div ref={host} class="plot" aria-hidden="true">
        {width.value && times.length ? (
          <svg class="live-plot" width={width.value} height={HEIGHT} onPointerMove={onMove} onPointerLeave={() => (hovered.value = null)}>
            {gridLines(highest).map((value) => (
              <g key={value}>
                <line x1={LEFT} x2={right} y1={y(value)} y2={y(value)} />
                <text x={LEFT - 8} y={y(value) + 4} text-anchor="end">
                  {format(value)}
                </text>
              </g>
            ))}
            {(width.value < NARROW ? [0, 2, 4] : [0, 1, 2, 3, 4]).map((part) => (
              <text key={part} x={x(end - (span * part) / 5)} y={HEIGHT - 5} text-anchor={part ? "middle" : "end"}>
                {part ? `−${(span * part) / 300} min` : "now"}
              </text>
            ))}
            {series.map((line) => (
              <Line key={line.name} line={line} times={times} x={x} y={y} from={end - span} />
            ))}
            {hovered.value !== null && times[index] ? <line class="cursor" x1={x(times[index])} x2={x(times[index])} y1={TOP} y2={HEIGHT - BOTTOM} /> : null}
          </svg>
        ) : null}
      </div>
    </ChartFrame>
  );
}

interface LineProps {
  line: Series;
  times: readonly number[];
  from: number;
  x: (time: number) => number;
  y: (value: number) => number;
}

function Line({ line, times, from, x, y }: LineProps) {
  const points = times
    .map((time, index) => ({ time, value: line.values[index] }))
    .filter((point): point is { time: number; value: number } => point.time >= from && point.value !== null && point.value !== undefined)
    .map(({ time, value }) => `${x(time).toFixed(1)},${y(value).toFixed(1)}`);
  const [first, last] = [points[0]?.split(",")[0], points.at(-1)?.split(",")[0]];
  return (
    <g class={`line ${line.color}`}>
      {line.color === "accent" && points.length ? <polygon points={`${first},${y(0)} ${points.join(" ")} ${last},${y(0)}`} /> : null}
      <polyline points={points.join(" ")} />
    </g>
  );
}

function nearest(times: readonly number[], time: number): number {
  let best = 0;
  for (let index = 1; index < times.length; index += 1) if (Math.abs((times[index] ?? 0) - time) < Math.abs((times[best] ?? 0) - time)) best = index;
  return best;
}
