// Why something waits, and who holds it.
import { get } from "../api";
import { count, duration, plural } from "../format";
import { Link, link, messageLink } from "../router";
import type { Holder, QueueWhy, WhyReason } from "../types";
import { useInterval, useLoad, View } from "./load";
import { Badge, Card, Time } from "./ui";

/** The reasons of a queue, counted by the broker, with who holds what and when it will be over. */
export function WhyCard({ queue }: { queue: string }) {
  const loaded = useLoad(`why,${queue}`, (abort) => get<QueueWhy>(["queues", queue, "why"], {}, abort));
  useInterval(loaded.reload, 5);
  return (
    <Card title="Why it waits">
      <View of={loaded} rows={3}>
        {({ groups }) => {
          const waiting = groups.filter((group) => group.reasons.length);
          return waiting.length ? (
            <div class="columns">
              {waiting.map((group) => (
                <section key={group.group}>
                  <h3>
                    {group.group} <span class="soft plain">{summary(group)}</span>
                  </h3>
                  <ul class="timeline">
                    {group.reasons.map((reason) => (
                      <Reason key={reason.code + (reason.key ?? "")} reason={reason} />
                    ))}
                  </ul>
                  {group.is_complete ? null : <p class="soft small">Of the first {plural(group.examined, "message")}.</p>}
                </section>
              ))}
            </div>
          ) : (
            <p class="soft">Nothing waits: every message was taken as soon as it came.</p>
          );
        }}
      </View>
    </Card>
  );
}

function summary(group: QueueWhy["groups"][number]): string {
  const eta = group.eta_ms === null ? "" : `, done in about ${duration(group.eta_ms)}`;
  return `${count(group.open)} open${eta}`;
}

function Reason({ reason }: { reason: WhyReason }) {
  return (
    <li class={reason.code === "leased" ? "ok" : /no_|paused|other/.test(reason.code) ? "danger" : "warning"}>
      <p>
        {reason.sample ? <Link href={messageLink(reason.sample)}>{reasonText(reason)}</Link> : reasonText(reason)} <Badge plain>{reason.code.replace(/_/g, " ")}</Badge>
      </p>
      <p class="soft small">
        {reason.until ? (
          <>
            changes <Time at={reason.until} />{" "}
          </>
        ) : null}
        {reason.eta_ms ? `done in about ${duration(reason.eta_ms)} ` : ""}
        <Holders holders={reason.holders} />
      </p>
    </li>
  );
}

/** The broker's sentence without what the line below says as links and times: who holds it, and since when. */
function reasonText({ text, holders }: WhyReason): string {
  return holders.length ? text.replace(/ since [^,]*, held by .*$/, "") : text;
}

export function Holders({ holders }: { holders: readonly Holder[] }) {
  if (!holders.length) return null;
  return (
    <span class="soft small">
      held by{" "}
      {holders.map((holder, index) => (
        <span key={holder.consumer}>
          {index ? ", " : ""}
          <Link href={link(["workers", holder.consumer])}>{holder.consumer || "an unnamed consumer"}</Link> since <Time at={holder.since} />
        </span>
      ))}
    </span>
  );
}
