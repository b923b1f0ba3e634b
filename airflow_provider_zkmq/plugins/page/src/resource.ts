/** What a view reads from the server, read again when its version changes. */
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "./api";

/** A view is read again at most so often, in milliseconds. */
const SHORTEST = 1_000;
/** How long after a failure that may pass it is read again. */
const RETRY = 5_000;

export interface Resource<T> {
  /** What was read last; it stays while it is read again, and when that fails. */
  value: T | undefined;
  error: ApiError | undefined;
  reload: () => void;
}

/**
 * `key`: what is read; another key is another thing, and the old value goes. `version`: changes when what is read may
 * have changed; undefined until it is known. A tab that nobody sees reads nothing until it is seen.
 */
export function useResource<T>(key: string, version: unknown, read: (abort: AbortSignal) => Promise<T>): Resource<T> {
  const [state, setState] = useState<{ key: string; value?: T; error?: ApiError | undefined }>({ key });
  const reader = useRef(read);
  reader.current = read;
  const request = useRef<() => void>(() => undefined);

  useEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    let busy = false;
    let stale = false;
    let last = Number.NEGATIVE_INFINITY;

    const run = async () => {
      if (busy || document.visibilityState !== "visible") {
        stale = true;
        return;
      }
      busy = true;
      stale = false;
      last = performance.now();
      try {
        const value = await reader.current(abort.signal);
        if (!abort.signal.aborted) setState({ key, value });
      } catch (thrown) {
        if (abort.signal.aborted) return;
        const error = thrown instanceof ApiError ? thrown : new ApiError(0, String(thrown));
        // What was there stays, unless it is said to be gone.
        setState((before) => (before.key === key && error.passing ? { ...before, error } : { key, error }));
        if (error.passing) later(RETRY);
      } finally {
        busy = false;
        if (stale && !abort.signal.aborted) later(0);
      }
    };
    const later = (pause: number) => {
      clearTimeout(timer);
      timer = window.setTimeout(run, Math.max(pause, last + SHORTEST - performance.now(), 0));
    };
    const seen = () => {
      if (stale && document.visibilityState === "visible") later(0);
    };

    request.current = () => {
      if (busy) stale = true;
      else later(0);
    };
    document.addEventListener("visibilitychange", seen);
    void run();
    return () => {
      abort.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [key]);

  const known = useRef(version);
  useEffect(() => {
    // The first version that is told may be older than what was read.
    if (known.current !== undefined && known.current !== version) request.current();
    known.current = version;
  }, [version]);

  const mine = state.key === key;
  return {
    value: mine ? state.value : undefined,
    error: mine ? state.error : undefined,
    reload: () => request.current(),
  };
}
