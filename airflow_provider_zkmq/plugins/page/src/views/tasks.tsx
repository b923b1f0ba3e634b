/** The tasks of a queue by state, filtered, page by page; and what may be done to them. */
import { useEffect, useState } from "preact/hooks";
import * as api from "../api";
import type { LiveConnection } from "../live";
import { openDialog } from "../parts/action-dialog";
import { isAway } from "../parts/banners";
import { Link } from "../parts/link";
import { Empty, Failed, Loading, Stale } from "../parts/notes";
import { Row, Table } from "../parts/table";
import * as plans from "../plans";
import { useResource } from "../resource";
import { go, hrefOf, type Place } from "../router";
import type { Selection, StateWord, TaskSummary } from "../types";
import { count, counted, countOf, STATES, titleOf } from "../wording";
import { columnsFor } from "./task-columns";
import { FILTERS, FilterForm } from "./task-filters";

interface Options {
  connection: LiveConnection;
  queue: string;
  at: Place;
}

/** The state that the address asks for; the pending, if it names none that we know. */
function stateOf(at: Place): StateWord {
  return STATES.find(({ word }) => word === at.state)?.word ?? "inserted";
}

export function Tasks({ connection, queue, at }: Options) {
  const row = connection.row(queue);
  const place = hrefOf(at);
  // Another list has other pages.
  return (
    <>
      <div class="title-row">
        <h1>Tasks of {queue}</h1>
      </div>
      <nav class="tabs" aria-label="Tasks by state">
        {STATES.map(({ word, title }) => (
          <Link key={word} to={{ ...at, state: word, cursor: undefined }} class="tab" current={stateOf(at) === word}>
            {title} {row && <span class="tab-count">{count(countOf(row.counts, word))}</span>}
          </Link>
        ))}
        <span class="grow" />
        {row && row.counts.dead > 0 && (
          <Link to={{ connection: connection.id, queue, view: "dead" }} class="tab">
            Dead letters by error
          </Link>
        )}
      </nav>
      <FilterForm key={place} at={at} />
      <Pages key={place} connection={connection} queue={queue} at={at} />
    </>
  );
}

function Pages({ connection, queue, at }: Options) {
  const [selected, select] = useState<ReadonlySet<string>>(new Set());
  const query = {
    queue,
    ...Object.fromEntries(FILTERS.map(({ name }) => [name, at[name]])),
    kind: at.kind,
    state: stateOf(at),
    cursor: at.cursor,
  };
  const row = connection.row(queue);
  const page = useResource(`tasks ${connection.id} ${JSON.stringify(query)}`, row?.version, (abort) =>
    api.tasks(connection.id, query, abort),
  );
  const tasks = page.value?.tasks;
  const state = stateOf(at);
  const actions = connection.mayAct ? plans.actionsOn(state) : [];

  // What has left the list can be chosen no more.
  useEffect(() => {
    if (!tasks) return;
    const there = new Set(tasks.map((task) => task.id));
    select((before) => (subset(before, there) ? before : new Set([...before].filter((id) => there.has(id)))));
  }, [tasks]);

  if (page.error && !page.value) return <Failed error={page.error} retry={page.reload} />;
  if (!page.value || !tasks) return <Loading what="tasks" />;
  const { cursor: next, searched } = page.value;
  return (
    <>
      <Stale error={page.error} explained={isAway(connection)} />
      {actions.length > 0 && tasks.length > 0 && (
        <ActionBar {...{ connection, queue, at, state, actions, selected }} total={row && countOf(row.counts, state)} />
      )}
      {tasks.length ? (
        <TaskTable tasks={tasks} at={at} selected={selected} select={actions.length ? select : undefined} />
      ) : (
        <NoTasks at={at} searched={searched} next={next} />
      )}
      {(at.cursor || next) && (
        <nav class="pages" aria-label="Pages">
          {/* The server tells only the next page; those before are steps of the browser's history. */}
          <button type="button" class="button" disabled={!at.cursor} onClick={() => go({ ...at, cursor: undefined })}>
            First
          </button>
          <span class="muted">{counted(tasks.length, "task")}</span>
          <button type="button" class="button" disabled={!next} onClick={() => next && go({ ...at, cursor: next })}>
            Next
          </button>
        </nav>
      )}
    </>
  );
}

function subset(some: ReadonlySet<string>, all: ReadonlySet<string>): boolean {
  return [...some].every((each) => all.has(each));
}

function TaskTable(options: {
  tasks: readonly TaskSummary[];
  at: Place;
  selected: ReadonlySet<string>;
  select: ((ids: ReadonlySet<string>) => void) | undefined;
}) {
  const { tasks, at, selected, select } = options;
  const details = columnsFor(stateOf(at));
  const whole = selected.size === tasks.length;
  const everything = select && (
    <input
      type="checkbox"
      aria-label="Select all on this page"
      checked={whole}
      ref={(box) => {
        if (box) box.indeterminate = selected.size > 0 && !whole;
      }}
      onChange={() => select(new Set(whole ? [] : tasks.map((task) => task.id)))}
    />
  );
  const toggle = (id: string) => {
    const now = new Set(selected);
    if (!now.delete(id)) now.add(id);
    select?.(now);
  };
  const columns = [
    ...(select ? [{ head: everything, kind: "tight" as const, label: "" }] : []),
    { head: "Task", kind: "main" as const, label: "" },
    ...details,
  ];
  return (
    <Table label="Tasks" columns={columns} class="tasks">
      {tasks.map((task) => (
        <Row columns={columns} key={task.id} class={selected.has(task.id) ? "selected" : undefined}>
          {[
            ...(select
              ? [
                  <input
                    key="box"
                    type="checkbox"
                    aria-label={`Select ${task.id}`}
                    checked={selected.has(task.id)}
                    onChange={() => toggle(task.id)}
                  />,
                ]
              : []),
            <Link
              key="id"
              class="mono"
              to={{ connection: at.connection, queue: at.queue, task: task.id, state: stateOf(at) }}
            >
              {task.id}
            </Link>,
            ...details.map((column) => column.cell(task, at)),
          ]}
        </Row>
      ))}
    </Table>
  );
}

function ActionBar(
  options: Options & {
    state: StateWord;
    actions: plans.TaskAction[];
    selected: ReadonlySet<string>;
    total: number | undefined;
  },
) {
  const { connection, queue, at, state, actions, selected, total } = options;
  const where = { connection: connection.id, queue };
  const { selector = null, error = null, kind = null, batch = null } = at;
  const selection: Selection = { state, selector, error, kind, batch, all: true };
  const filtered = [selector, error, kind, batch].some((each) => each !== null);
  return (
    <div class="action-bar">
      <span class="muted" role="status">
        {selected.size ? `${counted(selected.size, "task")} selected` : "Select tasks, or act on all"}
      </span>
      {actions.map((action) => (
        <button
          key={action}
          type="button"
          class="button"
          disabled={!selected.size}
          onClick={() => openDialog(plans.onTasks(where, action, [...selected]))}
        >
          {plans.phrase(action)}
        </button>
      ))}
      <span class="grow" />
      {/* The server selects neither by age nor by a part of an id. */}
      {!at.older &&
        !at.id &&
        actions.map((action) => (
          <button
            key={action}
            type="button"
            class="button"
            onClick={() => openDialog(plans.onAll(where, action, selection, filtered ? null : (total ?? null)))}
          >
            {plans.phrase(action, filtered ? "all that match" : `all ${titleOf(state).toLowerCase()}`)}
          </button>
        ))}
    </div>
  );
}

function NoTasks({ at, searched, next }: { at: Place; searched: number; next: string | null }) {
  const filtered = at.kind || FILTERS.some(({ name }) => at[name]);
  const state = `${titleOf(stateOf(at)).toLowerCase()} `;
  if (!filtered)
    return (
      <Empty title={at.cursor ? "None is left on this page" : `There are no ${state}tasks`}>
        <p>
          <Link to={{ connection: at.connection, queue: at.queue }}>Back to the queue</Link>
        </p>
      </Empty>
    );
  return (
    <Empty title={next ? `None of the first ${count(searched)} ${state}tasks matches` : `No ${state}task matches`}>
      {next ? (
        <p>Go on with Next.</p>
      ) : (
        <p>
          {counted(searched, "task was", "tasks were")} searched.{" "}
          <Link to={{ connection: at.connection, queue: at.queue, view: "tasks", state: stateOf(at) }}>
            Clear the filters
          </Link>
        </p>
      )}
    </Empty>
  );
}
