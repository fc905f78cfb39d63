// Single keys and the help that lists them. They can be turned off, and never act while somebody types.
import { signal } from "@preact/signals";
import { isPaused } from "./live";
import { openPalette } from "./parts/palette";
import { activeTable } from "./parts/table";
import { openDialog } from "./parts/dialog";
import { link, navigate } from "./router";
import { SECTIONS } from "./routes";

const KEY = "penstock-single-keys";
export const singleKeys = signal(localStorage.getItem(KEY) !== "off");

/** Set by a page that can select everything that matches its filter. */
export const selectAllMatching = signal<(() => void) | null>(null);

let isAfterG = false;

export function listenToKeys(): () => void {
  const onKey = (event: KeyboardEvent): void => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      openPalette();
      return;
    }
    if (!singleKeys.value || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (document.querySelector("dialog[open]")) return;
    if (act(event.key)) event.preventDefault();
  };
  addEventListener("keydown", onKey);
  return () => removeEventListener("keydown", onKey);
}

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) && (target as HTMLInputElement).type !== "checkbox";
}

function act(key: string): boolean {
  if (isAfterG) {
    isAfterG = false;
    const section = SECTIONS.find((item) => item.key === key);
    if (section) navigate(link([section.id].filter(Boolean)));
    return Boolean(section);
  }
  const actions: Record<string, () => void> = {
    g: () => {
      isAfterG = true;
      setTimeout(() => (isAfterG = false), 1500);
    },
    "/": () => document.querySelector<HTMLInputElement>("input[data-filter]")?.focus(),
    "?": () => openDialog(helpText),
    j: () => activeTable.value?.move(1),
    k: () => activeTable.value?.move(-1),
    x: () => activeTable.value?.tick(),
    a: () => selectAllMatching.value?.(),
    ".": () => (isPaused.value = !isPaused.value),
  };
  if (key === "Enter" && activeTable.value && document.activeElement === document.body) {
    activeTable.value.open();
    return true;
  }
  const action = actions[key];
  action?.();
  return Boolean(action);
}

export function helpText() {
  const rows: [string, string][] = [
    ["Ctrl K", "Search pages, queues and commands"],
    ["/", "Filter"],
    ["j  k", "Next and previous row"],
    ["x", "Select the row"],
    ["a", "Select everything that matches"],
    ["Enter", "Open the row"],
    [".", "Pause or resume live updates"],
    ["?", "This help"],
    ...SECTIONS.map((section): [string, string] => [`g ${section.key}`, section.title]),
  ];
  const toggle = (): void => {
    singleKeys.value = !singleKeys.value;
    localStorage.setItem(KEY, singleKeys.value ? "on" : "off");
  };
  return (
    <>
      <h2>Keys</h2>
      <dl class="keys">
        {rows.map(([keys, text]) => (
          <div key={keys}>
            <dt>
              <kbd>{keys}</kbd>
            </dt>
            <dd>{text}</dd>
          </div>
        ))}
      </dl>
      <label class="check">
        <input type="checkbox" checked={singleKeys.value} onChange={toggle} /> Single keys are on
      </label>
    </>
  );
}
