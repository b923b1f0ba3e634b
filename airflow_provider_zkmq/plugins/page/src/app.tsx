/** The shell around the views: where we are, what is wrong, and which view the address asks for. */
import { useEffect } from "preact/hooks";
import * as live from "./live";
import { ActionDialog } from "./parts/action-dialog";
import { Banners, isAway } from "./parts/banners";
import { Boundary } from "./parts/boundary";
import { Head } from "./parts/head";
import { Link } from "./parts/link";
import { Empty, Failed, Loading } from "./parts/notes";
import { type Place, place } from "./router";
import { Dead } from "./views/dead";
import { Instance } from "./views/instance";
import { Overview } from "./views/overview";
import { Queue } from "./views/queue";
import { Task } from "./views/task";
import { Tasks } from "./views/tasks";

/** The connections that the place is about: all for null. */
export function wanted(): readonly string[] | null {
  const { connection, dag_id } = place.value;
  if (dag_id) return [];
  return connection ? [connection] : null;
}

export function App() {
  const at = place.value;
  useEffect(() => {
    document.title = [at.task, at.queue, "Queues"].filter(Boolean).join(" · ");
  }, [at]);
  useEffect(() => {
    document.addEventListener("keydown", focusSearch);
    return () => document.removeEventListener("keydown", focusSearch);
  }, []);

  return (
    <>
      <button type="button" class="skip" onClick={skip}>
        Skip to the content
      </button>
      <Followed at={at} />
      <ActionDialog />
    </>
  );
}

function Followed({ at }: { at: Place }) {
  const ids = wanted();
  const followed = (live.connections.value ?? []).filter((each) => ids === null || ids.includes(each.id));
  const dimmed = followed.length > 0 && followed.every(isAway);
  return (
    <>
      {at.connection && <Head at={at} followed={followed} />}
      <Banners connections={followed} />
      <main id="content" tabIndex={-1} class={dimmed ? "dimmed" : undefined}>
        <Boundary key={`${at.view} ${at.connection} ${at.queue} ${at.task}`}>
          <View at={at} />
        </Boundary>
      </main>
    </>
  );
}

function View({ at }: { at: Place }) {
  if (at.dag_id) return <Instance at={at} />;
  const connections = live.connections.value;
  if (!connections) {
    const error = live.failure.value;
    return error ? <Failed title="Queues" error={error} /> : <Loading what="the connections" />;
  }
  if (!at.connection) return <Overview connections={connections} at={at} />;
  const connection = live.connectionOf(at.connection);
  if (!connection)
    return (
      <Empty title={`There is no connection ${at.connection} that you may read`} alone>
        <p>
          Its name may be wrong, or you may not read it. <Link to={{}}>All queues</Link>
        </p>
      </Empty>
    );
  if (!at.queue) return <Overview connections={[connection]} at={at} />;
  const where = { connection, queue: at.queue, at };
  if (at.task) return <Task {...where} task={at.task} />;
  if (at.view === "tasks") return <Tasks {...where} />;
  if (at.view === "dead") return <Dead {...where} />;
  return <Queue {...where} />;
}

function skip(): void {
  document.getElementById("content")?.focus();
}

/** `/` goes to the search, as it does on many pages; not while somebody types. */
function focusSearch(event: KeyboardEvent): void {
  const typing = event.target instanceof Element && event.target.closest("input, textarea, select, dialog");
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || typing) return;
  const field = document.querySelector<HTMLElement>("[data-search]");
  if (!field) return;
  event.preventDefault();
  field.focus();
}
