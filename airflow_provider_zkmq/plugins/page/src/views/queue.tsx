/** A queue: how it stands, what is wrong, its lanes, the last hour, its consumers, its configuration. */
import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import * as api from "../api";
import type { LiveConnection } from "../live";
import { openDialog } from "../parts/action-dialog";
import { Ago, Since } from "../parts/ago";
import { Badge, toneOf } from "../parts/badge";
import { isAway } from "../parts/banners";
import { Chart } from "../parts/chart";
import { Command } from "../parts/copy";
import { Link } from "../parts/link";
import { Empty, Failed, Loading, Stale } from "../parts/notes";
import { Facts, Section } from "../parts/section";
import * as plans from "../plans";
import { useResource } from "../resource";
import type { Place } from "../router";
import { span } from "../time";
import type { Minute, QueueDetail, QueueRow } from "../types";
import { count, counted, countOf, rate, STATES, TROUBLES } from "../wording";
import { Configuration } from "./configuration";
import { Consumers } from "./consumers";
import { Days } from "./days";
import { Lanes } from "./lanes";

export function Queue({ connection, queue, at }: { connection: LiveConnection; queue: string; at: Place }) {
  const live = connection.row(queue);
  const detail = useResource(`queue ${connection.id} ${queue}`, live?.version, (abort) =>
    api.queue(connection.id, queue, abort),
  );
  // The row of the event stream is newer than the one that was read with the rest.
  const row = live ?? detail.value?.row;
  const where = { connection: connection.id, queue };

  if (detail.error && !detail.value) return <Failed title={queue} error={detail.error} retry={detail.reload} />;
  if (!row) return <Loading what={`the queue ${queue}`} />;
  return (
    <>
      <div class="title-row">
        <h1>{queue}</h1>
        {row.paused && <Badge tone="warn">Paused</Badge>}
        <span class="grow" />
        {connection.mayAct && (
          <span class="buttons">
            <button
              type="button"
              class="button"
              onClick={() => openDialog(row.paused ? plans.resume(where) : plans.pause(where))}
            >
              {row.paused ? "Resume" : "Pause"}
            </button>
            <button type="button" class="button" onClick={() => openDialog(plans.cleanUp(where))}>
              Clean up now
            </button>
          </span>
        )}
      </div>
      <Stale error={detail.error} explained={isAway(connection)} />
      {row.error && <p class="notice tone-bad">{row.error}</p>}
      <Troubles row={row} />
      <Tiles row={row} at={at} />
      {detail.value ? <Details detail={detail.value} where={where} /> : <Loading what="lanes and consumers" />}
    </>
  );
}

function Troubles({ row }: { row: QueueRow }) {
  if (!row.troubles.length) return null;
  return (
    <section class="trouble-list" aria-label="What is wrong">
      <ul>
        {row.troubles.map(({ kind, text, remedy }) => (
          <li key={`${kind} ${text}`}>
            <Badge tone={toneOf(kind)}>{TROUBLES[kind] ?? kind}</Badge>
            <span class="trouble-text">{text}</span>
            {remedy && <Command text={remedy} />}
          </li>
        ))}
      </ul>
    </section>
  );
}

function Tiles({ row, at }: { row: QueueRow; at: Place }) {
  const { connection, queue } = at;
  return (
    <section class="tiles" aria-label="Counts">
      {STATES.map(({ word, title }) => {
        const value = countOf(row.counts, word);
        const to =
          word === "dead" ? { connection, queue, view: "dead" } : { connection, queue, view: "tasks", state: word };
        return (
          <Link key={word} to={to} class={`tile ${word === "dead" && value ? "tile-bad" : ""}`}>
            <span class="tile-title">{title}</span>
            <span class="tile-value">{count(value)}</span>
          </Link>
        );
      })}
      <Tile title="Consumers">{row.consumers === null ? "–" : count(row.consumers)}</Tile>
      <Tile title="Oldest wait">
        <Since at={row.oldest_at} />
      </Tile>
      <Tile title="In/out per min">
        {rate(row.enqueued_per_minute)} / {rate(row.finished_per_minute)}
      </Tile>
      {row.next_due_at && (
        <Tile title="Next due">
          <Ago at={row.next_due_at} />
        </Tile>
      )}
    </section>
  );
}

function Tile({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <div class="tile">
      <span class="tile-title">{title}</span>
      <span class="tile-value tile-text">{children}</span>
    </div>
  );
}

function Details({ detail, where }: { detail: QueueDetail; where: { connection: string; queue: string } }) {
  return (
    <>
      <LastHour minutes={detail.minutes} wait={detail.wait} />
      <Section title="Lanes" extra={<span class="muted">What is pending, by priority and filters</span>}>
        <Lanes lanes={detail.lanes} where={where} />
      </Section>
      <Section title="Consumers" extra={<span class="muted">{counted(detail.consumers.length, "consumer")}</span>}>
        <Consumers consumers={detail.consumers} where={where} />
      </Section>
      <Section title="Days">
        <Days connection={where.connection} queue={where.queue} />
      </Section>
      <Section title="Configuration">
        <Configuration values={detail.configuration} />
      </Section>
    </>
  );
}

function LastHour({ minutes, wait }: { minutes: Minute[]; wait: QueueDetail["wait"] }) {
  const times = useMemo(() => minutes.map(({ at }) => Date.parse(at) / 1000), [minutes]);
  const depth = useMemo(() => minutes.map((minute) => minute.depth), [minutes]);
  const finished = useMemo(() => minutes.map((minute) => minute.finished), [minutes]);
  const waits = wait && (
    <Facts
      facts={[
        ["Half waited at most", span(wait.p50)],
        ["95 of 100 waited at most", span(wait.p95)],
        ["Of the last", counted(wait.sample, "delivery", "deliveries")],
      ]}
    />
  );
  return (
    <Section title="The last hour" extra={waits}>
      {minutes.length ? (
        <div class="charts">
          <Chart
            title="Pending"
            description={described("Pending tasks by minute", depth)}
            colour="--chart-1"
            times={times}
            values={depth}
          />
          <Chart
            title="Finished a minute"
            description={described("Finished tasks by minute", finished)}
            colour="--chart-2"
            times={times}
            values={finished}
          />
        </div>
      ) : (
        <Empty title="Nothing has happened in the last hour" />
      )}
    </Section>
  );
}

function described(what: string, values: readonly (number | null)[]): string {
  const known = values.filter((value) => value !== null);
  const last = known[known.length - 1];
  if (last === undefined) return `${what}: nothing is known`;
  return `${what}: ${count(last)} at last, ${count(Math.max(...known))} at most, ${count(Math.min(...known))} at least`;
}
