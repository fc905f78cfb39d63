// Loading data for a page, and what is shown meanwhile, when it fails, and when it is not allowed.
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

/** Load again every `seconds` while the tab is visible. */
export function useInterval(action: () => void, seconds: number): void {
  useEffect(() => {
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
