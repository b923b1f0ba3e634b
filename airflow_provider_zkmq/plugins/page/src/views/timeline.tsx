/** What happened to a task, from its enqueue to its end. */
import type { ComponentChildren } from "preact";
import { Ago, At, Since } from "../parts/ago";
import { ErrorText } from "../parts/error-text";
import { between, span } from "../time";
import type { Attempt, TaskDetail } from "../types";

/** How an outcome looks. What is not listed here is drawn as neither good nor bad. */
const TONES: Record<string, string> = {
  finished: "finished",
  failed: "bad",
  rescued: "warn",
  cancelled: "cancelled",
  claimed: "claimed",
};

export function Timeline({ task }: { task: TaskDetail }) {
  const deliveries = deliveriesOf(task);
  return (
    <ol class="timeline">
      <Event at={task.enqueued_at} tone="inserted" title="Enqueued" />
      {deliveries.map((delivery, index) => (
        <Delivery
          key={`${delivery.attempt} ${delivery.claimed_at}`}
          delivery={delivery}
          // It could be claimed from the enqueue on, or from the end of the delivery before.
          free={deliveries[index - 1]?.ended_at ?? task.enqueued_at}
        />
      ))}
      <End task={task} />
    </ol>
  );
}

/** Those that ended before, and the last one, which stands in the task itself. */
function deliveriesOf(task: TaskDetail): Attempt[] {
  const { history, claimed_at, started_at, state, consumer, attempt } = task;
  const known = history.some((each) => each.claimed_at === claimed_at);
  if (claimed_at === null || known || state === "inserted") return history;
  const outcome = state === "claimed" ? "claimed" : state === "finished" ? "finished" : "ended";
  return [...history, { attempt, outcome, consumer, claimed_at, started_at, ended_at: task.ended_at, error: null }];
}

function Delivery({ delivery, free }: { delivery: Attempt; free: string | null }) {
  const { attempt, outcome, consumer, claimed_at, started_at, ended_at, error } = delivery;
  const wait = between(free, claimed_at);
  const run = between(started_at ?? claimed_at, ended_at);
  const running = outcome === "claimed";
  return (
    <Event
      at={claimed_at}
      tone={TONES[outcome] ?? "none"}
      title={`Delivery ${attempt}: ${running ? "in hand" : outcome}`}
    >
      {consumer && (
        <p>
          by <span class="mono">{consumer}</span>
        </p>
      )}
      <p class="muted">
        {wait !== null && wait >= 0 && `waited ${span(wait)}`}
        {run !== null && `, ran ${span(run)}`}
        {running && (
          <>
            {" "}
            runs for <Since at={started_at ?? claimed_at} />
          </>
        )}
      </p>
      {error && <ErrorText text={error} />}
    </Event>
  );
}

function End({ task }: { task: TaskDetail }) {
  switch (task.state) {
    case "finished":
      return <Event at={task.ended_at} tone="finished" title="Finished" />;
    case "dead":
      return (
        <Event at={task.ended_at} tone="bad" title="Dead letter">
          <p class="muted">Nobody gets it any more until somebody redrives it.</p>
        </Event>
      );
    case "cancelled":
      return <Event at={task.ended_at} tone="cancelled" title="Cancelled" />;
    case "inserted":
      return task.due_at ? (
        <Event at={task.due_at} tone="scheduled" title="Due">
          <p class="muted">
            Consumers get it <Ago at={task.due_at} />.
          </p>
        </Event>
      ) : (
        <Event at={null} tone="inserted" title="Pending">
          <p class="muted">It waits for a consumer.</p>
        </Event>
      );
    default:
      return null;
  }
}

interface EventOptions {
  at: string | null;
  tone: string;
  title: string;
  children?: ComponentChildren;
}

function Event({ at, tone, title, children }: EventOptions) {
  return (
    <li class={`event tone-${tone}`}>
      <p class="event-head">
        <b>{title}</b>
        {at && (
          <>
            <At at={at} precise />
            <span class="muted">
              <Ago at={at} />
            </span>
          </>
        )}
      </p>
      {children}
    </li>
  );
}
