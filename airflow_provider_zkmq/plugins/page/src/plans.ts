/** What each action says before it is carried out. */
import type { Action, ActionRequest, Selection, StateWord } from "./types";
import { counted, titleOf } from "./wording";

export interface Plan {
  connection: string;
  request: ActionRequest;
  /** The button that does it. */
  verb: string;
  /** What is done, in words. */
  title: string;
  sentences: string[];
  danger: boolean;
  /** How many tasks; null where only the server can tell, or where no tasks are meant. */
  count: number | null;
}

interface Where {
  connection: string;
  queue: string;
}

export type TaskAction = "redrive" | "cancel" | "release";

/** What the action is called on some tasks, such as `Release 2 tasks by force`. */
export function phrase(action: TaskAction, tasks = ""): string {
  const words = { redrive: ["Redrive"], cancel: ["Cancel"], release: ["Release", "by force"] }[action];
  return [words[0], tasks, words[1]].filter(Boolean).join(" ");
}

const EFFECTS: Record<TaskAction, string> = {
  redrive: "They become pending again, with all their attempts before them, and are delivered anew.",
  cancel: "They are withdrawn: nobody gets them any more. What a consumer has begun is not undone.",
  release:
    "The claims end at once and the tasks become pending again. If a consumer still works on one of them, that task " +
    "may be handled twice.",
};

const ONE: Record<TaskAction, string> = {
  redrive: "It becomes pending again, with all its attempts before it, and is delivered anew.",
  cancel: "It is withdrawn: nobody gets it any more. What a consumer has begun is not undone.",
  release:
    "The claim ends at once and the task becomes pending again. If the consumer still works on it, the task may be " +
    "handled twice.",
};

/** What may be done to tasks of a state. */
export function actionsOn(state: StateWord): TaskAction[] {
  switch (state) {
    case "inserted":
    case "scheduled":
      return ["cancel"];
    case "claimed":
      return ["cancel", "release"];
    case "dead":
    case "cancelled":
      return ["redrive"];
    case "finished":
      return [];
  }
}

/** An action on tasks that were named. */
export function onTasks(where: Where, action: TaskAction, ids: string[]): Plan {
  const [only] = ids;
  const one = ids.length === 1 && only !== undefined;
  const what = one ? `task ${only}` : counted(ids.length, "task");
  return {
    ...plan(where, action, ids, null),
    verb: phrase(action),
    title: phrase(action, what),
    sentences: [`${one ? "The task is" : "The tasks are"} in ${place(where)}.`, one ? ONE[action] : EFFECTS[action]],
    danger: action !== "redrive",
    count: ids.length,
  };
}

/** An action on all tasks that have something in common. `count`: how many that are, if it is known. */
export function onAll(where: Where, action: TaskAction, selection: Selection, count: number | null): Plan {
  const limits = [
    selection.selector && `filters ${selection.selector}`,
    selection.error && `“${selection.error}” in their errors`,
    selection.kind && `the error “${selection.kind}”`,
    selection.batch && `the batch ${selection.batch}`,
  ].filter(Boolean);
  const kind = selection.state ? titleOf(selection.state).toLowerCase() : "";
  const many = count === null ? `all ${kind} tasks that match` : counted(count, `${kind} task`);
  return {
    ...plan(where, action, null, selection),
    verb: phrase(action),
    title: phrase(action, many),
    sentences: [
      limits.length
        ? `These are the ${kind} tasks of ${place(where)} with ${limits.join(" and ")}.`
        : `These are all ${kind} tasks of ${place(where)}, also those that come while it is done.`,
      EFFECTS[action],
      "You may stop on the way: what was done by then stays done.",
    ],
    danger: action !== "redrive",
    count,
  };
}

export function pause(where: Where): Plan {
  return {
    ...plan(where, "pause", null, null),
    verb: "Pause",
    title: `Pause ${where.queue}`,
    sentences: [
      `No consumer claims tasks of ${place(where)} until somebody resumes it.`,
      "Tasks can still be enqueued, and what is in hand goes on.",
    ],
    danger: true,
    count: null,
  };
}

export function resume(where: Where): Plan {
  return {
    ...plan(where, "resume", null, null),
    verb: "Resume",
    title: `Resume ${where.queue}`,
    sentences: [`Consumers claim tasks of ${place(where)} again, at once.`],
    danger: false,
    count: null,
  };
}

export function cleanUp(where: Where): Plan {
  return {
    ...plan(where, "clean", null, null),
    verb: "Clean up now",
    title: `Clean up ${where.queue} now`,
    sentences: [
      `What has ended in ${place(where)} and is older than its configuration keeps it is deleted.`,
      "Dead consumers are removed, and their tasks become pending again.",
    ],
    danger: false,
    count: null,
  };
}

function plan({ connection, queue }: Where, action: Action, tasks: string[] | null, selection: Selection | null) {
  return { connection, request: { queue, action, tasks, selection } };
}

function place({ connection, queue }: Where): string {
  return `queue ${queue} (${connection})`;
}
