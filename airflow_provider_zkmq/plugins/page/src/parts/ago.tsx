/** Times as people read them: how long ago, with the whole time in the title. */
import { computed } from "@preact/signals";
import { useMemo } from "preact/hooks";
import { absolute, now, relative, span, timeOfDay } from "../time";

/** How long ago a time was, or in how long it will be. Only the text node changes as time passes. */
export function Ago({ at, none = "–" }: { at: string | null; none?: string }) {
  const text = useMemo(() => computed(() => (at === null ? none : relative(at, now.value))), [at, none]);
  if (at === null) return <span class="none">{none}</span>;
  return (
    <time dateTime={at} title={absolute(at)}>
      {text}
    </time>
  );
}

/** For how long something has been going on. */
export function Since({ at, none = "–" }: { at: string | null; none?: string }) {
  const text = useMemo(
    () => computed(() => (at === null ? none : span(Math.max(0, Math.floor((now.value - Date.parse(at)) / 1000))))),
    [at, none],
  );
  if (at === null) return <span class="none">{none}</span>;
  return (
    <time dateTime={at} title={absolute(at)}>
      {text}
    </time>
  );
}

/** The time of day. It stays as it is, which suits what is read aloud when it changes. */
export function At({ at, precise = false }: { at: string | null; precise?: boolean }) {
  if (at === null) return null;
  return (
    <time dateTime={at} title={absolute(at)}>
      {timeOfDay(at, now.peek(), precise)}
    </time>
  );
}
