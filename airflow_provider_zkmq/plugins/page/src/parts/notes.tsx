/** What a view says instead of data: that it loads, that there is nothing, that something went wrong. */
import type { ComponentChildren } from "preact";
import type { ApiError } from "../api";

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
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

export function Failed({ error, retry }: { error: ApiError; retry?: () => void }) {
  if (error.status === 401) return null; // the banner tells it
  return (
    <div class="notice tone-bad" role="alert">
      <p>{error.message}</p>
      {retry && (
        <button type="button" class="button" onClick={retry}>
          Try again
        </button>
      )}
    </div>
  );
}

/** Beside old data: the newer could not be read. */
export function Stale({ error }: { error: ApiError | undefined }) {
  if (!error || error.status === 401) return null;
  return (
    <p class="notice tone-warn" role="status">
      {error.message} What you see may be old.
    </p>
  );
}
