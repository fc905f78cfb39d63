// A time series, drawn by uPlot, with the same numbers as a table for whoever cannot see it.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { short } from "../format";

export interface Series {
  name: string;
  values: readonly (number | null)[];
  color: "accent" | "second" | "danger" | "soft";
  isDashed?: boolean;
}

interface ChartProps {
  label: string;
  times: readonly number[]; // seconds since 1970
  series: readonly Series[];
  height?: number;
  format?: (value: number) => string;
  onSelect?: (from: number, to: number) => void; // seconds; a range was dragged
}

export function Chart({ label, times, series, height = 180, format = short, onSelect }: ChartProps) {
  const host = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const data = [times as number[], ...series.map((line) => line.values as (number | null)[])] as uPlot.AlignedData;
  const shape = series.map((line) => line.name + line.color).join();

  useEffect(() => {
    const element = host.current;
    if (!element) return undefined;
    const chart = new uPlot(options(element, series, height, format, onSelect), data, element);
    plot.current = chart;
    const resize = new ResizeObserver(() => chart.setSize({ width: element.clientWidth, height }));
    resize.observe(element);
    return () => {
      resize.disconnect();
      chart.destroy();
      plot.current = null;
    };
  }, [shape, height, document.documentElement.dataset["theme"]]);

  useEffect(() => plot.current?.setData(data), [data]);

  return (
    <figure class="chart" aria-label={label}>
      <div class="legend" aria-hidden="true">
        {series.map((line) => (
          <span key={line.name} class={`key ${line.color}`}>
            {line.name}
          </span>
        ))}
      </div>
      <div ref={host} class="plot" aria-hidden="true" />
      <details class="small soft">
        <summary>As a table</summary>
        <NumberTable times={times} series={series} format={format} />
      </details>
    </figure>
  );
}

function NumberTable({ times, series, format }: Pick<ChartProps, "times" | "series"> & { format: (value: number) => string }) {
  const step = Math.max(1, Math.floor(times.length / 20));
  const rows = times.map((time, index) => ({ time, index })).filter(({ index }) => index % step === 0);
  return (
    <table>
      <thead>
        <tr>
          <th scope="col">Time</th>
          {series.map((line) => (
            <th scope="col" key={line.name} class="number">
              {line.name}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {rows.map(({ time, index }) => (
          <tr key={time}>
            <td>{new Date(time * 1000).toLocaleString("sv")}</td>
            {series.map((line) => {
              const value = line.values[index];
              return (
                <td key={line.name} class="number">
                  {value === null || value === undefined ? "–" : format(value)}
                </td>
              );
            })}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function timeText(seconds: number, step: number): string {
  const text = new Date(seconds * 1000).toLocaleString("sv"); // 2026-01-31 09:05:00
  if (step >= 86_400) return text.slice(5, 10);
  return step >= 60 ? text.slice(11, 16) : text.slice(11, 19);
}

function color(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function options(element: HTMLElement, series: readonly Series[], height: number, format: (value: number) => string, onSelect?: ChartProps["onSelect"]): uPlot.Options {
  const axis = { stroke: color("soft"), grid: { stroke: color("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  const lines = series.map((line) => ({
    label: line.name,
    stroke: color(line.color),
    width: 1.5,
    points: { show: false },
    ...(line.isDashed ? { dash: [4, 4] } : {}),
    ...(line.color === "accent" ? { fill: `${color("accent")}18` } : {}),
  }));
  return {
    width: element.clientWidth || 600,
    height,
    cursor: { y: false, drag: { x: Boolean(onSelect), y: false, setScale: false } },
    legend: { show: false },
    scales: { y: { range: (_plot, _low, high) => [0, Math.max(1, high * 1.1)] } },
    axes: [{ ...axis, values: (_plot, times, _axis, _space, step) => times.map((time) => timeText(time, step)) }, { ...axis, size: 54, values: (_plot, values) => values.map((value) => format(value)) }],
    series: [{}, ...lines],
    hooks: {
      setSelect: [
        (chart) => {
          if (!onSelect || chart.select.width < 4) return;
          onSelect(chart.posToVal(chart.select.left, "x"), chart.posToVal(chart.select.left + chart.select.width, "x"));
          chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        },
      ],
    },
  };
}
