// Replay: push the messages of a span again, to the same queue or another one, exactly once.
import { signal, useComputed } from "@preact/signals";
import { local } from "../format";
import { askBulk } from "../parts/bulk";
import { Field } from "../parts/ui";
import { sortedRows } from "../queues";
import { iso, type Range } from "./history";

/** Ask for a filter first: what it matches is counted in the next step, before anything is pushed. */
export function replay(queue: string, { from, to }: Range): void {
  const [target, key, text] = [signal(queue), signal(""), signal("")];
  const begin = (): void => {
    const filter = { from: iso(from), to: iso(to), ...(key.value ? { key: key.value } : {}), ...(text.value ? { text: text.value } : {}), target: target.value };
    askBulk({
      parts: ["queues", queue, "replay"],
      body: filter,
      verb: "Replay",
      noun: "message",
      effect: `Each is pushed to ${target.value} as a new message, once, however often this is tried.`,
      command: `penstock replay ${queue} --from ${filter.from} --to ${filter.to} --target ${target.value}${key.value ? ` --key '${key.value}'` : ""}${text.value ? ` --text '${text.value}'` : ""}`,
      recount: <Fields of={{ queue, from, to, target, key, text }} again={begin} />,
    });
  };
  begin();
}

interface FieldsOf extends Range {
  queue: string;
  target: ReturnType<typeof signal<string>>;
  key: ReturnType<typeof signal<string>>;
  text: ReturnType<typeof signal<string>>;
}

function Fields({ of, again }: { of: FieldsOf; again: () => void }) {
  const names = useComputed(() => sortedRows.value.map((row) => row.name));
  return (
    <>
      <p class="soft">
        From {local(of.from * 1000)} to {local(of.to * 1000)}
      </p>
      <div class="fields">
        <Field label="To the queue">
          <input list="replay-targets" value={of.target.value} onChange={(event) => ((of.target.value = event.currentTarget.value), again())} />
        </Field>
        <Field label="Only with the key">
          <input value={of.key.value} onChange={(event) => ((of.key.value = event.currentTarget.value), again())} />
        </Field>
        <Field label="Only with the text">
          <input value={of.text.value} onChange={(event) => ((of.text.value = event.currentTarget.value), again())} />
        </Field>
      </div>
      <datalist id="replay-targets">
        {names.value.map((name) => (
          <option key={name} value={name} />
        ))}
      </datalist>
    </>
  );
}
