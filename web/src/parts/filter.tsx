// One line of text as a filter: `status:dead kwargs.to:"a b"` names fields, the rest is searched for.
import { useSignal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { count } from "../format";
import { Icon } from "./icon";

export type Filter = Record<string, string>;

const TOKEN = /(?:([\w.]+):)?("[^"]*"|\S+)/g;

/** Fields by name; what is not one of them stays as it was typed, under `rest`. */
export function parseFilter(text: string, fields: readonly string[], rest: string): Filter {
  const filter: Filter = {};
  const words: string[] = [];
  for (const [whole, field, value = ""] of text.matchAll(TOKEN)) {
    const plain = value.replace(/^"|"$/g, "");
    if (field && fields.includes(field)) filter[field] = plain;
    else words.push(field ? whole : plain);
  }
  if (words.length) filter[rest] = words.join(" ");
  return filter;
}

export interface Suggestion {
  text: string; // of the whole line, when it is taken
  label: string;
  note?: string;
}

interface FilterBarProps {
  label: string;
  example?: string;
  text: string;
  fields: Record<string, readonly string[]>; // the fields, each with values to suggest
  suggest?: (field: string, prefix: string) => Promise<{ value: string; count: number | null }[]>; // values that the broker knows; of `kwargs` names of arguments
  onChange: (text: string) => void;
}

const DELAY_MS = 150;

export function FilterBar({ label, example, text, fields, suggest, onChange }: FilterBarProps) {
  const [draft, setDraft] = useState(text);
  const [seen, setSeen] = useState(text);
  const found = useSignal<{ draft: string; options: Suggestion[] }>({ draft: "", options: [] });
  const index = useSignal(-1);
  const isOpen = useSignal(false);
  if (text !== seen) {
    setSeen(text);
    setDraft(text);
  }
  const { before, field, value } = lastWord(draft);
  const options = found.value.draft === draft ? found.value.options : known(before, field, value, fields);
  useEffect(() => {
    const isName = value === undefined && field.startsWith("kwargs");
    if (!suggest || (value === undefined ? !isName : fields[field]?.length)) return undefined;
    let isCurrent = true;
    const timer = setTimeout(() => {
      void suggest(isName ? "kwargs" : field, value ?? field).then((values) => {
        const text = (item: string): string => (isName ? `${before}${item}:` : `${before}${field}:${quoted(item)} `);
        if (isCurrent) found.value = { draft, options: values.map((item) => ({ text: text(item.value), label: item.value, note: item.count === null ? "" : count(item.count) })) };
      }, () => undefined);
    }, DELAY_MS);
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [draft]);
  const take = (option: Suggestion | undefined): void => {
    if (!option) return;
    index.value = -1;
    setDraft(option.text);
    if (option.text.endsWith(" ")) onChange(option.text.trim());
  };
  const apply = (): void => {
    isOpen.value = false;
    onChange(draft.trim());
  };
  const onKey = (event: KeyboardEvent): void => {
    const length = options.length;
    if (event.key === "ArrowDown" && length) index.value = (index.value + 1) % length;
    else if (event.key === "ArrowUp" && length) index.value = (index.value + length - 1) % length;
    else if (event.key === "Enter" && isOpen.value && index.value >= 0) take(options[index.value]);
    else if (event.key === "Enter") apply();
    else if (event.key === "Tab" && isOpen.value && index.value >= 0) take(options[index.value]);
    else if (event.key === "Escape" && isOpen.value) isOpen.value = false;
    else return;
    event.preventDefault();
  };
  const isShown = isOpen.value && options.length > 0;
  return (
    <div class="filter">
      <Icon name="search" />
      <input
        data-filter
        list={undefined}
        type="search"
        placeholder={`${label}: ${example ?? `${Object.keys(fields)[0]}:…`}`}
        aria-label={label}
        role="combobox"
        aria-expanded={isShown}
        aria-controls="filter-options"
        aria-autocomplete="list"
        aria-activedescendant={index.value >= 0 ? `filter-option-${index.value}` : undefined}
        autocomplete="off"
        spellcheck={false}
        value={draft}
        onFocus={() => (isOpen.value = true)}
        onBlur={() => {
          isOpen.value = false;
          if (draft.trim() !== text) onChange(draft.trim());
        }}
        onInput={(event) => {
          isOpen.value = true;
          index.value = -1;
          setDraft(event.currentTarget.value);
          if (!event.currentTarget.value) onChange("");
        }}
        onKeyDown={onKey}
      />
      <ul class="options" id="filter-options" role="listbox" aria-label="Suggestions" hidden={!isShown}>
        {options.map((option, position) => (
          <li
            key={option.label}
            id={`filter-option-${position}`}
            role="option"
            aria-selected={position === index.value}
            onPointerDown={(event) => {
              event.preventDefault(); // the focus stays in the field
              take(option);
            }}
          >
            <span>{option.label}</span>
            <span class="soft">{option.note}</span>
          </li>
        ))}
      </ul>
    </div>
  );
}

const quoted = (value: string): string => (/\s/.test(value) ? `"${value}"` : value);

function lastWord(draft: string): { before: string; field: string; value: string | undefined } {
  const [, before = "", last = ""] = draft.match(/^(.*\s)?(\S*)$/) ?? [];
  const [field = "", value] = last.split(":", 2);
  return { before, field, value };
}

function known(before: string, field: string, value: string | undefined, fields: Record<string, readonly string[]>): Suggestion[] {
  if (value !== undefined) return (fields[field] ?? []).filter((item) => item.startsWith(value)).map((item) => ({ text: `${before}${field}:${item} `, label: item }));
  const matches = Object.keys(fields).filter((name) => name.startsWith(field));
  return matches.map((name) => ({ text: `${before}${name}:`, label: `${name}:`, note: (fields[name] ?? []).slice(0, 3).join(", ") }));
}
