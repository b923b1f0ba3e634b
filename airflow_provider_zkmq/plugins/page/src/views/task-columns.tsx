/** What a list of tasks shows of each, by the state that is listed. */
import type { ComponentChildren } from "preact";
import { Ago } from "../parts/ago";
import { Badge, FilterChips } from "../parts/badge";
import { ErrorLine } from "../parts/error-text";
import { Link } from "../parts/link";
import type { Column } from "../parts/table";
import type { Place } from "../router";
import type { StateWord, TaskSummary } from "../types";
import { count } from "../wording";

interface TaskColumn extends Column {
  cell: (task: TaskSummary, at: Place) => ComponentChildren;
}

const filters: TaskColumn = { head: "Filters", kind: "labels", cell: (task) => <FilterChips filters={task.filters} /> };
const attempt: TaskColumn = { head: "Attempt", kind: "number", cell: (task) => count(task.attempt) };
const priority: TaskColumn = { head: "Priority", kind: "number", cell: (task) => count(task.priority) };
const enqueued: TaskColumn = { head: "Enqueued", cell: (task) => <Ago at={task.enqueued_at} /> };
const ended: TaskColumn = { head: "Ended", cell: (task) => <Ago at={task.ended_at} /> };
const due: TaskColumn = { head: "Due", cell: (task) => <Ago at={task.due_at} /> };
const claimed: TaskColumn = { head: "Claimed", cell: (task) => <Ago at={task.claimed_at} /> };
const consumer: TaskColumn = {
  head: "Consumer",
  cell: (task) => (task.consumer ? <span class="mono small">{task.consumer}</span> : <span class="none">–</span>),
};
const error: TaskColumn = {
  head: "Error",
  kind: "wide",
  cell: (task) => (task.error ? <ErrorLine text={task.error} /> : <span class="none">–</span>),
};
const lease: TaskColumn = {
  head: "Lease ends",
  cell: (task) => (
    <>
      <Ago at={task.lease_until} none="with its session" />
      {task.lapsed && <Badge tone="bad">Lapsed</Badge>}
    </>
  ),
};
const progress: TaskColumn = {
  head: "Progress",
  cell: (task) => (
    <>
      {task.progress === null ? (
        <span class="none">–</span>
      ) : (
        <meter class="meter" min={0} max={1} value={task.progress} aria-label={`Progress of ${task.id}`} />
      )}
      {task.note && <span class="muted small">{task.note}</span>}
    </>
  ),
};
const batch: TaskColumn = {
  head: "Batch",
  cell: (task, at) =>
    task.batch ? <Link to={{ ...at, batch: task.batch }}>{task.batch}</Link> : <span class="none">–</span>,
};

export function columnsFor(state: StateWord): readonly TaskColumn[] {
  switch (state) {
    case "inserted":
      return [filters, priority, attempt, batch, enqueued];
    case "scheduled":
      return [filters, priority, attempt, batch, enqueued, due];
    case "claimed":
      return [filters, consumer, attempt, claimed, lease, progress];
    case "finished":
      return [filters, consumer, attempt, batch, enqueued, ended];
    case "dead":
    case "cancelled":
      return [error, filters, attempt, batch, ended];
  }
}
