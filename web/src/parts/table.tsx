// A table that draws only the rows in sight, with sorting, selection and the keyboard. Rows have one height.
import { signal, useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { navigate, query, setQuery } from "../router";

export interface Column<T> {
  id: string;
  title: string;
  cell: (row: T) => ComponentChildren;
  sort?: (row: T) => number | string;
  isNumber?: boolean;
  hint?: string;
  narrow?: boolean; // stays on a narrow screen
}

interface TableProps<T> {
  label: string;
  rows: readonly T[];
  columns: readonly Column<T>[];
  rowKey: (row: T) => string;
  href?: (row: T) => string;
  selected?: ReadonlySet<string>;
  onSelect?: (keys: Set<string>) => void;
  total?: number; // of rows, when not all of them are here
  onEnd?: () => void; // the last row came into sight
  defaultSort?: string; // a column, "-" before it for descending
}

const ROW_HEIGHT = 37;
const SPARE_ROWS = 8;

/** The table that has the keyboard: the last one that was drawn. */
export const activeTable = signal<{ move: (by: number) => void; open: () => void; tick: () => void } | null>(null);

export function Table<T>(props: TableProps<T>) {
  const { rows, columns, rowKey, href, selected, onSelect, total } = props;
  const body = useRef<HTMLTableSectionElement>(null);
  const range = useSignal({ first: 0, end: 40 });
  const cursor = useSignal(-1);
  const order = query.value.get("sort") ?? props.defaultSort ?? "";
  const sorted = sortRows(rows, columns, order);
  const isWindowed = sorted.length > 60;
  const first = isWindowed ? Math.min(range.value.first, Math.max(0, sorted.length - 20)) : 0;
  const end = isWindowed ? Math.min(range.value.end, sorted.length) : sorted.length;

  useEffect(() => {
    const look = (): void => {
      if (!body.current) return;
      const top = body.current.getBoundingClientRect().top;
      const from = Math.max(0, Math.floor(-top / ROW_HEIGHT) - SPARE_ROWS);
      const until = Math.ceil((innerHeight - top) / ROW_HEIGHT) + SPARE_ROWS;
      if (from !== range.peek().first || until !== range.peek().end) range.value = { first: from, end: until };
      if (until >= sorted.length) props.onEnd?.();
    };
    look();
    addEventListener("scroll", look, { passive: true });
    addEventListener("resize", look);
    return () => {
      removeEventListener("scroll", look);
      removeEventListener("resize", look);
    };
  }, [sorted.length, props.onEnd]);

  useEffect(() => {
    const keys = {
      move: (by: number) => {
        cursor.value = Math.max(0, Math.min(sorted.length - 1, cursor.value + by));
        reveal(body.current, cursor.value);
      },
      open: () => {
        const row = sorted[cursor.value];
        if (row && href) navigate(href(row));
      },
      tick: () => {
        const row = sorted[cursor.value];
        if (row && selected && onSelect) onSelect(toggled(selected, rowKey(row)));
      },
    };
    activeTable.value = keys;
    return () => {
      if (activeTable.peek() === keys) activeTable.value = null;
    };
  });

  const all = selected && sorted.length > 0 && sorted.every((row) => selected.has(rowKey(row)));
  return (
    <div class="table-frame" tabIndex={0} role="region" aria-label={props.label}>
      <table aria-label={props.label} aria-rowcount={(total ?? sorted.length) + 1}>
        <thead>
          <tr>
            {onSelect ? (
              <th class="tick" scope="col">
                <input
                  type="checkbox"
                  aria-label="Select all rows that are shown"
                  checked={Boolean(all)}
                  onChange={() => onSelect(new Set(all ? [] : sorted.map(rowKey)))}
                />
              </th>
            ) : null}
            {columns.map((column) => (
              <Heading key={column.id} column={column} order={order} />
            ))}
          </tr>
        </thead>
        <tbody ref={body}>
          {first > 0 ? <Spacer rows={first} columns={columns.length + (onSelect ? 1 : 0)} /> : null}
          {sorted.slice(first, end).map((row, index) => {
            const key = rowKey(row);
            const isTicked = selected?.has(key) ?? false;
            return (
              <tr
                key={key}
                aria-rowindex={first + index + 2}
                class={cursor.value === first + index ? "cursor" : ""}
                data-ticked={isTicked ? "yes" : undefined}
                data-row={key}
              >
                {onSelect ? (
                  <td class="tick">
                    <input type="checkbox" aria-label={`Select ${key}`} checked={isTicked} onChange={() => onSelect(toggled(selected ?? new Set(), key))} />
                  </td>
                ) : null}
                {columns.map((column) => (
                  <td key={column.id} class={cellClass(column)}>
                    {column.cell(row)}
                  </td>
                ))}
              </tr>
            );
          })}
          {end < sorted.length ? <Spacer rows={sorted.length - end} columns={columns.length + (onSelect ? 1 : 0)} /> : null}
        </tbody>
      </table>
    </div>
  );
}

function cellClass<T>(column: Column<T>): string {
  return `${column.isNumber ? "number" : ""} ${column.narrow ? "" : "wide-only"}`.trim();
}

function Heading<T>({ column, order }: { column: Column<T>; order: string }) {
  const direction = order === column.id ? "ascending" : order === `-${column.id}` ? "descending" : "none";
  const flip = (): void => setQuery({ sort: direction === "descending" ? column.id : `-${column.id}` });
  return (
    <th scope="col" class={cellClass(column)} aria-sort={column.sort ? direction : undefined} title={column.hint}>
      {column.sort ? (
        <button class="quiet" onClick={flip}>
          {column.title}
          <span aria-hidden="true">{direction === "ascending" ? " ↑" : direction === "descending" ? " ↓" : ""}</span>
        </button>
      ) : column.title ? (
        column.title
      ) : (
        <span class="unseen">Actions</span>
      )}
    </th>
  );
}

function Spacer({ rows, columns }: { rows: number; columns: number }) {
  return (
    <tr aria-hidden="true" class="spacer">
      <td colSpan={columns} style={{ height: `${rows * ROW_HEIGHT}px` }} />
    </tr>
  );
}

function sortRows<T>(rows: readonly T[], columns: readonly Column<T>[], order: string): readonly T[] {
  const column = columns.find((item) => item.id === order.replace(/^-/, ""));
  const value = column?.sort;
  if (!value) return rows;
  const sign = order.startsWith("-") ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [left, right] = [value(a), value(b)];
    return sign * (typeof left === "string" && typeof right === "string" ? left.localeCompare(right) : Number(left) - Number(right));
  });
}

function toggled(selected: ReadonlySet<string>, key: string): Set<string> {
  const next = new Set(selected);
  if (!next.delete(key)) next.add(key);
  return next;
}

function reveal(body: HTMLElement | null, index: number): void {
  if (!body) return;
  const top = body.getBoundingClientRect().top + scrollY + index * ROW_HEIGHT;
  if (top < scrollY + 120) scrollTo({ top: top - 120 });
  else if (top + ROW_HEIGHT > scrollY + innerHeight - 40) scrollTo({ top: top - innerHeight + 120 });
}
