/** Asks once more before an action, shows how far it is, and what came of it. */
import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, act } from "../api";
import type { Plan } from "../plans";
import type { ActionLine, Refusal } from "../types";
import { count, counted } from "../wording";

/** So many refusals are listed. */
const MOST = 100;

const current = signal<Plan | null>(null);

/** Opens the dialog: the user says whether it is done. */
export function openDialog(plan: Plan): void {
  current.value = plan;
}

interface Progress {
  of: number | null;
  done: number;
  refused: number;
  refusals: Refusal[];
  /** What the server says at the end. */
  message: string | null;
  /** Why it ended before it was over. */
  failure: string | null;
}

const NOTHING: Progress = { of: null, done: 0, refused: 0, refusals: [], message: null, failure: null };

/** How far it is after another line of the server. */
function advanced(before: Progress, line: ActionLine): Progress {
  if ("of" in line) return { ...before, of: line.of };
  if (!("over" in line))
    return {
      ...before,
      done: before.done + line.done,
      refused: before.refused + line.refused.length,
      refusals: [...before.refusals, ...line.refused].slice(0, MOST),
    };
  const { done, refused, message, error } = line;
  return { ...before, done, refused, message: error ? "" : message, failure: error ? message : null };
}

export function ActionDialog() {
  const plan = current.value;
  // A dialog of its own for each plan: nothing of the one before it is left.
  return plan && <Dialog key={JSON.stringify(plan)} plan={plan} />;
}

function Dialog({ plan }: { plan: Plan }) {
  const element = useRef<HTMLDialogElement>(null);
  const abort = useRef(new AbortController());
  const [phase, setPhase] = useState<"confirming" | "running" | "over">("confirming");
  const [progress, setProgress] = useState(NOTHING);

  useEffect(() => {
    const opener = document.activeElement;
    const controller = abort.current;
    element.current?.showModal();
    element.current?.querySelector("button")?.focus(); // the one that does nothing
    return () => {
      controller.abort();
      // What opened it may be gone with the tasks that it was about.
      const target = opener instanceof HTMLElement && opener.isConnected ? opener : document.getElementById("content");
      target?.focus();
    };
  }, []);

  const close = () => {
    current.value = null;
  };

  const run = async () => {
    setPhase("running");
    // A button that is pressed goes away with its focus.
    element.current?.querySelector<HTMLElement>("h2")?.focus();
    let seen: Progress = { ...NOTHING, of: plan.count };
    try {
      for await (const line of act(plan.connection, plan.request, abort.current.signal)) {
        seen = advanced(seen, line);
        setProgress(seen);
      }
      if (seen.message === null) seen = { ...seen, failure: "The connection broke before the end." };
    } catch (error) {
      const text = error instanceof ApiError ? error.message : "The connection broke before the end.";
      seen = { ...seen, failure: abort.current.signal.aborted ? "Stopped." : text };
    }
    setProgress(seen);
    setPhase("over");
  };

  return (
    <dialog
      ref={element}
      class="dialog"
      aria-labelledby="dialog-title"
      aria-describedby="dialog-text"
      onCancel={(event) => {
        event.preventDefault();
        if (phase !== "running") close(); // while it runs, only Stop ends it
      }}
    >
      <h2 id="dialog-title" tabIndex={-1}>
        {plan.title}
        {phase === "confirming" && "?"}
      </h2>
      <div id="dialog-text" class="dialog-text">
        {phase === "confirming" && plan.sentences.map((sentence) => <p key={sentence}>{sentence}</p>)}
        {phase === "running" && <Running progress={progress} />}
        {phase === "over" && <Over plan={plan} progress={progress} />}
      </div>
      <div class="dialog-buttons">
        {phase === "confirming" && (
          <>
            <button type="button" class="button" onClick={close}>
              {plan.request.action === "cancel" ? "Keep" : "Cancel"}
            </button>
            <button type="button" class={`button solid ${plan.danger ? "danger" : ""}`} onClick={run}>
              {plan.request.action === "cancel" ? `Cancel ${plan.count === 1 ? "the task" : "the tasks"}` : plan.verb}
            </button>
          </>
        )}
        {phase === "running" && (
          <button type="button" class="button" onClick={() => abort.current.abort()}>
            Stop
          </button>
        )}
        {phase === "over" && (
          <button type="button" class="button solid" ref={(button) => button?.focus()} onClick={close}>
            Close
          </button>
        )}
      </div>
    </dialog>
  );
}

function Running({ progress }: { progress: Progress }) {
  const { of, done, refused } = progress;
  const seen = done + refused;
  return (
    <>
      <progress class="progress" aria-label="Progress" {...(of ? { max: of, value: seen } : {})} />
      <p role="status">
        {of ? `${count(seen)} of ${count(of)}` : "Begun"}
        {refused > 0 && `, ${count(refused)} refused`}
      </p>
    </>
  );
}

function Over({ plan, progress }: { plan: Plan; progress: Progress }) {
  const { done, refused, refusals, message, failure } = progress;
  const onTasks = plan.request.tasks !== null || plan.request.selection !== null;
  return (
    <>
      {failure && <p class="notice tone-bad">{failure}</p>}
      {message && <p>{message}</p>}
      {onTasks && (
        <p>
          {counted(done, "task")} done, {count(refused)} refused.
          {failure && done > 0 && " What was done stays done."}
        </p>
      )}
      {refusals.length > 0 && (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by the keyboard
        <section class="refusals" tabIndex={0} aria-label="What was refused">
          <ul>
            {refusals.map(({ id, reason }) => (
              <li key={id}>
                <code>{id}</code> {reason}
              </li>
            ))}
          </ul>
          {refused > refusals.length && <p class="muted">And {count(refused - refusals.length)} more.</p>}
        </section>
      )}
    </>
  );
}
