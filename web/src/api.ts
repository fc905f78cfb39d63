// Requests to the broker's public API. Nothing here is special: curl can do the same.
import { signal } from "@preact/signals";
import type { components } from "./api-types";
import { base, type Query } from "./router";

export type Schemas = components["schemas"];
export const root = new URL("../api/v1/", base);
const TAB_SECRET = "penstock-tab";
const TAB_HEADER = "X-Penstock-Tab";

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly hint: string,
    readonly requestId: string,
  ) {
    super(message);
  }
}

/** Who is signed in: undefined until known, null when nobody is. */
export const me = signal<Schemas["Principal"] | null | undefined>(undefined);
/** Why the last try to sign in failed. */
export const signInProblem = signal<ApiError | null>(null);
/** Whether the broker could be reached by the last request. */
export const isReachable = signal(true);

/** Which broker this is, as its settings say: they come with the page. */
const [color = "", readOnly = "", ...label] = (document.querySelector<HTMLMetaElement>('meta[name="penstock-banner"]')?.content ?? "").split("|");
export const broker = { color, isReadOnly: readOnly === "read-only", environment: label.join("|") };

export function tabSecret(): string {
  return sessionStorage.getItem(TAB_SECRET) ?? "";
}

export function streamUrl(): string {
  const url = new URL("stream", root);
  url.protocol = url.protocol.replace("http", "ws");
  return url.href;
}

/** The text of something that is not JSON. */
export async function getText(parts: readonly (string | number)[], abort: AbortSignal): Promise<string> {
  const secret = tabSecret();
  const response = await fetch(new URL(at(parts), root), { headers: secret ? { [TAB_HEADER]: secret } : {}, signal: abort });
  const text = await response.text();
  if (!response.ok) throw refused(response, text);
  return text;
}

/** Call the API. `path` is below /api/v1/; its parts are encoded where they are put together (`at`). */
export async function call<T>(method: string, path: string, body?: unknown, abort?: AbortSignal): Promise<T> {
  const headers: Record<string, string> = {};
  const secret = tabSecret();
  if (secret) headers[TAB_HEADER] = secret;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response: Response;
  try {
    response = await fetch(new URL(path, root), {
      method,
      headers,
      body: body === undefined ? null : JSON.stringify(body),
      signal: abort ?? null,
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    isReachable.value = false;
    throw new ApiError(0, "unreachable", "The broker cannot be reached.", "", "");
  }
  isReachable.value = true;
  const text = await response.text();
  if (response.ok) return (text ? parseExact(text) : undefined) as T;
  throw refused(response, text);
}

function refused(response: Response, text: string): ApiError {
  if (response.status === 401 && me.value) me.value = null;
  const requestId = response.headers.get("x-request-id") ?? "";
  try {
    const { code, message, hint } = (JSON.parse(text) as { error: Schemas["ErrorFields"] }).error;
    return new ApiError(response.status, code, message, hint ?? "", requestId);
  } catch {
    return new ApiError(response.status, "http_error", `HTTP ${response.status}`, "", requestId);
  }
}

/** A number in the source text that a JavaScript number cannot hold. */
export class ExactNumber {
  constructor(readonly text: string) {}
}

/** JSON in which numbers beyond 2^53 keep their digits, where the browser can tell them. */
export function parseExact(text: string): unknown {
  return JSON.parse(text, function keep(_key, value, context?: { source?: string }) {
    const isInexact = typeof value === "number" && (!Number.isFinite(value) || Math.abs(value) > Number.MAX_SAFE_INTEGER);
    return isInexact && context?.source ? new ExactNumber(context.source) : value;
  } as (key: string, value: unknown) => unknown);
}

/** A path from parts, each encoded, with a query. */
export function at(parts: readonly (string | number)[], params: Query = {}): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== undefined && value !== null && value !== "") search.set(name, String(value));
  }
  const text = search.toString();
  return parts.map((part) => encodeURIComponent(part)).join("/") + (text ? `?${text}` : "");
}

export const get = <T>(parts: readonly (string | number)[], params: Query = {}, abort?: AbortSignal): Promise<T> =>
  call<T>("GET", at(parts, params), undefined, abort);
export const post = <T>(parts: readonly (string | number)[], body: unknown = {}): Promise<T> => call<T>("POST", at(parts), body);

export async function loadMe(): Promise<void> {
  try {
    me.value = await get<Schemas["Principal"]>(["me"]);
  } catch (error) {
    if (error instanceof ApiError && error.status === 0) throw error;
    me.value = null;
  }
}

export async function signIn(credentials: { user: string; password: string } | { code: string }): Promise<void> {
  const session = await call<Schemas["SessionView"]>("POST", "sessions", credentials);
  if (session.tab_secret) sessionStorage.setItem(TAB_SECRET, session.tab_secret);
  await loadMe();
}

export async function signOut(): Promise<void> {
  await call("DELETE", "sessions/current");
  sessionStorage.removeItem(TAB_SECRET);
  me.value = null;
}

/** Whether the grants of the person who is signed in allow `action` on `queue`; "" is the broker as a whole. The broker
 * decides: this only hides buttons that it would refuse. */
export function may(action: string, queue = ""): boolean {
  return (me.value?.grants ?? []).some((grant) => allows(grant, action, queue));
}

/** Whether any grant allows `action` on some queue. */
export function mayAnywhere(action: string): boolean {
  return (me.value?.grants ?? []).some((grant) => grant.startsWith(`${action}:`));
}

function allows(grant: string, action: string, queue: string): boolean {
  const colon = grant.indexOf(":");
  const pattern = grant.slice(colon + 1);
  if (grant.slice(0, colon) !== action) return false;
  if (queue.startsWith("penstock.") && !pattern.startsWith("penstock.")) return false;
  const source = queue.endsWith(".dlq") ? queue.slice(0, -4) : queue;
  return pattern.endsWith("*") ? source.startsWith(pattern.slice(0, -1)) : pattern === queue || pattern === source;
}
