/** The queues of each connection, kept up to date by server-sent events. */
import { batch, computed, effect, type Signal, signal } from "@preact/signals";
import * as api from "./api";
import type { Connections, LinkState, QueueRow, QueuesEvent } from "./types";

/** Browsers open six connections to a server at most: an event stream keeps one, and other tabs need some, too. */
const MOST_STREAMS = 2;
/** How often the queues of a connection without a stream are read, in milliseconds. */
const POLL = 5_000;
/** A stream that is away for less is no news: the server itself ends streams now and then. */
const UNNOTICED = 6_000;
/** For how long a hidden tab keeps its streams. */
const HIDDEN = 20_000;
const LONGEST_PAUSE = 30_000;

/** What is known of one connection. A row that changes is told by its own signal, so that only it renders again. */
export class LiveConnection {
  readonly rows = new Map<string, Signal<QueueRow>>();
  /** The names of its queues; another array only when one comes or goes. */
  readonly names = signal<readonly string[]>([]);
  readonly loaded = signal(false);
  readonly zookeeper = signal<LinkState>({ connected: true, error: null, since: null });
  /** Since when Airflow's server is away, in ISO 8601. */
  readonly serverAway = signal<string | null>(null);

  constructor(
    readonly id: string,
    readonly mayAct: boolean,
  ) {}

  /** The row of a queue, also for a reader that has to hear of a queue that comes later. */
  row(name: string): QueueRow | undefined {
    return this.names.value.includes(name) ? this.rows.get(name)?.value : undefined;
  }

  merge(event: QueuesEvent): void {
    batch(() => {
      let listChanged = false;
      for (const row of event.queues) {
        const known = this.rows.get(row.queue);
        if (!known) {
          this.rows.set(row.queue, signal(row));
          listChanged = true;
        } else if (event.whole || known.peek().version !== row.version) known.value = row;
      }
      const listed = event.whole ? new Set(event.queues.map((row) => row.queue)) : null;
      const gone = listed ? [...this.rows.keys()].filter((name) => !listed.has(name)) : (event.gone ?? []);
      for (const name of gone) listChanged = this.rows.delete(name) || listChanged;
      if (listChanged) this.names.value = [...this.rows.keys()];
      this.loaded.value = true;
    });
  }
}

/** The connections that the user may read; undefined until the server has told. */
export const connections = signal<readonly LiveConnection[] | undefined>(undefined);
/** Why they could not be read. */
export const failure = signal<api.ApiError | null>(null);

export function connectionOf(id: string): LiveConnection | undefined {
  return connections.value?.find((each) => each.id === id);
}

const visible = signal(document.visibilityState === "visible");

/** A way to follow a connection; what it returns ends that. */
type Follow = (connection: LiveConnection) => () => void;

/** Begins to follow the connections that `wanted` names: all for null, none for an empty list. */
export function start(wanted: () => readonly string[] | null): void {
  let timer = 0;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (document.visibilityState === "visible") visible.value = true;
    else timer = window.setTimeout(() => (visible.value = false), HIDDEN);
  });
  void readConnections(1_000);
  const followed = computed(() => {
    const ids = visible.value ? wanted() : [];
    return (connections.value ?? []).filter((each) => ids === null || ids.includes(each.id));
  });
  const feeds = new Map<LiveConnection, { follow: Follow; end: () => void }>();
  effect(() => {
    const follows = new Map(followed.value.map((each, at) => [each, at < MOST_STREAMS ? stream : poll] as const));
    for (const [connection, { follow, end }] of feeds) {
      if (follows.get(connection) === follow) continue;
      end();
      feeds.delete(connection);
    }
    for (const [connection, follow] of follows)
      if (!feeds.has(connection)) feeds.set(connection, { follow, end: follow(connection) });
  });
}

/** Takes over which connections there are; of those that stay, what is known. */
function take(found: Connections): void {
  batch(() => {
    failure.value = null;
    connections.value = found.connections.map(
      ({ id, may_act }) =>
        connections.value?.find((each) => each.id === id && each.mayAct === may_act) ?? new LiveConnection(id, may_act),
    );
  });
}

/** Reads which connections there are, again after `pause` milliseconds while that fails. */
async function readConnections(pause: number): Promise<void> {
  try {
    take(await api.connections());
  } catch (error) {
    failure.value = error as api.ApiError;
    setTimeout(() => void readConnections(Math.min(2 * pause, LONGEST_PAUSE)), pause);
  }
}

/** Follows a connection by events. */
function stream(connection: LiveConnection): () => void {
  const away = awayClock(connection);
  let source: EventSource;
  let pause = 1_000;
  let timer = 0;

  const open = () => {
    source = new EventSource(api.eventsUrl(connection.id));
    source.addEventListener("open", () => {
      pause = 1_000;
      away.over();
    });
    source.addEventListener("state", (event) => {
      connection.zookeeper.value = JSON.parse((event as MessageEvent<string>).data) as LinkState;
    });
    source.addEventListener("queues", (event) => {
      connection.merge(JSON.parse((event as MessageEvent<string>).data) as QueuesEvent);
    });
    source.addEventListener("error", () => {
      away.begin();
      // The browser opens a stream that broke again, but gives one up that was refused, as by a proxy without server.
      if (source.readyState !== EventSource.CLOSED) return;
      timer = window.setTimeout(open, pause);
      pause = Math.min(2 * pause, LONGEST_PAUSE);
      // A stream does not say why it was refused: a login that is over, or rights that were taken, another request does.
      api
        .connections()
        .then(take)
        .catch(() => undefined);
    });
  };

  open();
  return () => {
    clearTimeout(timer);
    source.close();
    away.over();
  };
}

/** Follows a connection by reading it now and then. */
function poll(connection: LiveConnection): () => void {
  const away = awayClock(connection);
  const abort = new AbortController();
  let timer = 0;
  const turn = async () => {
    try {
      const found = await api.queues(connection.id, abort.signal);
      connection.zookeeper.value = found.state;
      connection.merge({ at: found.at, whole: true, queues: found.queues });
      away.over();
    } catch {
      if (abort.signal.aborted) return;
      away.begin();
    }
    timer = window.setTimeout(turn, POLL);
  };
  void turn();
  return () => {
    abort.abort();
    clearTimeout(timer);
    away.over();
  };
}

/** Tells that the server is away once it has been for a while, with the time at which that began. */
function awayClock(connection: LiveConnection): { begin(): void; over(): void } {
  let timer = 0;
  return {
    begin() {
      if (timer) return;
      const since = new Date().toISOString();
      timer = window.setTimeout(() => (connection.serverAway.value = since), UNNOTICED);
    },
    over() {
      clearTimeout(timer);
      timer = 0;
      connection.serverAway.value = null;
    },
  };
}
