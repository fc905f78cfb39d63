// What can be done to a queue and its groups, each behind a dialog that says what it does.
import { type Signal, signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { type ApiError, at, call, post, type Schemas } from "../api";
import { plural } from "../format";
import { ask, asError, notify, TYPED_ABOVE } from "../parts/dialog";
import { Problem } from "../parts/load";
import { Field } from "../parts/ui";
import { refresh } from "../queues";
import { link, navigate } from "../router";

const draft: { name: string; partitions: string; ordering: string; lease_seconds: string; max_attempts: string } = { name: "", partitions: "1", ordering: "none", lease_seconds: "30", max_attempts: "5" };

export function createQueue(): void {
  ask({
    title: "Create a queue",
    children: newQueueFields(),
    command: () => `penstock queues create ${draft.name || "NAME"} --partitions ${draft.partitions} --ordering ${draft.ordering}`,
    confirm: "Create",
    done: "The queue was created",
    run: async () => {
      const body = {
        name: draft.name,
        partitions: Number(draft.partitions),
        ordering: draft.ordering,
        lease_ms: Number(draft.lease_seconds) * 1000,
        max_attempts: Number(draft.max_attempts),
      };
      await post(["queues"], body);
      await refresh();
      navigate(link(["queues", draft.name]));
    },
  });
}

function newQueueFields() {
  const input = (name: keyof typeof draft, mode: "text" | "numeric" = "text") => (
    <input inputMode={mode} required value={draft[name]} onInput={(event) => (draft[name] = event.currentTarget.value)} />
  );
  return (
    <>
      <Field label="Name" hint="Letters, digits, dots, dashes. The part before the first dot is its namespace.">
        {input("name")}
      </Field>
      <Field label="Partitions">{input("partitions", "numeric")}</Field>
      <Field label="Ordering">
        <select value={draft.ordering} onChange={(event) => (draft.ordering = event.currentTarget.value)}>
          <option value="none">None: any free consumer takes the next message</option>
          <option value="key">By key: one message of a key at a time</option>
          <option value="partition">By partition: one lease at a time</option>
        </select>
      </Field>
      <Field label="Lease, seconds">{input("lease_seconds", "numeric")}</Field>
      <Field label="Attempts before a message is a dead letter">{input("max_attempts", "numeric")}</Field>
    </>
  );
}

export function editOptions(name: string, options: Schemas["QueueState"], reload: () => void): void {
  const { name: _name, ...current } = options;
  let text = JSON.stringify(current, null, 2);
  ask({
    title: `Options of ${name}`,
    children: (
      <Field label="Change what you want to change" hint="Durations are milliseconds. Partitions can be added, never removed.">
        <textarea rows={18} spellcheck={false} onInput={(event) => (text = event.currentTarget.value)}>
          {text}
        </textarea>
      </Field>
    ),
    command: `penstock queues update ${name} --max-attempts 10`,
    confirm: "Save",
    done: "Saved",
    run: async () => {
      const edited = JSON.parse(text) as Record<string, unknown>;
      const before = current as Record<string, unknown>;
      const changes = Object.fromEntries(Object.entries(edited).filter(([field, value]) => JSON.stringify(value) !== JSON.stringify(before[field])));
      await call("PATCH", at(["queues", name]), changes);
      reload();
    },
  });
}

export function pushMessage(name: string): void {
  let [payload, key, delay] = ['{"hello": "world"}', "", ""];
  ask({
    title: `Push to ${name}`,
    children: (
      <>
        <Field label="Payload" hint="JSON; anything else is stored as text.">
          <textarea onInput={(event) => (payload = event.currentTarget.value)}>{payload}</textarea>
        </Field>
        <Field label="Key">
          <input onInput={(event) => (key = event.currentTarget.value)} />
        </Field>
        <Field label="Delay, seconds">
          <input type="number" min="0" onInput={(event) => (delay = event.currentTarget.value)} />
        </Field>
      </>
    ),
    command: () => `penstock push ${name} '${payload}'${key ? ` --key ${key}` : ""}${delay ? ` --delay ${delay}` : ""}`,
    confirm: "Push",
    run: async () => {
      const { results } = await post<Schemas["PushResults"]>(["queues", name, "messages"], { messages: [{ ...content(payload), ...(key ? { key } : {}), ...(delay ? { delay_ms: Number(delay) * 1000 } : {}) }] });
      notify(`Pushed as ${results[0]?.id ?? "?"}`);
    },
  });
}

/** What is JSON is pushed as JSON, everything else as text. */
export function content(text: string): Record<string, unknown> {
  try {
    return { payload: JSON.parse(text) as unknown };
  } catch {
    return { payload: text, content_type: "text/plain" };
  }
}

export function setPaused(name: string, isPaused: boolean): void {
  const action = isPaused ? "pause" : "resume";
  ask({
    title: isPaused ? `Pause ${name}?` : `Resume ${name}?`,
    children: <p>{isPaused ? "Pushes go on; nothing is delivered until you resume." : "Messages are delivered again."}</p>,
    command: `penstock queues ${action} ${name}`,
    confirm: isPaused ? "Pause" : "Resume",
    run: async () => {
      await post(["queues", name, action]);
      await refresh();
    },
  });
}

export function purgeQueue(name: string, ready: number): void {
  ask({
    title: `Drop everything in ${name}?`,
    children: <p>About {plural(ready, "message")} will not be delivered, in any group. What was pushed can still be read as history.</p>,
    command: `penstock queues purge ${name}`,
    confirm: "Purge",
    danger: true,
    ...(ready > TYPED_ABOVE ? { typed: String(ready) } : {}),
    done: "Purged",
    run: async () => {
      await post(["queues", name, "purge"]);
      await refresh();
    },
  });
}

export function deleteQueue(name: string): void {
  ask({
    title: `Delete ${name}?`,
    children: <p>Its messages, groups and dead letters are deleted. This cannot be undone.</p>,
    command: `penstock queues delete ${name}`,
    confirm: "Delete",
    danger: true,
    typed: name,
    done: `${name} was deleted`,
    run: async () => {
      await call("DELETE", at(["queues", name]));
      await refresh();
      navigate(link(["queues"]));
    },
  });
}

type SeekPreview = Schemas["SeekPreview"];
const PREVIEW_MS = 200;
const positionOf = (text: string): number | string => (/^\d+$/.test(text) ? Number(text) : text);

/** Move a group; the broker says first what that would do. */
export function seek(queue: string, group: string): void {
  const [to, preview] = [signal("latest"), signal<SeekPreview | null>(null)];
  const parts = ["queues", queue, "groups", group, "seek"];
  const affected = (): number => (preview.value?.redelivered ?? 0) + (preview.value?.skipped ?? 0);
  ask({
    title: `Move ${group}`,
    children: <SeekFields parts={parts} to={to} preview={preview} />,
    command: () => `penstock seek ${queue} ${group} ${to.value}`,
    confirm: "Move",
    typed: () => (affected() > TYPED_ABOVE ? String(affected()) : undefined),
    done: "Moved",
    run: () => post(parts, { to: positionOf(to.value) }),
  });
}

function SeekFields({ parts, to, preview }: { parts: readonly string[]; to: Signal<string>; preview: Signal<SeekPreview | null> }) {
  const problem = useSignal<ApiError | null>(null);
  const position = to.value;
  useEffect(() => {
    const abort = new AbortController();
    preview.value = null;
    problem.value = null;
    const look = (): void =>
      void call<SeekPreview>("POST", at(parts), { to: positionOf(position), dry_run: true }, abort.signal).then(
        (found) => (preview.value = found),
        (error: unknown) => abort.signal.aborted || (problem.value = asError(error)),
      );
    const timer = setTimeout(look, PREVIEW_MS);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [position]);
  return (
    <>
      <Field label="To" hint="earliest, latest, an offset, or a time such as 2026-01-31T09:00:00Z">
        <input value={position} onInput={(event) => (to.value = event.currentTarget.value)} />
      </Field>
      <p role="status">{preview.value ? previewText(preview.value) : problem.value ? "" : "The broker counts…"}</p>
      {problem.value ? <Problem error={problem.value} /> : null}
    </>
  );
}

function previewText({ redelivered, skipped, leased }: SeekPreview): string {
  const effects = [
    redelivered ? `${plural(redelivered, "settled message")} will be delivered again` : "",
    skipped ? `${plural(skipped, "open message")} will not be delivered` : "",
    leased ? `${plural(leased, "lease")} will end` : "",
  ].filter(Boolean);
  return effects.length ? `${effects.join(", ")}.` : "Nothing changes: the group is there already.";
}

export function createGroup(queue: string, reload: () => void): void {
  let [name, start] = ["", "earliest"];
  ask({
    title: "Create a group",
    children: (
      <>
        <p>A group reads the queue by itself: each message is delivered once to each group.</p>
        <Field label="Name">
          <input required onInput={(event) => (name = event.currentTarget.value)} />
        </Field>
        <Field label="Starts at">
          <select onChange={(event) => (start = event.currentTarget.value)}>
            <option value="earliest">the earliest message that is kept</option>
            <option value="latest">the next message</option>
          </select>
        </Field>
      </>
    ),
    command: () => `penstock groups create ${queue} ${name || "NAME"} --start ${start}`,
    confirm: "Create",
    run: async () => {
      await post(["queues", queue, "groups"], { name, start });
      reload();
    },
  });
}

export function deleteGroup(queue: string, group: string, reload: () => void): void {
  ask({
    title: `Delete the group ${group}?`,
    children: <p>How far it has read is forgotten. The messages stay.</p>,
    command: `penstock groups delete ${queue} ${group}`,
    confirm: "Delete",
    danger: true,
    typed: group,
    run: async () => {
      await call("DELETE", at(["queues", queue, "groups", group]));
      reload();
    },
  });
}
