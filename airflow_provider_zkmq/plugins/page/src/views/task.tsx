/** A task's story: what it is, what happened to it, why nobody takes it, what it carries. */
import * as api from "../api";
import type { LiveConnection } from "../live";
import { openDialog } from "../parts/action-dialog";
import { Ago } from "../parts/ago";
import { Badge, FilterChips, StateBadge } from "../parts/badge";
import { isAway } from "../parts/banners";
import { ErrorText } from "../parts/error-text";
import { JsonTree } from "../parts/json";
import { AirflowLink, Link } from "../parts/link";
import { Failed, Loading, Stale } from "../parts/notes";
import { Preview } from "../parts/preview";
import { Facts, Section } from "../parts/section";
import { type Column, Row, Table } from "../parts/table";
import * as plans from "../plans";
import { useResource } from "../resource";
import type { Place } from "../router";
import type { StateWord, TaskDetail, TaskStory } from "../types";
import { count } from "../wording";
import { Timeline } from "./timeline";

interface Options {
  connection: LiveConnection;
  queue: string;
  task: string;
  at: Place;
}

export function Task({ connection, queue, task: id }: Options) {
  const row = connection.row(queue);
  const story = useResource(`task ${connection.id} ${queue} ${id}`, row?.version, (abort) =>
    api.task(connection.id, queue, id, abort),
  );
  const where = { connection: connection.id, queue };

  if (story.error && !story.value) return <Failed title={`Task ${id}`} error={story.error} retry={story.reload} />;
  if (!story.value) return <Loading what={`task ${id}`} />;
  const { task, why, links } = story.value;
  const word: StateWord = task.status === "queued-with-backoff" ? "scheduled" : task.state;
  return (
    <>
      <div class="title-row">
        <h1 class="mono">{task.id}</h1>
        <StateBadge state={task.state} status={task.status} />
        {task.lapsed && <Badge tone="bad">Lease has ended</Badge>}
        <span class="grow" />
        {connection.mayAct && (
          <span class="buttons">
            {plans.actionsOn(word).map((action) => (
              <button
                key={action}
                type="button"
                class={`button ${action === "redrive" ? "solid" : ""}`}
                onClick={() => openDialog(plans.onTasks(where, action, [task.id]))}
              >
                {plans.phrase(action, "task")}
              </button>
            ))}
          </span>
        )}
      </div>
      <Stale error={story.error} explained={isAway(connection)} />
      {task.state === "dead" && task.error && (
        <div class="notice tone-bad">
          <ErrorText text={task.error} />
        </div>
      )}
      {why && <Why why={why} state={task.state} />}
      <div class="columns">
        <Section title="What happened">
          <Timeline task={task} />
        </Section>
        <Section title="The task">
          <Details task={task} links={links} where={where} />
        </Section>
      </div>
      <Preview title="Payload" preview={task.data} href={api.payloadUrl(connection.id, queue, task.id, "data")} />
      {task.result && (
        <Preview title="Result" preview={task.result} href={api.payloadUrl(connection.id, queue, task.id, "result")} />
      )}
    </>
  );
}

function Details({ task, links, where }: { task: TaskDetail; links: TaskStory["links"]; where: Place }) {
  const metadata = task.metadata && Object.keys(task.metadata).length > 0 ? task.metadata : null;
  return (
    <>
      <Facts
        facts={[
          ...[...new Set(links.map((link) => link.label))].map(
            (label) =>
              [
                label,
                links
                  .filter((link) => link.label === label)
                  .map((link) => (
                    <div key={link.href}>
                      <AirflowLink path={link.href}>{link.text}</AirflowLink>
                    </div>
                  )),
              ] as const,
          ),
          ["Filters", Object.keys(task.filters).length ? <FilterChips filters={task.filters} /> : null],
          ["Priority", count(task.priority)],
          ["Attempt", count(task.attempt)],
          [
            "Batch",
            task.batch && (
              <Link to={{ ...where, view: "tasks", state: task.state, batch: task.batch }}>{task.batch}</Link>
            ),
          ],
          ["Due", task.due_at && <Ago at={task.due_at} />],
          ["Claimed by", task.state === "claimed" && task.consumer ? <span class="mono">{task.consumer}</span> : null],
          ["Lease ends", task.lease_until && <Ago at={task.lease_until} />],
          [
            "Progress",
            task.progress === null ? null : (
              <>
                <meter class="meter" min={0} max={1} value={task.progress} aria-label="Progress" />{" "}
                {Math.round(task.progress * 100)} %
              </>
            ),
          ],
          ["Note", task.note],
          ["Same id refused until", task.dedupe_until && <Ago at={task.dedupe_until} />],
        ]}
      />
      {metadata && (
        <>
          <h3>Metadata</h3>
          <div class="payload">
            <JsonTree value={metadata} />
          </div>
        </>
      )}
    </>
  );
}

const MATCHES: readonly Column[] = [
  { head: "Consumer", kind: "wide" },
  { head: "Accepts" },
  { head: "In hand", kind: "number" },
  { head: "Takes it?", kind: "wide" },
];

function Why({ why, state }: { why: NonNullable<TaskStory["why"]>; state: string }) {
  if (!why.reasons.length && !why.consumers.length) return null;
  const title = state === "inserted" ? "Why is nobody taking it?" : "Why it stands as it does";
  return (
    <Section title={title}>
      <ul class="reasons">
        {why.reasons.map((reason) => (
          <li key={reason}>{reason}</li>
        ))}
      </ul>
      {why.consumers.length > 0 && (
        <Table label="Consumers, and whether they take it" columns={MATCHES}>
          {why.consumers.map((match) => (
            <Row columns={MATCHES} key={match.consumer}>
              {[
                <span key="name" class="mono small">
                  {match.consumer}
                </span>,
                match.accepts.join(", ") || "everything",
                count(match.in_hand),
                match.refuses ? (
                  <span key="refuses">
                    <Badge tone="warn">No</Badge> {match.refuses}
                  </span>
                ) : (
                  <span key="takes">
                    <Badge tone="finished">Yes</Badge> {match.in_hand > 0 && "when it has done what it has in hand"}
                  </span>
                ),
              ]}
            </Row>
          ))}
        </Table>
      )}
    </Section>
  );
}
