// Ctrl K: go to a page or a queue, or open a message or a task by its id.
import { signal } from "@preact/signals";
import { createRef } from "preact";
import { useState } from "preact/hooks";
import { rows } from "../queues";
import { link, messageLink, navigate } from "../router";
import { SECTIONS } from "../routes";

const isOpen = signal(false);
const element = createRef<HTMLDialogElement>();

/** At once, so that the next key is typed into it. */
export function openPalette(): void {
  isOpen.value = true;
  if (!element.current?.open) element.current?.showModal();
}

interface Target {
  title: string;
  kind: string;
  href: string;
}

function targets(text: string): Target[] {
  const typed = text.trim();
  const direct: Target[] = [];
  if (/^[^/\s]+\/[^/\s]+\/\d+$/.test(typed)) direct.push({ title: typed, kind: "Message", href: messageLink(typed) });
  if (/^[0-9a-f]{8}-[0-9a-f-]{27}$/.test(typed)) direct.push({ title: typed, kind: "Task", href: link(["tasks", typed]) });
  const pages = SECTIONS.map((section) => ({ title: section.title, kind: "Page", href: link([section.id].filter(Boolean)) }));
  const queues = [...(rows.value?.keys() ?? [])].map((name) => ({ title: name, kind: "Queue", href: link(["queues", name]) }));
  const matches = [...pages, ...queues].filter((target) => target.title.toLowerCase().includes(typed.toLowerCase()));
  const search = typed ? [{ title: `Tasks whose arguments contain “${typed}”`, kind: "Search", href: link(["tasks"], { q: typed }) }] : [];
  return [...direct, ...matches, ...search].slice(0, 12);
}

export function Palette() {
  const [text, setText] = useState("");
  const [index, setIndex] = useState(0);
  const closed = (): void => {
    isOpen.value = false;
    setText("");
    setIndex(0);
  };
  const found = isOpen.value ? targets(text) : [];
  const go = (target: Target | undefined): void => {
    if (!target) return;
    element.current?.close();
    if (document.activeElement instanceof HTMLElement) document.activeElement.blur(); // or the next key would be typed here
    navigate(target.href);
  };
  const onKey = (event: KeyboardEvent): void => {
    if (event.key === "ArrowDown") setIndex(Math.min(index + 1, found.length - 1));
    else if (event.key === "ArrowUp") setIndex(Math.max(index - 1, 0));
    else if (event.key === "Enter") go(found[index]);
    else return;
    event.preventDefault();
  };
  return (
    <dialog ref={element} class="palette" aria-label="Search" onClose={closed} onClick={(event) => event.target === element.current && element.current?.close()}>
      <input
        type="search"
        list={undefined}
        placeholder="A page, a queue, a message id or a task id"
        aria-label="Search"
        role="combobox"
        aria-expanded="true"
        aria-controls="palette-list"
        aria-activedescendant={found[index] ? `palette-${index}` : undefined}
        value={text}
        onInput={(event) => {
          setText(event.currentTarget.value);
          setIndex(0);
        }}
        onKeyDown={onKey}
      />
      <ul id="palette-list" role="listbox" aria-label="Results">
        {found.map((target, position) => (
          <li key={target.kind + target.title} id={`palette-${position}`} role="option" aria-selected={position === index} onClick={() => go(target)}>
            <span>{target.title}</span> <span class="soft">{target.kind}</span>
          </li>
        ))}
      </ul>
    </dialog>
  );
}
