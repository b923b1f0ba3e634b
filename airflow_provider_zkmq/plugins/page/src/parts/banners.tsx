/** What is wrong with the way to the data: logged out, the server away, ZooKeeper away. */

import { loggedOut } from "../api";
import { loginHref, openBy } from "../frame";
import type { LiveConnection } from "../live";
import { Since } from "./ago";

/** Whether what is shown of a connection may be old. */
export function isAway(connection: LiveConnection): boolean {
  return connection.serverAway.value !== null || !connection.zookeeper.value.connected;
}

export function Banners({ connections }: { connections: readonly LiveConnection[] }) {
  const away = connections.find((each) => each.serverAway.value !== null);
  const cut = connections.filter((each) => !each.zookeeper.value.connected);
  return (
    <div class="banners" role="status">
      {loggedOut.value ? (
        <LoggedOut />
      ) : away ? (
        <p class="banner tone-bad">
          <b>Airflow's server does not answer</b> since <Since at={away.serverAway.value} />. What you see may be old.
          The page goes on by itself when the server is back.
        </p>
      ) : (
        cut.map((each) => <Cut key={each.id} connection={each} />)
      )}
    </div>
  );
}

function Cut({ connection }: { connection: LiveConnection }) {
  const { error, since } = connection.zookeeper.value;
  return (
    <p class="banner tone-bad">
      <b>ZooKeeper of {connection.id} is away</b>
      {since && (
        <>
          {" "}
          since <Since at={since} />
        </>
      )}
      : {error ?? "no connection"}. What you see of it is old. The page goes on by itself when ZooKeeper is back.
    </p>
  );
}

function LoggedOut() {
  const href = loginHref();
  return (
    <p class="banner tone-bad">
      <b>You are logged out.</b>{" "}
      <a
        href={href}
        target="_top"
        onClick={(event) => {
          event.preventDefault();
          openBy(href, "_top");
        }}
      >
        Log in again
      </a>
    </p>
  );
}
