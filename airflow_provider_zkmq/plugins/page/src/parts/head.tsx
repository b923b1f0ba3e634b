/** The line above a view: the way back up, and whether what is shown is what is. */
import { shownIn } from "../frame";
import type * as live from "../live";
import { hrefOf, type Place } from "../router";
import { isAway } from "./banners";
import { AirflowLink, Link } from "./link";

export function Head({ at, followed }: { at: Place; followed: readonly live.LiveConnection[] }) {
  const { connection, queue, task, state } = at;
  const ways: [string, Place][] = [];
  if (connection) ways.push(["Queues", {}]);
  if (connection && queue) ways.push([connection, { connection }]);
  if (connection && queue && (task || at.view)) ways.push([queue, { connection, queue }]);
  if (connection && queue && task) ways.push(["Tasks", { connection, queue, view: "tasks", state }]);
  return (
    <header class="head">
      <nav aria-label="The way back">
        <ol class="crumbs">
          {ways.map(([title, to]) => (
            <li key={hrefOf(to)}>
              <Link to={to}>{title}</Link>
            </li>
          ))}
        </ol>
      </nav>
      <Status followed={followed} />
    </header>
  );
}

/** Whether what is shown is what is, and the way to Airflow where that is not around the page. */
export function Status({ followed }: { followed: readonly live.LiveConnection[] }) {
  return (
    <span class="status">
      <Health followed={followed} />
      {shownIn === "alone" && (
        <AirflowLink path="" class="button small">
          Airflow
        </AirflowLink>
      )}
    </span>
  );
}

function Health({ followed }: { followed: readonly live.LiveConnection[] }) {
  if (!followed.some((each) => each.loaded.value)) return null;
  const away = followed.some(isAway);
  return <span class={`health ${away ? "away" : "live"}`}>{away ? "Old data" : "Live"}</span>;
}
