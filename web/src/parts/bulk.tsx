// Work on everything that matches a filter: the broker counts first, the dialog says what will happen, and it runs as an
// operation with progress, a rate, a canary and a stop. What was counted is what is touched: the filter is frozen.
import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { ApiError, at, call, get, post } from "../api";
import { count, plural, rate as rateText } from "../format";
import { isPaused, subscribe } from "../live";
import { Link, link } from "../router";
import type { Operation } from "../types";
import { asError, closeDialog, openDialog, Typed, TYPED_ABOVE } from "./dialog";
import { Problem } from "./load";
import { Bar, canAct, Command, Field, Time } from "./ui";

export interface Bulk {
  parts: readonly string[]; // of the path
  body: Record<string, unknown>; // the filter
  verb: string; // "Retry"
  noun: string; // "task"
  effect: ComponentChildren;
  danger?: boolean;
  command: string; // without the options below; "" where the command line has none
  fields?: ComponentChildren; // more to choose
  recount?: ComponentChildren; // fields of the filter: a change opens the dialog again, which counts again
  more?: () => Record<string, unknown>; // what they add to the body; it may throw what is wrong with them
  done?: () => void;
}

const CANARY = 5;
const PAUSED_MS = 1000;

let turns = 0;

export function askBulk(bulk: Bulk): void {
  const turn = ++turns;
  openDialog(() => <BulkDialog key={turn} {...bulk} />);
}

function BulkDialog(bulk: Bulk) {
  const operation = useSignal<Operation | null>(null);
  if (operation.value) return <Running of={operation.value} bulk={bulk} />;
  return <BulkForm bulk={bulk} begin={(begun) => (operation.value = begun)} />;
}

function BulkForm({ bulk, begin }: { bulk: Bulk; begin: (operation: Operation) => void }) {
  const [counted, setCounted] = useState<Operation | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const [isBusy, setBusy] = useState(false);
  const [canary, setCanary] = useState(false);
  const [rate, setRate] = useState("");
  const [typed, setTyped] = useState("");
  const [, redraw] = useState(0);
  const counting = (): void => {
    setError(null);
    post<Operation>(bulk.parts, { ...bulk.body, dry_run: true }).then(setCounted, (problem: unknown) => setError(asError(problem)));
  };
  useEffect(counting, []);
  const matched = counted?.matched ?? 0;
  const expected = String(matched);
  const options = { ...(canary && matched > CANARY ? { canary: CANARY } : {}), ...(rate ? { rate: Number(rate) } : {}) };
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      begin(await post<Operation>(bulk.parts, { ...bulk.body, ...bulk.more?.(), ...options, as_of: counted?.as_of }));
      bulk.done?.();
    } catch (problem) {
      setError(asError(problem));
      setBusy(false);
    }
  };
  const isReady = counted !== null && matched > 0 && !isBusy && canAct.value && (matched <= TYPED_ABOVE || typed === expected);
  return (
    <form onSubmit={submit} onInput={() => redraw((turn) => turn + 1)}>
      <h2 id="dialog-title">
        {bulk.verb} {counted ? `${counted.is_exact === false ? "at least " : ""}${plural(matched, bulk.noun)}` : `what matches`}
      </h2>
      <p role="status">{counted ? (matched ? bulk.effect : "Nothing matches any more.") : error ? "" : "The broker counts…"}</p>
      {counted?.samples?.length ? <p class="soft small">Such as {counted.samples.slice(0, 3).join(", ")}</p> : null}
      {bulk.recount}
      {bulk.fields}
      <div class="fields">
        <Field label="At most per second" hint="Empty: as fast as possible">
          <input type="number" min="0.1" step="any" value={rate} onInput={(event) => setRate(event.currentTarget.value)} />
        </Field>
      </div>
      {matched > CANARY ? (
        <label class="check">
          <input type="checkbox" checked={canary} onChange={() => setCanary(!canary)} /> Try {CANARY} first, then ask me
        </label>
      ) : null}
      {matched > TYPED_ABOVE ? <Typed text={expected} value={typed} onInput={setTyped} /> : null}
      {error ? <Problem error={error} {...(counted ? {} : { retry: counting })} /> : null}
      {bulk.command ? (
        <p class="soft small">
          In a terminal: <Command text={`${bulk.command}${options.canary ? ` --canary ${CANARY}` : ""}${rate ? ` --rate ${rate}` : ""}`} />
        </p>
      ) : null}
      <footer>
        <button type="button" onClick={closeDialog}>
          Cancel
        </button>
        <button class={bulk.danger ? "danger" : "primary"} disabled={!isReady}>
          {isBusy ? "Starting…" : bulk.verb}
        </button>
      </footer>
    </form>
  );
}

const STATES: Record<Operation["status"], string> = {
  running: "Running",
  waiting_for_canary: "The first ones are through",
  done: "Done",
  stopped: "Stopped",
  failed: "Failed",
  counted: "Counted",
};

function Running({ of, bulk }: { of: Operation; bulk: Bulk }) {
  const operation = useOperation(of);
  const isOver = ["done", "stopped", "failed"].includes(operation.status);
  useEffect(() => {
    if (isOver) bulk.done?.();
  }, [isOver]);
  const act = (method: string, ...parts: string[]): void => void call(method, at(["operations", operation.operation_id, ...parts]), method === "POST" ? {} : undefined).catch(() => undefined);
  return (
    <>
      <h2 id="dialog-title">
        {bulk.verb}: {STATES[operation.status].toLowerCase()}
      </h2>
      <Progress operation={operation} />
      {operation.status === "waiting_for_canary" ? <p>{plural(operation.done, bulk.noun)} done, {count(operation.failed)} failed. Check them, then continue with the remaining {count(Math.max(0, operation.matched - operation.done - operation.failed))}, or stop. Unless it is continued, the operation stops by itself <Time at={operation.expires_at} />.</p> : null}
      <p class="soft small">
        It goes on without this window: see <Link href={link(["operations"])}>Operations</Link>. <Command text={`penstock operations show ${operation.operation_id}`} />
      </p>
      <footer>
        {isOver ? null : (
          <button type="button" onClick={() => act("DELETE")}>
            Stop
          </button>
        )}
        {operation.status === "waiting_for_canary" ? (
          <button type="button" class="primary" onClick={() => act("POST", "continue")}>
            Continue with the rest
          </button>
        ) : (
          <button type="button" class={isOver ? "primary" : ""} onClick={closeDialog}>
            {isOver ? "Close" : "Hide"}
          </button>
        )}
      </footer>
    </>
  );
}

/** An operation as it goes on. */
export function useOperation(first: Operation): Operation {
  const current = useSignal(first);
  useEffect(() => {
    current.value = first;
    const poll = (): void => void get<Operation>(["operations", first.operation_id]).then((fresh) => (current.value = fresh), () => undefined);
    const stop = subscribe({ topics: ["operations"], interval_ms: 500 }, (event) => {
      const changed = ((event["operations"] ?? []) as Operation[]).find((item) => item.operation_id === first.operation_id);
      if (changed) current.value = changed;
    }, poll);
    // Somebody waits for this one, also while the page behind the dialog stands still.
    const timer = setInterval(() => isPaused.value && !current.value.ended_at && poll(), PAUSED_MS);
    return () => {
      clearInterval(timer);
      stop();
    };
  }, [first.operation_id]);
  return current.value;
}

export function Progress({ operation }: { operation: Operation }) {
  const through = operation.done + operation.failed;
  return (
    <div class="progress">
      <Bar isLong part={through} whole={operation.matched || 1} label={`${through} of ${operation.matched}`} tone={operation.status === "failed" ? "danger" : ""} />
      <span role="status">
        {count(operation.done)} of {operation.matched ? count(operation.matched) : "…"} done
        {operation.failed ? `, ${count(operation.failed)} failed` : ""}
        {operation.rate ? `, at most ${rateText(operation.rate)} per second` : ""}
      </span>
      {operation.error ? <span class="soft">{operation.error}</span> : null}
      {operation.errors?.length ? (
        <details class="small">
          <summary>The last errors</summary>
          <ul>
            {operation.errors.map((item) => (
              <li key={item.id}>
                <code>{item.id}</code> {item.message}
              </li>
            ))}
          </ul>
        </details>
      ) : null}
    </div>
  );
}
