// A table that draws only the rows in sight, with sorting, selection and the keyboard. Rows have one height.
//
// Rows never move under the pointer, the focus or a selection: while one of them is there, the order stands still, rows
// that are gone stay as shadows, and new ones wait behind a pill that says how many they are.
import { signal, useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { count } from "../format";
import { navigate, query, setQuery } from "../router";

export interface Column<T> {
  id: string;
  title: string;
  cell: (row: T) => ComponentChildren;
  sort?: (row: T) => number | string;
  isNumber?: boolean;
  fills?: boolean; // takes the width that is left
  hint?: string;
  narrow?: boolean; // stays on a narrow screen
}

interface TableProps<T> {
  label: string;
  rows: readonly T[];
  columns: readonly Column<T>[];
  rowKey: (row: T) => string;
  href?: (row: T) => string | undefined;
  selected?: ReadonlySet<string>;
  onSelect?: (keys: Set<string>) => void;
  canSelect?: (row: T) => boolean;
  rowClass?: (row: T) => string;
  total?: number; // of rows, when not all of them are here
  onEnd?: () => void; // the last row came into sight
  defaultSort?: string; // a column, "-" before it for descending
  news?: { count: number; show: () => void }; // rows that wait to be shown
}

export const ROW_HEIGHT = 36;
const ROWS_MAX = 60;
const SPARE_ROWS = 6;

/** The table that has the keyboard: the last one that was drawn. */
export const activeTable = signal<{ move: (by: number) => void; open: () => void; tick: () => void } | null>(null);

export function Table<T>(props: TableProps<T>) {
  const { columns, rowKey, href, selected, onSelect, total } = props;
  const body = useRef<HTMLTableSectionElement>(null);
  const range = useSignal({ first: 0, end: 40 });
  const cursor = useSignal("");
  const order = query.value.get("sort") ?? props.defaultSort ?? "";
  const { shown, gone, waiting, hold, release } = useStandstill(sortRows(props.rows, columns, order), rowKey, query.value.toString(), Boolean(selected?.size));
  const isWindowed = shown.length > ROWS_MAX;
  const first = isWindowed ? Math.min(range.value.first, Math.max(0, shown.length - 20)) : 0;
  const end = isWindowed ? Math.min(range.value.end, shown.length, first + ROWS_MAX) : shown.length;

  useEffect(() => {
    const look = (): void => {
      if (!body.current) return;
      const top = body.current.getBoundingClientRect().top;
      const from = Math.max(0, Math.floor(-top / ROW_HEIGHT) - SPARE_ROWS);
      const until = Math.ceil((innerHeight - top) / ROW_HEIGHT) + SPARE_ROWS;
      if (from !== range.peek().first || until !== range.peek().end) range.value = { first: from, end: until };
      if (until >= shown.length) props.onEnd?.();
    };
    look();
    addEventListener("scroll", look, { passive: true });
    addEventListener("resize", look);
    return () => {
      removeEventListener("scroll", look);
      removeEventListener("resize", look);
    };
  }, [shown.length, props.onEnd]);

  useEffect(() => {
    const at = (): number => shown.findIndex((row) => rowKey(row) === cursor.value);
    const keys = {
      move: (by: number) => {
        const index = Math.max(0, Math.min(shown.length - 1, at() + by));
        const row = shown[index];
        cursor.value = row ? rowKey(row) : "";
        reveal(body.current, index);
      },
      open: () => {
        const row = shown[at()];
        const target = row && href?.(row);
        if (target) navigate(target);
      },
      tick: () => {
        const row = shown[at()];
        if (row && selected && onSelect) onSelect(toggled(selected, rowKey(row)));
      },
    };
    activeTable.value = keys;
    return () => {
      if (activeTable.peek() === keys) activeTable.value = null;
    };
  });

  const choosable = onSelect ? shown.filter((row) => props.canSelect?.(row) ?? true) : [];
  const isAll = choosable.length > 0 && choosable.every((row) => selected?.has(rowKey(row)));
  const width = columns.length + (onSelect ? 1 : 0);
  const news = waiting + (props.news?.count ?? 0);
  const showNews = (): void => {
    release();
    props.news?.show();
  };
  const onPointerEnter = (event: PointerEvent): void => void (event.pointerType === "mouse" && hold("pointer"));
  return (
    <div class="table-host" onPointerEnter={onPointerEnter} onPointerLeave={() => release("pointer")}>
      {news ? (
        <button class="new-rows" onClick={showNews}>
          {count(news)} new
        </button>
      ) : null}
      <div class="table-frame" tabIndex={0} role="region" aria-label={props.label}>
      <table aria-label={props.label} aria-rowcount={(total ?? shown.length) + 1}>
        <thead>
          <tr>
            {onSelect ? (
              <th class="tick" scope="col">
                <input type="checkbox" aria-label="Select all rows that are shown" checked={isAll} onChange={() => onSelect(new Set(isAll ? [] : choosable.map(rowKey)))} />
              </th>
            ) : null}
            {columns.map((column) => (
              <Heading key={column.id} column={column} order={order} />
            ))}
          </tr>
        </thead>
        <tbody ref={body} onFocusCapture={() => hold("focus")} onBlurCapture={() => release("focus")}>
          {first > 0 ? <Spacer rows={first} columns={width} /> : null}
          {shown.slice(first, end).map((row, index) => {
            const key = rowKey(row);
            const isTicked = selected?.has(key) ?? false;
            const target = href?.(row);
            return (
              <tr
                key={key}
                aria-rowindex={first + index + 2}
                class={`${cursor.value === key ? "cursor" : ""} ${gone.has(key) ? "gone" : ""} ${props.rowClass?.(row) ?? ""}`}
                data-ticked={isTicked ? "yes" : undefined}
                data-href={target}
                onClick={target ? (event) => openRow(event, target) : undefined}
              >
                {onSelect ? (
                  <td class="tick">
                    {props.canSelect?.(row) ?? true ? (
                      <input type="checkbox" aria-label={`Select ${key}`} checked={isTicked} onChange={() => onSelect(toggled(selected ?? new Set(), key))} />
                    ) : null}
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
          {end < shown.length ? <Spacer rows={shown.length - end} columns={width} /> : null}
        </tbody>
      </table>
      </div>
    </div>
  );
}

/** The rows as they are, or as they were when somebody began to point at one. */
function useStandstill<T>(sorted: readonly T[], rowKey: (row: T) => string, view: string, isSelected: boolean) {
  const holders = useRef(new Set<string>());
  const frozen = useRef<{ view: string; rows: ReadonlyMap<string, T> } | null>(null);
  const redraw = useSignal(0);
  void redraw.value;
  const isHeld = holders.current.size > 0 || isSelected;
  // Somebody who sorts, filters or folds wants to see what comes of it.
  if (!isHeld || frozen.current?.view !== view || !frozen.current.rows.size) {
    frozen.current = { view, rows: new Map(sorted.map((row) => [rowKey(row), row])) };
    return { shown: sorted, gone: new Set<string>(), waiting: 0, hold, release };
  }
  const live = new Map(sorted.map((row) => [rowKey(row), row]));
  const old = frozen.current.rows;
  const rows = new Map([...old].map(([key, row]) => [key, live.get(key) ?? row]));
  frozen.current = { view, rows };
  // Rows behind the last one move nothing: they are shown at once.
  const tail = trailing(sorted, rowKey, old);
  for (const row of tail) rows.set(rowKey(row), row);
  const gone = new Set([...old.keys()].filter((key) => !live.has(key)));
  const waiting = sorted.filter((row) => !rows.has(rowKey(row))).length;
  return { shown: [...rows.values()], gone, waiting, hold, release };

  function hold(by: string): void {
    holders.current.add(by);
  }
  /** Without a name: everything that waits is shown now. */
  function release(by?: string): void {
    if (by) holders.current.delete(by);
    else frozen.current = null;
    redraw.value += 1;
  }
}

function trailing<T>(sorted: readonly T[], rowKey: (row: T) => string, known: ReadonlyMap<string, T>): readonly T[] {
  let index = sorted.length;
  while (index > 0 && !known.has(rowKey(sorted[index - 1] as T))) index -= 1;
  return sorted.slice(index);
}

function openRow(event: MouseEvent, href: string): void {
  const target = event.target as Element;
  if (target.closest("a, button, input, select, details") || getSelection()?.toString()) return;
  if (event.ctrlKey || event.metaKey) open(href, "_blank");
  else navigate(href);
}

function cellClass<T>(column: Column<T>): string {
  return `${column.isNumber ? "number" : ""} ${column.fills ? "fill" : ""} ${column.narrow ? "" : "wide-only"}`.trim();
}

function Heading<T>({ column, order }: { column: Column<T>; order: string }) {
  const direction = order === column.id ? "ascending" : order === `-${column.id}` ? "descending" : "none";
  const flip = (): void => setQuery({ sort: direction === "descending" ? column.id : `-${column.id}` });
  return (
    <th scope="col" class={cellClass(column)} aria-sort={column.sort ? direction : undefined} title={column.hint}>
      {column.sort ? (
        <button class="quiet" onClick={flip}>
          {column.title}
          {direction === "none" ? null : <span aria-hidden="true">{direction === "ascending" ? "↑" : "↓"}</span>}
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

export function toggled(selected: ReadonlySet<string>, key: string): Set<string> {
  const next = new Set(selected);
  if (!next.delete(key)) next.add(key);
  return next;
}

function reveal(body: HTMLElement | null, index: number): void {
  if (!body) return;
  const top = body.getBoundingClientRect().top + scrollY + index * ROW_HEIGHT;
  if (top < scrollY + 120) scrollTo({ top: top - 120 });
  else if (top + ROW_HEIGHT > scrollY + innerHeight - 80) scrollTo({ top: top - innerHeight + 160 });
}
