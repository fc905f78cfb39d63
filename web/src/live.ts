// One WebSocket for the tab. Pages subscribe to events; where no socket can be had, subscribers are polled instead.
import { effect, signal } from "@preact/signals";
import { loadMe, me, streamUrl, tabSecret } from "./api";
import { setServerTime } from "./format";

export interface LiveEvent {
  event: string;
  at: string;
  missed?: number;
  [field: string]: unknown;
}

interface Subscriber {
  request: Record<string, unknown>;
  onEvent: (event: LiveEvent) => void;
  poll: () => void;
  hasData: boolean;
}

export type Connection = "connecting" | "live" | "polling" | "offline";
export const connection = signal<Connection>("connecting");
/** While true, a page that has its first data stands still. */
export const isPaused = signal(false);

const HIDDEN_MS = 60_000;
const POLL_MS = 5_000;
const REFUSED_MS = 2_000;
const RETRY_MS = [500, 1_000, 2_000, 5_000, 10_000];

const subscribers = new Map<string, Subscriber>();
let socket: WebSocket | null = null;
let failures = 0;
let wasEverOpen = false;
let sequence = 0;
let retryTimer = 0;
let pollTimer = 0;
let hiddenTimer = 0;

/** Listen to events of the given topics; `poll` fetches the same by HTTP where there is no socket. Returns how to stop. */
export function subscribe(request: Record<string, unknown>, onEvent: Subscriber["onEvent"], poll: () => void): () => void {
  const name = `s${++sequence}`;
  subscribers.set(name, { request, onEvent, poll, hasData: false });
  if (socket?.readyState === WebSocket.OPEN) send(name);
  else if (socket === null) open();
  if (connection.value === "polling") poll();
  return () => {
    subscribers.delete(name);
    if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ type: "unsubscribe", subscription: name }));
  };
}

function send(name: string): void {
  const subscriber = subscribers.get(name);
  if (subscriber) socket?.send(JSON.stringify({ type: "events", id: name, subscription: name, ...subscriber.request }));
}

function open(): void {
  clearTimeout(retryTimer);
  if (socket !== null || !me.value || document.hidden) return;
  const opened = new WebSocket(streamUrl());
  socket = opened;
  opened.onopen = () => {
    const secret = tabSecret();
    if (secret) opened.send(JSON.stringify({ type: "auth", tab: secret }));
    failures = 0;
    wasEverOpen = true;
    stopPolling();
    connection.value = "live";
    for (const name of subscribers.keys()) send(name);
  };
  opened.onmessage = (message) => receive(JSON.parse(message.data as string) as LiveEvent & { subscription?: string });
  opened.onclose = () => {
    if (socket !== opened) return;
    socket = null;
    lost();
  };
}

function lost(): void {
  if (!me.value || document.hidden) return;
  connection.value = wasEverOpen && failures < 3 ? "connecting" : connection.value;
  failures += 1;
  if (failures >= 3) startPolling();
  retryTimer = window.setTimeout(open, RETRY_MS[Math.min(failures, RETRY_MS.length) - 1]);
}

function receive(message: LiveEvent & { subscription?: string }): void {
  if (message["type"] === "error") refused(String(message["id"] ?? ""));
  const subscriber = subscribers.get(message.subscription ?? "");
  if (!subscriber || message["type"] !== "event") return;
  setServerTime(message.at);
  // Paused before its first data, a page would stay empty until it is resumed.
  if (isPaused.value && subscriber.hasData) return;
  subscriber.hasData = true;
  if (message.missed) subscriber.poll();
  subscriber.onEvent(message);
}

/** Without a subscription, as some may not have one, it is asked for every few seconds; or the session has ended. */
function refused(name: string): void {
  void loadMe().catch(() => undefined);
  const subscriber = subscribers.get(name);
  if (!subscriber) return;
  const timer = setInterval(() => (subscribers.get(name) === subscriber ? document.hidden || isPaused.value || subscriber.poll() : clearInterval(timer)), REFUSED_MS);
}

function startPolling(): void {
  if (pollTimer) return;
  const tick = (): void => {
    if (isPaused.value) return;
    // Whether the broker is there at all is known by asking it who is signed in.
    loadMe().then(
      () => {
        const isOpen = socket?.readyState === WebSocket.OPEN;
        connection.value = isOpen ? "live" : "polling";
        if (!isOpen) for (const subscriber of subscribers.values()) subscriber.poll();
      },
      () => (connection.value = "offline"),
    );
  };
  tick();
  pollTimer = window.setInterval(tick, POLL_MS);
}

function stopPolling(): void {
  clearInterval(pollTimer);
  pollTimer = 0;
}

// A hidden tab costs the broker nothing after a minute.
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiddenTimer);
  if (document.hidden) {
    hiddenTimer = window.setTimeout(() => {
      stopPolling();
      socket?.close();
      socket = null;
    }, HIDDEN_MS);
  } else if (socket === null) {
    open();
  }
});

// What happened while the page stood still is fetched when it goes on.
let wasPaused = false;
effect(() => {
  if (wasPaused && !isPaused.value) for (const subscriber of subscribers.values()) subscriber.poll();
  wasPaused = isPaused.value;
});

effect(() => {
  if (me.value) {
    if (subscribers.size) open();
  } else if (socket) {
    const closing = socket;
    socket = null;
    closing.close();
  }
});
