// Find a trace by its id: everything that one request set in motion.
import { Card, Empty, Page } from "../parts/ui";
import { link, navigate } from "../router";

export default function Traces() {
  const open = (event: Event): void => {
    event.preventDefault();
    const text = (new FormData(event.currentTarget as HTMLFormElement).get("trace") as string).trim();
    if (text) navigate(link(["traces", text]));
  };
  return (
    <Page title="Traces">
      <form class="filter-bar" onSubmit={open}>
        <input data-filter name="trace" aria-label="Trace id" placeholder="The trace of a message, such as 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" autocomplete="off" spellcheck={false} />
        <button class="primary">Open</button>
      </form>
      <Card>
        <Empty title="Open a trace" command={`penstock push orders '{"id": 1}' --header traceparent=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`}>
          Messages and tasks carry the W3C trace of whoever pushed them. A trace shows all of them on one time axis: how long each waited, how long it ran, and what failed. Messages and tasks with a trace link to it.
        </Empty>
      </Card>
    </Page>
  );
}
