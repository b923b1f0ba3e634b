/** What a view says instead of data: that it loads, that there is nothing, that something went wrong. */
import type { ComponentChildren } from "preact";
import type { ApiError } from "../api";

interface EmptyOptions {
  title: string;
  /** Whether it is all that the view says. */
  alone?: boolean;
  children?: ComponentChildren;
}

export function Empty({ title, alone = false, children }: EmptyOptions) {
  return (
    <div class="empty">
      {alone ? <h1>{title}</h1> : <p class="empty-title">{title}</p>}
      {children}
    </div>
  );
}

export function Loading({ what }: { what: string }) {
  return (
    <p class="loading" role="status">
      <span class="spinner" aria-hidden="true" />
      Reading {what} …
    </p>
  );
}

/** Instead of what could not be read. `title`: of the view, if it is all that the view says. */
export function Failed({ title, error, retry }: { title?: string; error: ApiError; retry?: () => void }) {
  return (
    <>
      {title && (
        <div class="title-row">
          <h1>{title}</h1>
        </div>
      )}
      {/* Of a login that is over the banner tells. */}
      {error.status !== 401 && (
        <div class="notice tone-bad" role="alert">
          <p>{error.message}</p>
          {retry && (
            <button type="button" class="button" onClick={retry}>
              Try again
            </button>
          )}
        </div>
      )}
    </>
  );
}

/** Beside old data: the newer could not be read. `explained`: a banner says why. */
export function Stale({ error, explained = false }: { error: ApiError | undefined; explained?: boolean }) {
  if (!error || error.status === 401 || explained) return null;
  return (
    <p class="notice tone-warn" role="status">
      {error.message.replace(/\.?$/, ".")} What you see may be old.
    </p>
  );
}
