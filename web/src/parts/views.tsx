// Saved views: names for addresses of a page, kept in this browser.
import { signal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { base, navigate, query } from "../router";

interface SavedView {
  name: string;
  search: string;
}

const KEY = "penstock-views";
const views = signal<Record<string, SavedView[]>>(read());

function read(): Record<string, SavedView[]> {
  try {
    return JSON.parse(localStorage.getItem(KEY) ?? "{}") as Record<string, SavedView[]>;
  } catch {
    return {}; // somebody else wrote there
  }
}

function store(page: string, list: SavedView[]): void {
  views.value = { ...views.value, [page]: list };
  localStorage.setItem(KEY, JSON.stringify(views.value));
}

export function SavedViews({ page }: { page: string }) {
  const popover = useRef<HTMLDetailsElement>(null);
  const saved = views.value[page] ?? [];
  const search = query.value.toString();
  const close = (): void => popover.current?.removeAttribute("open");
  const save = (event: Event): void => {
    event.preventDefault();
    const input = (event.currentTarget as HTMLFormElement).elements.namedItem("name") as HTMLInputElement;
    const name = input.value.trim();
    if (name) store(page, [...saved.filter((view) => view.name !== name), { name, search }]);
    input.value = "";
  };
  const open = (view: SavedView): void => {
    close();
    navigate(new URL(`${page}${view.search ? `?${view.search}` : ""}`, base).href);
  };
  return (
    <details class="popover" ref={popover} onKeyDown={(event) => event.key === "Escape" && close()}>
      <summary class="button">Views{saved.length ? ` · ${saved.length}` : ""}</summary>
      <div>
        {saved.map((view) => (
          <div key={view.name} class="row">
            <button class="link" onClick={() => open(view)}>
              {view.name}
            </button>
            <button class="quiet" aria-label={`Forget the view ${view.name}`} onClick={() => store(page, saved.filter((item) => item !== view))}>
              Forget
            </button>
          </div>
        ))}
        {saved.length ? null : <p class="soft small">A view is the filter, the order and the columns' sort of this page under a name. Set a filter, then save it here.</p>}
        <form class="row" onSubmit={save}>
          <input name="name" placeholder="Name of this view" aria-label="Name of this view" maxLength={60} required />
          <button>Save</button>
        </form>
      </div>
    </details>
  );
}
