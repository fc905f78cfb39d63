// Loading data for a page, and what is shown meanwhile, when it fails, and when it is not allowed.
import { useSignal } from "@preact/signals";
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { ApiError } from "../api";
import { connection } from "../live";

export interface Loaded<T> {
  data: T | undefined;
  error: ApiError | undefined;
  isSlow: boolean; // loading for more than 200 ms with nothing to show
  reload: () => void;
}

/** Load when `key` changes. Old data stays while new data is on its way; a null key loads nothing. */
export function useLoad<T>(key: string | null, fetch: (abort: AbortSignal) => Promise<T>): Loaded<T> {
  const [state, setState] = useState<{ data?: T; error?: ApiError; isSlow: boolean; key: string | null }>({ isSlow: false, key: null });
  const [turn, setTurn] = useState(0);
  const fetcher = useRef(fetch);
  fetcher.current = fetch;
  useEffect(() => {
    if (key === null) return undefined;
    const abort = new AbortController();
    const slow = setTimeout(() => setState((old) => ({ ...old, isSlow: old.data === undefined })), 200);
    fetcher.current(abort.signal).then(
      (data) => setState({ data, isSlow: false, key }),
      (error: unknown) => {
        if (abort.signal.aborted) return;
        const known = error instanceof ApiError ? error : new ApiError(0, "fault", String(error), "", "");
        setState((old) => (old.data !== undefined && old.key === key ? { ...old, error: known } : { error: known, isSlow: false, key }));
      },
    ).finally(() => clearTimeout(slow));
    return () => {
      clearTimeout(slow);
      abort.abort();
    };
  }, [key, turn]);
  // What failed while the broker was away is loaded again when it is back.
  const isBack = connection.value === "live" || connection.value === "polling";
  useEffect(() => {
    if (isBack && state.error?.status === 0) setTurn((old) => old + 1);
  }, [isBack]);
  const reload = useCallback(() => setTurn((old) => old + 1), []);
  return { data: state.data, error: state.error, isSlow: state.isSlow, reload };
}

export interface RowPage<T> {
  rows: readonly T[];
  cursor: string | null; // of the next page; null after the last one
}

export interface Pages<T> extends Loaded<readonly T[]> {
  hasMore: boolean;
  loadMore: () => void;
}

/** Rows that come a page at a time as somebody scrolls. Refreshed every so often until the second page is loaded. */
export function usePages<T>(key: string, fetch: (cursor: string | null, abort?: AbortSignal) => Promise<RowPage<T>>, refreshSeconds: number | null = null): Pages<T> {
  const more = useSignal<RowPage<T> & { isLoading: boolean }>({ rows: [], cursor: null, isLoading: false });
  const turn = useRef(0); // a page that arrives after the first one was loaded again is dropped
  const first = useLoad(key, async (abort) => {
    const page = await fetch(null, abort);
    turn.current += 1;
    more.value = { rows: [], cursor: page.cursor, isLoading: false };
    return page.rows;
  });
  const refresh = useCallback(() => void (more.value.rows.length || first.reload()), [first.reload]);
  useInterval(refresh, refreshSeconds);
  const loadMore = (): void => {
    const { rows, cursor, isLoading } = more.value;
    if (cursor === null || isLoading) return;
    const began = turn.current;
    const finish = (next: RowPage<T>): void => {
      if (turn.current === began) more.value = { ...next, isLoading: false };
    };
    more.value = { rows, cursor, isLoading: true };
    fetch(cursor).then((page) => finish({ rows: [...rows, ...page.rows], cursor: page.cursor }), () => finish({ rows, cursor }));
  };
  return { ...first, data: first.data && [...first.data, ...more.value.rows], hasMore: more.value.cursor !== null, loadMore };
}

/** Act every `seconds` while the tab is visible; never where that is null. */
export function useInterval(action: () => void, seconds: number | null): void {
  useEffect(() => {
    if (seconds === null) return undefined;
    const timer = setInterval(() => document.hidden || action(), seconds * 1000);
    return () => clearInterval(timer);
  }, [action, seconds]);
}

export function View<T>({ of, children, rows = 6 }: { of: Loaded<T>; children: (data: T) => ComponentChildren; rows?: number }) {
  if (of.data !== undefined) {
    return (
      <>
        {of.error && of.error.status !== 0 ? <Problem error={of.error} retry={of.reload} /> : null}
        {children(of.data)}
      </>
    );
  }
  if (of.error) return <Problem error={of.error} retry={of.reload} />;
  return of.isSlow ? <Skeleton rows={rows} /> : <div class="pending" aria-busy="true" />;
}

export function Skeleton({ rows }: { rows: number }) {
  return (
    <div class="skeleton" aria-busy="true" aria-label="Loading">
      {Array.from({ length: rows }, (_, index) => (
        <div key={index} />
      ))}
    </div>
  );
}

/** Instead of an empty list, for those who may read nothing: what there is, is not shown to them. */
export function MayReadNothing() {
  return (
    <p class="notice warning" role="alert">
      You may not read any queue: ask an owner for a grant such as read:orders
    </p>
  );
}

/** What went wrong: the code, the message, what to do, and the id by which the broker's log knows the request. */
export function Problem({ error, retry }: { error: ApiError; retry?: () => void }) {
  const isForbidden = error.status === 403;
  const title = isForbidden ? "You may not see this" : error.status === 404 ? "Not found" : error.status === 0 ? "The broker cannot be reached" : "This did not work";
  return (
    <div class={`notice ${isForbidden ? "warning" : "danger"}`} role="alert">
      <strong>{error.code === "invalid" ? "This cannot be sent" : title}</strong>
      <p>{error.message}</p>
      {error.hint ? <p class="soft">{error.hint}</p> : null}
      <p class="small">
        <code>{error.code}</code>
        {error.requestId ? ` · request ${error.requestId}` : ""}
      </p>
      {retry && !isForbidden ? <button onClick={retry}>Try again</button> : null}
    </div>
  );
}
