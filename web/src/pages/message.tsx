// One message: its payload, where it stands in each group, why it waits, and what happened to it.
import { at, call, get, post, type Schemas } from "../api";
import { traceText } from "../format";
import { useInterval, useLoad, View } from "../parts/load";
import { exactJson, isPlainText, Payload } from "../parts/payload";
import { ask, notify } from "../parts/dialog";
import { Action, Badge, Card, Empty, Facts, Field, Page, Time } from "../parts/ui";
import { Link, link, messageLink, path } from "../router";
import { content } from "./queue-actions";

type Message = Schemas["MessageDetails"];

export default function MessagePage() {
  const [, queue = "", partition = "", offset = ""] = path.value;
  const parts = ["queues", queue, "messages", partition, offset];
  const id = `${queue}/${partition}/${offset}`;
  const message = useLoad(id, (abort) => get<Message>(parts, {}, abort));
  const events = useLoad(`events,${id}`, (abort) => get<Schemas["MessageEvents"]>([...parts, "events"], {}, abort));
  useInterval(message.reload, 5);
  useInterval(events.reload, 5);
  return (
    <Page
      title={id}
      crumbs={[
        ["Queues", link(["queues"])],
        [queue, link(["queues", queue])],
        ["Messages", link(["queues", queue, "messages"], { partition, offset })],
      ]}
      actions={
        message.data ? (
          <>
            <Action right="push" queue={queue} onClick={() => pushAgain(queue, message.data as Message)}>
              Push again
            </Action>
            {message.data.groups.some((group) => group.status !== "settled") ? (
              <Action queue={queue} onClick={() => cancel(id, parts, message.reload)}>
                Cancel
              </Action>
            ) : null}
          </>
        ) : null
      }
    >
      <View of={message}>
        {(data) => (
          <div class="split">
            <div>
              <Death headers={data.headers} />
              <Card title="Payload">
                <Payload of={data} />
              </Card>
              <Card title="Timeline">
                <View of={events} rows={3}>
                  {(list) => (
                    <ol class="timeline">
                      {list.events.map((event, index) => (
                        <EventItem key={index} event={event} />
                      ))}
                    </ol>
                  )}
                </View>
              </Card>
            </div>
            <div>
              <Card title="In each group">
                {data.groups.length ? (
                  <ul class="timeline">
                    {data.groups.map((group) => (
                      <GroupState key={group.group} group={group} />
                    ))}
                  </ul>
                ) : (
                  <Empty title="No group reads this message" />
                )}
              </Card>
              <Card title="Message">
                <Facts aside items={facts(data)} />
              </Card>
              <Headers of={data.headers} />
            </div>
          </div>
        )}
      </View>
    </Page>
  );
}

/** Headers that somebody pushed; those that Penstock itself wrote are shown in words elsewhere. */
function Headers({ of }: { of: Record<string, string> }) {
  const items = Object.entries(of).filter(([name]) => !name.startsWith(OWN));
  return items.length ? (
    <Card title="Headers">
      <Facts aside items={items} />
    </Card>
  ) : null;
}

const OWN = "penstock-";

/** Of a dead letter: why it died, and where it came from. */
function Death({ headers }: { headers: Record<string, string> }) {
  const of = (name: string): string => headers[OWN + name] ?? "";
  if (!of("origin") || !of("dead-at")) return null;
  return (
    <Card title="Why it died">
      {of("error") ? (
        <pre class="trace" tabIndex={0}>
          {of("error")}
        </pre>
      ) : null}
      <Facts
        items={[
          ["Message", <Link key="origin" href={messageLink(of("origin"))}>{of("origin")}</Link>],
          ["Group", of("group") || "–"],
          ["Attempts", of("attempts") || "–"],
          ["Reason", of("reason") || "–"],
          ["Last consumer", of("last-consumer") || "–"],
          ["First delivered", <Time key="first" at={of("first-delivered-at")} />],
          ["Died", <Time key="died" at={of("dead-at")} />],
        ]}
      />
    </Card>
  );
}

function GroupState({ group }: { group: Schemas["MessageState"] }) {
  return (
    <li class={tone(group.status)}>
      <strong>{group.group}</strong> <Badge>{group.status}</Badge>
      <p>{group.text}</p>
      {group.consumer ? (
        <p class="soft">
          held by {group.consumer} until <Time at={group.expires_at} />
        </p>
      ) : null}
      {group.due_at ? (
        <p class="soft">
          next attempt <Time at={group.due_at} />
        </p>
      ) : null}
      {group.error ? <pre class="trace" tabIndex={0}>{group.error}</pre> : null}
    </li>
  );
}

function EventItem({ event }: { event: Schemas["MessageEvent"] }) {
  return (
    <li class={tone(event.what)}>
      <strong>{event.what}</strong>
      {event.group ? ` in ${event.group}` : ""}
      {event.attempt ? `, attempt ${event.attempt}` : ""}
      {event.consumer ? ` by ${event.consumer}` : ""} <span class="soft"><Time at={event.at} /></span>
      {event.due_at ? (
        <p class="soft">
          next attempt <Time at={event.due_at} />
        </p>
      ) : null}
      {event.letter ? (
        <p>
          <Link href={messageLink(event.letter)}>dead letter {event.letter}</Link>
        </p>
      ) : null}
      {event.error ? <pre class="trace" tabIndex={0}>{event.error}</pre> : null}
    </li>
  );
}

function facts(message: Message): [string, preact.ComponentChildren][] {
  const items: [string, preact.ComponentChildren][] = [
    ["Pushed", <Time key="pushed" at={message.pushed_at} />],
    ["Key", message.key ?? "–"],
    ["Priority", String(message.priority)],
    ["Content type", message.content_type],
  ];
  if (message.available_at) items.push(["Available", <Time key="available" at={message.available_at} />]);
  if (message.expires_at) items.push(["Expires", <Time key="expires" at={message.expires_at} />]);
  if (message.dedup_key) items.push(["Dedup key", message.dedup_key]);
  if (message.trace) items.push(["Trace", <Link key="trace" href={link(["traces", message.trace])}>{traceText(message.trace)}</Link>]);
  const source = message.headers[`${OWN}replayed-from`];
  if (source) items.push(["Replayed from", <Link key="source" href={messageLink(source)}>{source}</Link>]);
  return items;
}

function tone(code: string): string {
  if (/acked|settled/.test(code)) return "ok";
  if (/dead|expired|dropped|purged|lost/.test(code)) return "danger";
  return /ready|pushed|leased|redriven/.test(code) ? "" : "warning";
}

function cancel(id: string, parts: readonly string[], reload: () => void): void {
  ask({
    title: `Cancel ${id}?`,
    children: <p>It is taken back, which is possible only while nobody has it.</p>,
    command: `penstock cancel ${id}`,
    confirm: "Cancel the message",
    danger: true,
    done: "Cancelled",
    run: async () => {
      await call("DELETE", at(parts));
      reload();
    },
  });
}

function pushAgain(queue: string, message: Message): void {
  let text = isPlainText(message) ? message.payload : message.payload_base64 === undefined ? exactJson(message.payload, "  ") : "";
  ask({
    title: `Push to ${queue} again`,
    children: (
      <Field label="Payload" hint={message.payload_base64 === undefined ? "It becomes a new message with the same key and headers." : "The payload is not JSON: type what to push."}>
        <textarea rows={12} onInput={(event) => (text = event.currentTarget.value)}>
          {text}
        </textarea>
      </Field>
    ),
    confirm: "Push",
    run: async () => {
      const copy = { ...content(text), ...(message.key === null ? {} : { key: message.key }), headers: message.headers, priority: message.priority };
      const { results } = await post<Schemas["PushResults"]>(["queues", queue, "messages"], { messages: [copy] });
      notify(`Pushed as ${results[0]?.id ?? "?"}`);
    },
  });
}
