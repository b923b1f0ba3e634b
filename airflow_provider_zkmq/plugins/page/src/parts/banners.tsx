/** What is wrong with the way to the data: logged out, the server away, ZooKeeper away. */

import { loggedOut } from "../api";
import { loginHref, openBy } from "../frame";
import type { LiveConnection } from "../live";
import { At } from "./ago";

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
          <b>
            Airflow's server has not answered since <At at={away.serverAway.value} />.
          </b>{" "}
          What you see may be old. The page goes on by itself when the server is back.
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
      <b>
        ZooKeeper of {connection.id} has been away
        {since && (
          <>
            {" "}
            since <At at={since} />
          </>
        )}
        .
      </b>{" "}
      {error ? `The last error: ${error.replace(/\.$/, "")}. ` : ""}What you see of it is old. The page goes on by
      itself when ZooKeeper is back.
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
