/** Times and spans in words. */
import { signal } from "@preact/signals";

/** The present, in milliseconds since 1970; it moves each second while somebody looks. */
export const now = signal(Date.now());

export function start(): void {
  const tick = () => {
    if (document.visibilityState === "visible") now.value = Date.now();
  };
  setInterval(tick, 1000);
  document.addEventListener("visibilitychange", tick);
}

const UNITS = [
  ["d", 86_400],
  ["h", 3_600],
  ["min", 60],
  ["s", 1],
] as const;

/** A span with two digits of sense: `2 h 5 min`, `23 min`; below ten seconds with a fraction, below one in ms. */
export function span(seconds: number): string {
  if (seconds < 0) return `−${span(-seconds)}`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${Number(seconds.toFixed(1))} s`;
  const whole = Math.round(seconds);
  const at = UNITS.findIndex(([, size]) => whole >= size);
  const [unit, size] = UNITS[at] ?? UNITS[3];
  const next = UNITS[at + 1];
  const rest = next ? Math.floor((whole % size) / next[1]) : 0;
  const many = Math.floor(whole / size);
  return next && rest && many < 10 ? `${many} ${unit} ${rest} ${next[0]}` : `${many} ${unit}`;
}

/** How long ago a time was, or in how long it will be. `from`: milliseconds since 1970. */
export function relative(at: string, from: number): string {
  const seconds = (from - Date.parse(at)) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  const text = span(Math.floor(Math.abs(seconds)));
  return seconds > 0 ? `${text} ago` : `in ${text}`;
}

const full = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });
const clockOptions = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" } as const;
const clock = new Intl.DateTimeFormat(undefined, clockOptions);
const preciseClock = new Intl.DateTimeFormat(undefined, { ...clockOptions, fractionalSecondDigits: 3 });
const dated = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", year: "numeric" });

/** A time with its zone, as the local calendar has it. */
export function absolute(at: string): string {
  return full.format(Date.parse(at));
}

/** The time of day; with the date, unless that is `today` (milliseconds since 1970). `precise`: with milliseconds. */
export function timeOfDay(at: string, today: number, precise: boolean): string {
  const date = Date.parse(at);
  const text = (precise ? preciseClock : clock).format(date);
  return new Date(date).toDateString() === new Date(today).toDateString() ? text : `${dated.format(date)}, ${text}`;
}

/** Hours and minutes, for the axes of charts. */
export function hourAndMinute(seconds: number): string {
  return new Date(seconds * 1000).toLocaleTimeString(undefined, {
    hour: "2-digit",
    minute: "2-digit",
    hourCycle: "h23",
  });
}

/** The seconds from one time to another; null where one is not known. */
export function between(from: string | null, to: string | null): number | null {
  return from === null || to === null ? null : (Date.parse(to) - Date.parse(from)) / 1000;
}
