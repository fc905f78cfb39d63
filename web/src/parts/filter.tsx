// One line of text as a filter: `status:dead kwargs.to:"a b"` names fields, the rest is searched for.
import { useState } from "preact/hooks";

export type Filter = Record<string, string>;

const TOKEN = /(?:([a-z_]+):)?("[^"]*"|\S+)/g;

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

export function filterText(filter: Filter, rest: string): string {
  const quote = (value: string): string => (/\s/.test(value) ? `"${value}"` : value);
  const named = Object.entries(filter).filter(([field, value]) => field !== rest && value);
  return [...named.map(([field, value]) => `${field}:${quote(value)}`), filter[rest] ?? ""].join(" ").trim();
}

interface FilterBarProps {
  label: string;
  text: string;
  fields: Record<string, readonly string[]>; // the fields, each with values to suggest
  onChange: (text: string) => void;
}

export function FilterBar({ label, text, fields, onChange }: FilterBarProps) {
  const [draft, setDraft] = useState(text);
  const [seen, setSeen] = useState(text);
  if (text !== seen) {
    setSeen(text);
    setDraft(text);
  }
  const suggestions = suggest(draft, fields);
  return (
    <>
      <input
        data-filter
        type="search"
        list="filter-suggestions"
        placeholder={`${label}, such as ${Object.keys(fields)[0]}:…`}
        aria-label={label}
        value={draft}
        onInput={(event) => setDraft(event.currentTarget.value)}
        onChange={(event) => onChange(event.currentTarget.value)}
      />
      <datalist id="filter-suggestions">
        {suggestions.map((item) => (
          <option key={item} value={item} />
        ))}
      </datalist>
    </>
  );
}

function suggest(draft: string, fields: Record<string, readonly string[]>): string[] {
  const [, before = "", last = ""] = draft.match(/^(.*\s)?(\S*)$/) ?? [];
  const [field = "", value] = last.split(":", 2);
  if (value !== undefined) return (fields[field] ?? []).filter((item) => item.startsWith(value)).map((item) => `${before}${field}:${item}`);
  return Object.keys(fields)
    .filter((name) => name.startsWith(field))
    .map((name) => `${before}${name}:`);
}
