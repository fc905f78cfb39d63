// Time travel: which moment a page shows. The address holds it, so an incident is a link.
import { get } from "../api";
import { local, serverNow } from "../format";
import type { Past } from "../types";
import { type Loaded, useLoad } from "./load";
import { query, setQuery } from "../router";

/** The value that an input of a date and a time wants. */
const inputText = (iso: string): string => (iso ? local(iso).replace(" ", "T") : "");

/** Choose a moment of the past; steps once there is one. */
export function AsOf() {
  const at = query.value.get("at") ?? "";
  const go = (moment: number): void => setQuery({ at: new Date(Math.min(moment, serverNow())).toISOString() }, { replace: false });
  const step = (minutes: number): void => go((at ? Date.parse(at) : serverNow()) + minutes * 60_000);
  return (
    <details class="popover">
      <summary class="button">{at ? `As of ${local(at).slice(5, 16)}` : "As of now"}</summary>
      <div>
        <label class="field">
          <span>As it was at</span>
          <input type="datetime-local" step="1" value={inputText(at)} onChange={(event) => (event.currentTarget.value ? go(Date.parse(event.currentTarget.value)) : setQuery({ at: "" }))} />
        </label>
        <span class="segmented" role="group" aria-label="Move in time">
          {STEPS.map(([minutes, text]) => (
            <button key={text} onClick={() => step(minutes)}>
              {text}
            </button>
          ))}
        </span>
        {at ? <button onClick={() => setQuery({ at: "" })}>Back to now</button> : null}
      </div>
    </details>
  );
}

const STEPS = [
  [-60, "−1 h"],
  [-5, "−5 min"],
  [5, "+5 min"],
  [60, "+1 h"],
] as const;

/** The state of the queues at the moment of the address; nothing is loaded without one. */
export function usePast(queue = ""): Loaded<Past> & { at: string } {
  const at = query.value.get("at") ?? "";
  const loaded = useLoad(at ? `past,${queue},${at}` : null, (abort) => get<Past>(["history", "state"], { at, queue }, abort));
  return { ...loaded, at };
}

/** "History begins at …", where the moment is before it. */
export function Cut({ past }: { past: { is_cut: boolean; begins_at: string | null } }) {
  return past.is_cut ? <p class="notice warning">{past.begins_at ? `History begins at ${local(past.begins_at)}: nothing is known of this moment.` : "Nothing is known of this moment."}</p> : null;
}
