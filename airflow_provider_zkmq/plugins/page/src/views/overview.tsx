/** A row for each queue of each connection, those in trouble first. */
import { computed, type ReadonlySignal, type Signal } from "@preact/signals";
import { useMemo } from "preact/hooks";
import type { LiveConnection } from "../live";
import { Since } from "../parts/ago";
import { Badge, TroubleBadge } from "../parts/badge";
import { isAway } from "../parts/banners";
import { Status } from "../parts/head";
import { SearchIcon } from "../parts/icons";
import { AirflowLink, Link } from "../parts/link";
import { Empty, Loading } from "../parts/notes";
import { Sparkline } from "../parts/sparkline";
import { type Column, Row, Table } from "../parts/table";
import { go, type Place, place } from "../router";
import type { QueueRow, StateWord, TroubleKind } from "../types";
import { count, counted, countOf, rate, TROUBLES, titleOf } from "../wording";

const COLUMNS: readonly Column[] = [
  { head: "Queue", kind: "main", label: "" },
  { head: "Pending", kind: "number" },
  { head: "Scheduled", kind: "number" },
  { head: "Claimed", kind: "number" },
  { head: "Dead", kind: "number" },
  { head: "Consumers", kind: "number" },
  { head: "Oldest wait", kind: "number" },
  { head: <abbr title="Enqueued a minute">In/min</abbr>, label: "In/min", kind: "number" },
  { head: <abbr title="Finished a minute">Out/min</abbr>, label: "Out/min", kind: "number" },
  { head: "Last 15 min", kind: "tight" },
];

const SEVERITY = Object.keys(TROUBLES) as readonly TroubleKind[];

/** Made once: comparing by a locale and options makes one for each pair. */
const byName = new Intl.Collator(undefined, { numeric: true });

interface Item {
  connection: LiveConnection;
  row: Signal<QueueRow>;
}

export function Overview({ connections, at }: { connections: readonly LiveConnection[]; at: Place }) {
  const items = useMemo(() => sorted(connections), [connections]);
  const total = connections.reduce((sum, each) => sum + each.names.value.length, 0);
  const loaded = connections.every((each) => each.loaded.value);

  if (!connections.length) return <NoConnection />;
  return (
    <>
      <div class="title-row">
        <h1>{at.connection ? `Queues of ${at.connection}` : "Queues"}</h1>
        <Troubled items={items} />
        <span class="grow" />
        <label class="search">
          <SearchIcon />
          <input
            type="search"
            data-search
            placeholder="Search queues (press /)"
            aria-label="Search queues by name, connection or trouble"
            value={at.search ?? ""}
            onInput={(event) => go({ ...at, search: event.currentTarget.value || undefined }, { replace: true })}
          />
        </label>
        {!at.connection && <Status followed={connections} />}
      </div>
      {!loaded && total === 0 ? (
        <Loading what="the queues" />
      ) : total === 0 ? (
        <NoQueue connections={connections} />
      ) : (
        <Rows items={items} several={connections.length > 1} />
      )}
    </>
  );
}

/** The rows in their order. The array is another one only if the order is. */
function sorted(connections: readonly LiveConnection[]): ReadonlySignal<readonly Item[]> {
  let before: readonly Item[] = [];
  return computed(() => {
    const items = connections.flatMap((connection) =>
      connection.names.value.flatMap((name) => {
        const row = connection.rows.get(name);
        return row ? [{ connection, row, key: severity(row.value) }] : [];
      }),
    );
    items.sort(
      (one, other) =>
        one.key - other.key ||
        other.row.peek().counts.dead - one.row.peek().counts.dead ||
        byName.compare(one.row.peek().queue, other.row.peek().queue) ||
        one.connection.id.localeCompare(other.connection.id),
    );
    const same = items.length === before.length && items.every((item, index) => item.row === before[index]?.row);
    if (!same) before = items;
    return before;
  });
}

function severity(row: QueueRow): number {
  const kinds = row.troubles.map(({ kind }) => SEVERITY.indexOf(kind)).filter((index) => index >= 0);
  return row.error === null ? Math.min(...kinds, SEVERITY.length) : -1;
}

function Troubled({ items }: { items: ReadonlySignal<readonly Item[]> }) {
  const troubled = useMemo(
    () => computed(() => items.value.filter(({ row }) => row.value.troubles.length || row.value.error).length),
    [items],
  );
  return (
    <span class="muted">
      {counted(items.value.length, "queue")}
      {troubled.value > 0 && `, ${count(troubled.value)} in trouble`}
    </span>
  );
}

function Rows({ items, several }: { items: ReadonlySignal<readonly Item[]>; several: boolean }) {
  const shown = useMemo(() => {
    let before: readonly Item[] = [];
    return computed(() => {
      const words = (place.value.search ?? "").toLowerCase().split(/\s+/).filter(Boolean);
      if (!words.length) return items.value;
      const found = items.value.filter((item) => words.every((word) => searchText(item).includes(word)));
      if (found.length !== before.length || found.some((item, index) => item !== before[index])) before = found;
      return before;
    });
  }, [items]);

  if (!shown.value.length)
    return (
      <Empty title="No queue matches">
        <p>
          <Link to={{ ...place.value, search: undefined }}>Show all queues</Link>
        </p>
      </Empty>
    );
  return (
    <Table label="Queues" columns={COLUMNS} class="overview">
      {shown.value.map((item) => (
        <OverviewRow key={`${item.connection.id} ${item.row.peek().queue}`} {...item} several={several} />
      ))}
    </Table>
  );
}

function searchText({ connection, row }: Item): string {
  const { queue, troubles, paused, error } = row.value;
  const words = troubles.flatMap(({ kind, text }) => [kind, text]);
  return [queue, connection.id, paused ? "paused" : "", error ?? "", ...words].join(" ").toLowerCase();
}

function OverviewRow({ connection, row, several }: Item & { several: boolean }) {
  const it = row.value;
  const to = { connection: connection.id, queue: it.queue };
  const tasks = (state: StateWord) => (
    <Count
      value={countOf(it.counts, state)}
      to={{ ...to, view: "tasks", state }}
      title={`${titleOf(state)} tasks of ${it.queue}`}
    />
  );
  const troubles = it.troubles.filter(({ kind }) => kind !== "paused" || !it.paused);
  const cells = [
    <>
      <span class="queue-name">
        <Link to={to}>{it.queue}</Link>
        {it.paused && <Badge tone="warn">Paused</Badge>}
        {several && <span class="muted small">{connection.id}</span>}
      </span>
      {(it.error || troubles.length > 0) && (
        <span class="troubles">
          {it.error && <span class="trouble tone-bad">{it.error}</span>}
          {troubles.slice(0, 2).map(({ kind, text }) => (
            <TroubleBadge key={`${kind} ${text}`} kind={kind} text={text} />
          ))}
          {troubles.length > 2 && <span class="muted small">and {troubles.length - 2} more</span>}
        </span>
      )}
    </>,
    tasks("inserted"),
    tasks("scheduled"),
    tasks("claimed"),
    <Count
      value={it.counts.dead}
      to={{ ...to, view: "dead" }}
      title={`Dead letters of ${it.queue}`}
      class={it.counts.dead ? "bad" : undefined}
    />,
    it.consumers === null ? <span class="none">–</span> : count(it.consumers),
    <Since at={it.oldest_at} />,
    rate(it.enqueued_per_minute),
    rate(it.finished_per_minute),
    <Sparkline points={it.depth} />,
  ];
  return (
    <Row columns={COLUMNS} class={isAway(connection) ? "old" : undefined}>
      {cells}
    </Row>
  );
}

function Count(options: { value: number; to: Place; title: string; class?: string | undefined }) {
  const { value, to, title, class: name } = options;
  if (!value) return <span class="none">0</span>;
  return (
    <Link to={to} class={name} title={title}>
      {count(value)}
    </Link>
  );
}

function NoConnection() {
  return (
    <Empty title="There is no connection to a queue yet" alone>
      <p>
        Add a connection of type <b>ZooKeeper queue</b> under{" "}
        <AirflowLink path="connections">Admin → Connections</AirflowLink>. If there is one, ask for the right to read
        it: only connections that you may read are shown here.
      </p>
    </Empty>
  );
}

function NoQueue({ connections }: { connections: readonly LiveConnection[] }) {
  if (connections.some((each) => !each.zookeeper.value.connected))
    return <Empty title="Nothing is known yet: ZooKeeper has not answered" />;
  return (
    <Empty title="There is no queue yet">
      <p>A queue is made by the first task that is enqueued: from a DAG by the operator, or from a shell.</p>
      <pre class="payload">zkmq enqueue orders --data hello</pre>
    </Empty>
  );
}
