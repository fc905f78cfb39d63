// The numbers of a chart as a table, for whoever cannot see it.
import { local } from "../format";

export interface Series {
  name: string;
  values: readonly (number | null)[];
  color: "accent" | "second" | "danger" | "warning" | "soft";
  isDashed?: boolean;
}

interface NumberTableProps {
  times: readonly number[]; // seconds since 1970
  series: readonly Series[];
  format: (value: number) => string;
}

const ROWS = 20;

export function NumberTable({ times, series, format }: NumberTableProps) {
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
