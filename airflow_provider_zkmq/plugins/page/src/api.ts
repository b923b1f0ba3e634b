/** Requests to the server. Each failure is an `ApiError` with a sentence for people. */
import { signal } from "@preact/signals";
import type * as types from "./types";

/** `status` is 0 where no server answered. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }

  /** Whether the same request may succeed later; a login that is over may be renewed in another tab. */
  get passing(): boolean {
    return this.status === 0 || this.status === 401 || this.status === 429 || this.status >= 500;
  }
}

/** Whether Airflow does not know who we are any more. */
export const loggedOut = signal(false);

export type Query = Record<string, string | null | undefined>;

export function connections(abort?: AbortSignal): Promise<types.Connections> {
  return read("connections", {}, abort);
}

export function queues(connection: string, abort?: AbortSignal): Promise<types.QueueList> {
  return read(`${of(connection)}/queues`, {}, abort);
}

export function queue(connection: string, name: string, abort?: AbortSignal): Promise<types.QueueDetail> {
  return read(`${of(connection)}/queue`, { queue: name }, abort);
}

export function days(connection: string, name: string, abort?: AbortSignal): Promise<types.Days> {
  return read(`${of(connection)}/days`, { queue: name }, abort);
}

export function tasks(connection: string, query: Query, abort?: AbortSignal): Promise<types.TaskPage> {
  return read(`${of(connection)}/tasks`, query, abort);
}

export function errors(connection: string, name: string, abort?: AbortSignal): Promise<types.ErrorGroups> {
  return read(`${of(connection)}/errors`, { queue: name }, abort);
}

export function task(connection: string, name: string, id: string, abort?: AbortSignal): Promise<types.TaskStory> {
  return read(`${of(connection)}/task`, { queue: name, task: id }, abort);
}

export function instance(query: Query, abort?: AbortSignal): Promise<types.InstanceTasks> {
  return read("instance", query, abort);
}

export function eventsUrl(connection: string): string {
  return url(`${of(connection)}/events`, {});
}

export function payloadUrl(connection: string, name: string, id: string, part: "data" | "result"): string {
  return url(`${of(connection)}/payload`, { queue: name, task: id, part });
}

/** Carries an action out and yields what the server tells of it. Aborting stops it: what was done stays done. */
export async function* act(
  connection: string,
  request: types.ActionRequest,
  abort: AbortSignal,
): AsyncGenerator<types.ActionLine> {
  const answer = await send(url(`${of(connection)}/actions`, {}), {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(request),
    signal: abort,
  });
  if (!answer.body) return;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    const lines = (rest + (value ?? "")).split("\n");
    rest = done ? "" : (lines.pop() ?? "");
    for (const line of lines) if (line.trim()) yield JSON.parse(line) as types.ActionLine;
    if (done) return;
  }
}

function of(connection: string): string {
  return `connections/${encodeURIComponent(connection)}`;
}

function url(path: string, query: Query): string {
  const address = new URL(`api/${path}`, document.baseURI);
  for (const [name, value] of Object.entries(query)) if (value) address.searchParams.set(name, value);
  return address.href;
}

async function read<T>(path: string, query: Query, abort?: AbortSignal): Promise<T> {
  const answer = await send(url(path, query), abort ? { signal: abort } : {});
  return (await answer.json()) as T;
}

async function send(address: string, options: RequestInit): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(address, { credentials: "same-origin", ...options });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError(0, "Airflow's server does not answer.");
  }
  // A login manager in front of Airflow may redirect to its page of HTML instead of answering 401.
  const loginPage = answer.redirected && !/json/.test(answer.headers.get("Content-Type") ?? "");
  const refused = answer.ok ? "" : await sentence(answer);
  // Airflow answers 403 to a login that it cannot read, as after a change of its secret.
  if (answer.status === 401 || loginPage || (answer.status === 403 && refused === "Invalid JWT token")) {
    loggedOut.value = true;
    throw new ApiError(401, "You are logged out.");
  }
  if (!answer.ok) throw new ApiError(answer.status, refused);
  loggedOut.value = false;
  return answer;
}

/** What the server says of an error; FastAPI's own refusals of bad parameters are lists. */
async function sentence(answer: Response): Promise<string> {
  try {
    const { detail } = (await answer.json()) as { detail?: unknown };
    if (typeof detail === "string") return detail;
    if (Array.isArray(detail)) return detail.map((each) => String(each?.msg ?? each)).join("; ");
  } catch {
    // A proxy's page, say: its status says enough.
  }
  return `The server answered with status ${answer.status} ${answer.statusText}`.trim();
}
