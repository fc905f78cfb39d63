// What surrounds a chart: a legend with the numbers under the pointer, and all of them as a table for whoever cannot see it.
import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { local } from "../format";

export interface Series {
  name: string;
  values: readonly (number | null)[];
  color: "accent" | "second" | "danger" | "warning" | "soft";
  isDashed?: boolean;
}

interface Numbers {
  times: readonly number[]; // seconds since 1970
  series: readonly Series[];
  format: (value: number) => string;
}

interface ChartFrameProps extends Numbers {
  label: string;
  index: number | null; // of the sample under the pointer; without one the newest that is known is in the legend
  children: ComponentChildren;
}

export function ChartFrame({ label, times, series, format, index, children }: ChartFrameProps) {
  const isOpen = useSignal(false);
  const at = index ?? Math.min(times.length, series[0]?.values.length ?? 0) - 1;
  const time = times[at];
  return (
    <figure class="chart" aria-label={label}>
      <header>
        <div class="legend" aria-hidden="true">
          {series.map((line) => (
            <span key={line.name} class={`key ${line.color}`}>
              {line.name} <b>{text(line.values[at], format)}</b>
            </span>
          ))}
        </div>
        <span class="small soft" aria-hidden="true">
          {index === null || !time ? "" : local(time * 1000)}
        </span>
      </header>
      {children}
      <details class="small soft" onToggle={(event) => (isOpen.value = event.currentTarget.open)}>
        <summary>As a table</summary>
        {isOpen.value ? <NumberTable times={times} series={series} format={format} /> : null}
      </details>
    </figure>
  );
}

const text = (value: number | null | undefined, format: Numbers["format"]): string => (value === null || value === undefined ? "–" : format(value));

const ROWS = 20;

function NumberTable({ times, series, format }: Numbers) {
  const step = Math.max(1, Math.floor(times.length / ROWS));
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
            <td>{local(time * 1000)}</td>
            {series.map((line) => (
              <td key={line.name} class="number">
                {text(line.values[index], format)}
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}
