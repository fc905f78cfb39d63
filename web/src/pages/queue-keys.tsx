// The keys of a queue with the most backlog, what each waits for, and who holds it.
import { get } from "../api";
import { count, plural, short } from "../format";
import { useInterval, useLoad, View } from "../parts/load";
import { type Column, Table } from "../parts/table";
import { Age, Amount, Badge, Card, Dash, Empty } from "../parts/ui";
import { Holders } from "../parts/why";
import { Link, link, messageLink, query, setQuery } from "../router";
import type { KeyRow, QueueKeys } from "../types";

function columns(queue: string): readonly Column<KeyRow>[] {
  return [
    { id: "key", title: "Key", narrow: true, cell: (row) => <Link class="name" href={row.oldest_id ? messageLink(row.oldest_id) : link(["queues", queue, "messages"])}>{row.key}</Link> },
    { id: "code", title: "State", cell: (row) => <Badge tone={/held|limited|rate/.test(row.code) ? "warning" : /no_/.test(row.code) ? "danger" : "neutral"}>{(row.code || "in flight").replace(/_/g, " ")}</Badge> },
    { id: "backlog", title: "Backlog", narrow: true, isNumber: true, sort: (row) => row.backlog, cell: (row) => <Amount value={row.backlog} text={short(row.backlog)} /> },
    { id: "flight", title: "In flight", narrow: true, isNumber: true, sort: (row) => row.in_flight, cell: (row) => (row.in_flight_max === null ? <Amount value={row.in_flight} text={count(row.in_flight)} /> : `${row.in_flight} of ${row.in_flight_max}`) },
    { id: "waiting", title: "Waiting", isNumber: true, cell: (row) => <Amount value={row.waiting} text={short(row.waiting)} /> },
    { id: "rate", title: "Limit", isNumber: true, hint: "Deliveries per second", cell: (row) => (row.rate_per_second === null ? <Dash /> : `${row.rate_per_second} per s`) },
    { id: "oldest", title: "Oldest", isNumber: true, cell: (row) => (row.oldest_id ? <Link href={messageLink(row.oldest_id)}><Age at={row.oldest_at} /></Link> : <Age at={row.oldest_at} />) },
    { id: "holders", title: "Held by", fills: true, cell: (row) => <Holders holders={row.holders} /> },
  ];
}

export function Keys({ name }: { name: string }) {
  const prefix = query.value.get("q") ?? "";
  const group = query.value.get("group") ?? "default";
  const loaded = useLoad(`keys,${name},${group},${prefix}`, (abort) => get<QueueKeys>(["queues", name, "keys"], { group, prefix, limit: 200 }, abort));
  useInterval(loaded.reload, 5);
  return (
    <>
      <div class="filter-bar">
        <input data-filter type="search" placeholder="Keys that begin with" aria-label="Keys that begin with" value={prefix} onInput={(event) => setQuery({ q: event.currentTarget.value })} />
      </div>
      <Card class="flush">
        <View of={loaded}>
          {(page) =>
            page.keys.length ? (
              <>
                <Table label="Keys" rows={page.keys} columns={columns(name)} rowKey={(row) => row.key} />
                <div class="table-foot">
                  {plural(page.distinct, "key")} with open messages{page.without_key ? `, ${plural(page.without_key, "message")} without one` : ""}
                  {page.is_complete ? "" : `; of the first ${plural(page.examined, "message")}`}
                </div>
              </>
            ) : (
              <Empty title={prefix ? "No key matches" : "No keys with open messages"} command={`penstock push ${name} '{"id": 1}' --key acme`}>
                Messages with the same key keep their order and can be limited together. {page.without_key ? `${plural(page.without_key, "open message")} have no key.` : ""}
              </Empty>
            )
          }
        </View>
      </Card>
    </>
  );
}
