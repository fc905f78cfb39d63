// Every page: its address, the script that draws it, and its place in the navigation. The tests of the dashboard have a row
// for each of these addresses.
import type { ComponentType } from "preact";
import type { IconName } from "./parts/icon";

export type PageModule = { default: ComponentType };

interface Route {
  path: string; // parts in braces stand for any name
  tabs?: readonly string[]; // parts of the page with an address of their own, below its path
  load: () => Promise<PageModule>;
}

export const ROUTES: readonly Route[] = [
  { path: "", load: () => import("./pages/overview") },
  { path: "queues", load: () => import("./pages/queues") },
  { path: "queues/{queue}", tabs: ["messages", "groups", "dlq", "keys", "leases", "history", "options"], load: () => import("./pages/queue") },
  { path: "messages/{queue}/{partition}/{offset}", load: () => import("./pages/message") },
  { path: "dlq", load: () => import("./pages/dlq") },
  { path: "tasks", load: () => import("./pages/tasks") },
  { path: "tasks/{task}", load: () => import("./pages/task") },
  { path: "workflows", load: () => import("./pages/workflows") },
  { path: "workflows/{workflow}", load: () => import("./pages/workflow") },
  { path: "workers", load: () => import("./pages/workers") },
  { path: "workers/{worker}", load: () => import("./pages/worker") },
  { path: "schedules", load: () => import("./pages/schedules") },
  { path: "schedules/{schedule}", load: () => import("./pages/schedule") },
  { path: "history", load: () => import("./pages/history") },
  { path: "traces", load: () => import("./pages/traces") },
  { path: "traces/{trace}", load: () => import("./pages/trace") },
  { path: "query", load: () => import("./pages/query") },
  { path: "pipelines", load: () => import("./pages/pipelines") },
  { path: "pipelines/{pipeline}/{run}", load: () => import("./pages/pipeline") },
  { path: "operations", load: () => import("./pages/operations") },
  { path: "audit", load: () => import("./pages/audit") },
  { path: "broker", tabs: ["connections", "cluster"], load: () => import("./pages/broker") },
];

/** The page of an address, given in parts. */
export function routeOf(parts: readonly string[]): Route | undefined {
  return ROUTES.find(({ path, tabs = [] }) => {
    const pattern = path.split("/").filter(Boolean);
    const isTab = parts.length === pattern.length + 1 && tabs.includes(parts.at(-1) ?? "");
    return (parts.length === pattern.length || isTab) && pattern.every((part, index) => part.startsWith("{") || part === parts[index]);
  });
}

export interface Section {
  id: string;
  title: string;
  key: string; // after "g"
  icon: IconName;
}

/** The navigation, in groups: what is there, what happened, and the broker itself. */
export const GROUPS: readonly (readonly Section[])[] = [
  [
    { id: "", title: "Overview", key: "o", icon: "overview" },
    { id: "queues", title: "Queues", key: "q", icon: "queues" },
    { id: "dlq", title: "Dead letters", key: "d", icon: "dead" },
    { id: "tasks", title: "Tasks", key: "t", icon: "tasks" },
    { id: "workflows", title: "Workflows", key: "f", icon: "workflows" },
    { id: "workers", title: "Workers", key: "w", icon: "workers" },
    { id: "schedules", title: "Schedules", key: "s", icon: "schedules" },
  ],
  [
    { id: "history", title: "History", key: "h", icon: "history" },
    { id: "traces", title: "Traces", key: "r", icon: "traces" },
    { id: "query", title: "Query", key: "u", icon: "query" },
    { id: "pipelines", title: "Pipelines", key: "l", icon: "pipelines" },
  ],
  [
    { id: "operations", title: "Operations", key: "p", icon: "operations" },
    { id: "audit", title: "Audit", key: "a", icon: "audit" },
    { id: "broker", title: "Broker", key: "b", icon: "broker" },
  ],
];

export const SECTIONS: readonly Section[] = GROUPS.flat();
