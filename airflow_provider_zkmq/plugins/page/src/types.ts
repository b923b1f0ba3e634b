/** What the server answers. Times are ISO 8601 in UTC. */

export type Instant = string;

export type State = "inserted" | "claimed" | "finished" | "dead" | "cancelled";

/** A state, or `scheduled`: those of the inserted that wait for their time. */
export type StateWord = State | "scheduled";

export type FilterValue = string | number | boolean | null;
export type Filters = Record<string, FilterValue>;

export interface ConnectionInfo {
  id: string;
  may_act: boolean;
}

export interface Connections {
  connections: ConnectionInfo[];
}

/** Whether ZooKeeper answers, and if not, why and since when. */
export interface LinkState {
  connected: boolean;
  error: string | null;
  since: Instant | null;
}

/** The worst first. */
export type TroubleKind = "dead" | "hung" | "gone" | "paused" | "unaccepted" | "unconsumed" | "stuck" | "late";

export interface Trouble {
  kind: TroubleKind;
  text: string;
  remedy: string;
}

/** A queue as the overview shows it. `scheduled` is a part of `inserted`. */
export interface QueueRow {
  queue: string;
  version: number;
  error: string | null;
  troubles: Trouble[];
  counts: Record<StateWord, number>;
  paused: boolean;
  consumers: number | null;
  oldest_at: Instant | null;
  next_due_at: Instant | null;
  enqueued_per_minute: number | null;
  finished_per_minute: number | null;
  /** Seconds since 1970, and how many tasks were pending. */
  depth: [number, number][];
}

export interface QueueList {
  at: Instant;
  state: LinkState;
  queues: QueueRow[];
}

export interface QueuesEvent {
  at: Instant;
  whole: boolean;
  queues: QueueRow[];
  gone?: string[];
}

export interface Lane {
  priority: number;
  filters: Filters | null;
  count: number;
  accepted_by: string[];
  accepted: number;
}

export interface HeldClaim {
  id: string;
  attempt: number;
  claimed_at: Instant | null;
  active_at: Instant | null;
  idle: number;
  lease_until: Instant | null;
  lapsed: boolean;
  hung: boolean;
  progress: number | null;
  note: string | null;
}

export interface Consumer {
  consumer: string;
  name: string | null;
  host: string | null;
  pid: number | null;
  alive: boolean;
  accepts: string[];
  in_hand: number;
  longest_in_hand: string | null;
  claims: HeldClaim[];
}

export interface Minute {
  at: Instant;
  finished: number;
  depth: number | null;
}

export interface Day {
  day: string;
  finished: number;
  dead: number;
  wait_mean: number | null;
  /** Of the day's worst hour. */
  wait_p95: number | null;
}

/** `note`: why there are none. */
export interface Days {
  days: Day[] | null;
  note: string | null;
}

export interface QueueDetail {
  row: QueueRow | null;
  lanes: Lane[];
  consumers: Consumer[];
  configuration: Record<string, unknown>;
  minutes: Minute[];
  wait: { p50: number; p95: number; sample: number } | null;
}

export interface TaskSummary {
  id: string;
  state: State;
  status: string;
  attempt: number;
  priority: number;
  filters: Filters;
  error: string | null;
  consumer: string | null;
  enqueued_at: Instant | null;
  claimed_at: Instant | null;
  ended_at: Instant | null;
  due_at: Instant | null;
  lease_until: Instant | null;
  lapsed: boolean;
  progress: number | null;
  note: string | null;
  batch: string | null;
}

export interface TaskPage {
  tasks: TaskSummary[];
  cursor: string | null;
  searched: number;
}

export interface ErrorGroup {
  error: string;
  count: number;
  example: string | null;
  latest_at: Instant | null;
  ids: string[];
}

export interface ErrorGroups {
  groups: ErrorGroup[];
  total: number;
  searched: number;
}

/** A delivery that ended. */
export interface Attempt {
  attempt: number;
  outcome: string;
  consumer: string | null;
  claimed_at: Instant | null;
  started_at: Instant | null;
  ended_at: Instant | null;
  error: string | null;
}

export interface Preview {
  bytes: number;
  kind: "text" | "json" | "binary";
  text: string;
  truncated: boolean;
}

export interface TaskDetail extends TaskSummary {
  metadata: Record<string, unknown> | null;
  history: Attempt[];
  started_at: Instant | null;
  dedupe_until: Instant | null;
  version: number;
  data: Preview;
  result: Preview | null;
}

export interface ConsumerMatch {
  consumer: string;
  accepts: string[];
  refuses: string | null;
  in_hand: number;
}

export interface TaskStory {
  task: TaskDetail;
  why: { reasons: string[]; consumers: ConsumerMatch[] } | null;
  links: { label: string; text: string; href: string }[];
}

export interface InstanceTask {
  connection: string;
  queue: string;
  id: string;
  how: "enqueued" | "waited for" | "settled";
  state: State | null;
  error: string | null;
}

export interface InstanceTasks {
  tasks: InstanceTask[];
  hidden: number;
}

export type Action = "redrive" | "cancel" | "release" | "pause" | "resume" | "clean";

/** Which tasks an action is about, if not those of a list of ids. */
export interface Selection {
  state: StateWord | null;
  selector: string | null;
  error: string | null;
  /** A group of the dead letters by error, exactly. */
  kind: string | null;
  batch: string | null;
  all: true;
}

export interface ActionRequest {
  queue: string;
  action: Action;
  tasks: string[] | null;
  selection: Selection | null;
}

export interface Refusal {
  id: string;
  reason: string;
}

/** A line of an action's answer: how many there are, how many more are done, and the end. */
export type ActionLine =
  | { of: number }
  | { done: number; refused: Refusal[] }
  | { over: true; done: number; refused: number; message: string; error?: boolean };
