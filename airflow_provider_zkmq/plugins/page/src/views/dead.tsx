/** The dead letters of a queue, grouped by what went wrong. */
import * as api from "../api";
import type { LiveConnection } from "../live";
import { openDialog } from "../parts/action-dialog";
import { Ago } from "../parts/ago";
import { isAway } from "../parts/banners";
import { ErrorText } from "../parts/error-text";
import { Link } from "../parts/link";
import { Empty, Failed, Loading, Stale } from "../parts/notes";
import { type Column, Row, Table } from "../parts/table";
import * as plans from "../plans";
import { useResource } from "../resource";
import type { Place } from "../router";
import type { ErrorGroup, Selection } from "../types";
import { count, counted } from "../wording";

export function Dead({ connection, queue }: { connection: LiveConnection; queue: string; at: Place }) {
  const row = connection.row(queue);
  const found = useResource(`errors ${connection.id} ${queue}`, row?.version, (abort) =>
    api.errors(connection.id, queue, abort),
  );
  const where = { connection: connection.id, queue };
  const groups = found.value?.groups;
  const total = found.value?.total ?? 0;

  if (found.error && !found.value)
    return <Failed title={`Dead letters of ${queue}`} error={found.error} retry={found.reload} />;
  return (
    <>
      <div class="title-row">
        <h1>Dead letters of {queue}</h1>
        {found.value && (
          <span class="muted">
            {counted(total, "dead letter")}, {counted(found.value.groups.length, "kind")} of error
          </span>
        )}
        <span class="grow" />
        {connection.mayAct && total > 0 && (
          <button
            type="button"
            class="button solid"
            onClick={() => openDialog(plans.onAll(where, "redrive", selectionOf(null), total))}
          >
            Redrive all {count(total)}
          </button>
        )}
      </div>
      <Stale error={found.error} explained={isAway(connection)} />
      {!groups ? (
        <Loading what="dead letters" />
      ) : groups.length ? (
        <Groups groups={groups} where={where} mayAct={connection.mayAct} />
      ) : (
        <Empty title="There are no dead letters">
          <p>
            A task becomes one when its last attempt fails. <Link to={where}>Back to the queue</Link>
          </p>
        </Empty>
      )}
      {found.value && found.value.searched < total && (
        <p class="muted">Grouped by the first {count(found.value.searched)} of them.</p>
      )}
    </>
  );
}

function Groups(options: { groups: ErrorGroup[]; where: { connection: string; queue: string }; mayAct: boolean }) {
  const { groups, where, mayAct } = options;
  const columns: Column[] = [
    { head: "Error", kind: "wide", label: "" },
    { head: "Tasks", kind: "number" },
    { head: "Latest" },
    { head: "The last of them", kind: "wide" },
    ...(mayAct ? [{ head: "Action", label: "" }] : []),
  ];
  return (
    <Table label="Dead letters by error" columns={columns} class="groups">
      {groups.map((group) => {
        const tasks = { ...where, view: "tasks", state: "dead", kind: group.error };
        return (
          <Row columns={columns} key={group.error}>
            {[
              <ErrorText key="error" text={group.error} whole={group.example ?? group.error} />,
              <Link key="count" to={tasks} title="Show these tasks">
                {count(group.count)}
              </Link>,
              <Ago key="latest" at={group.latest_at} />,
              <span key="ids" class="ids">
                {group.ids.map((id) => (
                  <Link key={id} to={{ ...where, task: id, state: "dead" }} class="mono small">
                    {id}
                  </Link>
                ))}
              </span>,
              ...(mayAct
                ? [
                    <button
                      key="redrive"
                      type="button"
                      class="button"
                      aria-label={`Redrive ${counted(group.count, "task")} with the error ${group.error.slice(0, 80)}`}
                      onClick={() => openDialog(plans.onAll(where, "redrive", selectionOf(group.error), group.count))}
                    >
                      Redrive
                    </button>,
                  ]
                : []),
            ]}
          </Row>
        );
      })}
    </Table>
  );
}

function selectionOf(kind: string | null): Selection {
  return { state: "dead", selector: null, error: null, kind, batch: null, all: true };
}
