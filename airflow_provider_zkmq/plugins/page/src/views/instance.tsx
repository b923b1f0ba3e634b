/** The queue tasks that a task instance of Airflow enqueued, waited for or settled. */
import * as api from "../api";
import { StateBadge } from "../parts/badge";
import { ErrorLine } from "../parts/error-text";
import { Link } from "../parts/link";
import { Empty, Failed, Loading, Stale } from "../parts/notes";
import { type Column, Row, Table } from "../parts/table";
import { useResource } from "../resource";
import type { Place } from "../router";
import { counted } from "../wording";

const COLUMNS: readonly Column[] = [
  { head: "Task", kind: "main", label: "" },
  { head: "State" },
  { head: "This task instance" },
  { head: "Queue" },
  { head: "Error", kind: "wide" },
];

const HOW: Record<string, string> = {
  enqueued: "enqueued it",
  "waited for": "waited for it",
  settled: "settled it",
};

export function Instance({ at }: { at: Place }) {
  const { dag_id, run_id, task_id, map_index } = at;
  const query = { dag_id, run_id, task_id, map_index };
  const found = useResource(`instance ${JSON.stringify(query)}`, 0, (abort) => api.instance(query, abort));

  if (found.error && !found.value) return <Failed title="Queue tasks" error={found.error} retry={found.reload} />;
  if (!found.value) return <Loading what="the tasks of this task instance" />;
  const { tasks, hidden } = found.value;
  return (
    <>
      <div class="title-row">
        <h1>Queue tasks</h1>
        <span class="muted">{counted(tasks.length, "task")}</span>
        <span class="grow" />
        <button type="button" class="button small" onClick={found.reload}>
          Read again
        </button>
      </div>
      <Stale error={found.error} />
      {tasks.length ? (
        <Table label="Queue tasks of this task instance" columns={COLUMNS}>
          {tasks.map(({ connection, queue, id, how, state, error }) => (
            <Row columns={COLUMNS} key={`${connection} ${queue} ${id} ${how}`}>
              {[
                <Link key="task" to={{ connection, queue, task: id }} class="mono">
                  {id}
                </Link>,
                state ? <StateBadge key="state" state={state} /> : <span class="muted">gone</span>,
                HOW[how] ?? how,
                <span key="queue">
                  <Link to={{ connection, queue }}>{queue}</Link> <span class="muted small">{connection}</span>
                </span>,
                error ? <ErrorLine key="error" text={error} /> : <span class="none">–</span>,
              ]}
            </Row>
          ))}
        </Table>
      ) : (
        <Empty title="This task instance has no queue tasks">
          <p>Tasks that it enqueues, waits for or settles by the operators, sensors and the hook are listed here.</p>
        </Empty>
      )}
      {hidden > 0 && (
        <p class="muted">
          {counted(hidden, "more is", "more are")} not shown: you may not read their connections, or they are too many.
        </p>
      )}
    </>
  );
}
