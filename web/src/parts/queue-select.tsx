// Choose a queue, or all of them; the address holds the choice.
import { query, setQuery } from "../router";

interface QueueSelectProps {
  all: string; // what no queue means
  names: readonly string[];
  clears?: string; // a parameter that belongs to the queue before
}

export function QueueSelect({ all, names, clears }: QueueSelectProps) {
  const chosen = query.value.get("queue") ?? "";
  const options = [...new Set([...(chosen ? [chosen] : []), ...names])];
  return (
    <select aria-label="Queue" value={chosen} onChange={(event) => setQuery({ queue: event.currentTarget.value, ...(clears ? { [clears]: "" } : {}) })}>
      <option value="">{all}</option>
      {options.map((name) => (
        <option key={name} value={name}>
          {name}
        </option>
      ))}
    </select>
  );
}
