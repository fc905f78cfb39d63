// The address is the view: paths below the base choose a page, and the query string holds everything else about it.
import { computed, signal } from "@preact/signals";
import type { ComponentChildren } from "preact";

export const base = new URL(document.baseURI);
const address = signal(location.href);

addEventListener("popstate", () => (address.value = location.href));

const current = computed(() => new URL(address.value));
export const path = computed(() => decodePath(current.value.pathname.slice(base.pathname.length)));
export const query = computed(() => current.value.searchParams);

function decodePath(text: string): string[] {
  return text.split("/").filter(Boolean).map(decodeURIComponent);
}

export type Query = Record<string, string | number | undefined | null>;

export function link(parts: readonly (string | number)[], params: Query = {}): string {
  const url = new URL(parts.map((part) => encodeURIComponent(part)).join("/") || ".", base);
  for (const [name, value] of Object.entries(params)) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.set(name, String(value));
  }
  return url.pathname + url.search;
}

export function navigate(href: string, options: { replace?: boolean } = {}): void {
  const target = new URL(href, base);
  if (target.href === location.href) return;
  const isSamePage = target.pathname === location.pathname;
  history[options.replace ? "replaceState" : "pushState"](null, "", target);
  address.value = target.href;
  if (!isSamePage) scrollTo(0, 0);
}

/** Change parameters of the current view; an empty value removes one. */
export function setQuery(changes: Query, options: { replace?: boolean } = { replace: true }): void {
  const url = new URL(location.href);
  for (const [name, value] of Object.entries(changes)) {
    if (value === undefined || value === null || value === "") url.searchParams.delete(name);
    else url.searchParams.set(name, String(value));
  }
  navigate(url.href, options);
}

/** The href of a message by its id "queue/partition/offset". */
export function messageLink(id: string): string {
  const [queue = "", partition = "", offset = ""] = id.split("/");
  return link(["messages", queue, partition, offset]);
}

interface LinkProps {
  href: string;
  class?: string;
  "aria-current"?: "page" | undefined;
  children?: ComponentChildren;
}

export function Link({ href, children, ...rest }: LinkProps) {
  const follow = (event: MouseEvent): void => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    navigate(href);
  };
  return (
    <a {...rest} href={href} onClick={follow}>
      {children}
    </a>
  );
}
