/** Numbers, sizes and the words for states. */
import type { FilterValue, State, StateWord, TroubleKind } from "./types";

const numbers = new Intl.NumberFormat();
const rates = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 });

export function count(value: number): string {
  return numbers.format(value);
}

export function rate(value: number | null): string {
  return value === null ? "–" : rates.format(value);
}

export function bytes(value: number): string {
  if (value < 1000) return `${value} bytes`;
  return value < 1_000_000 ? `${rates.format(value / 1000)} kB` : `${rates.format(value / 1_000_000)} MB`;
}

/** `1 task`, `2 tasks`. */
export function counted(value: number, thing: string, many = `${thing}s`): string {
  return `${count(value)} ${value === 1 ? thing : many}`;
}

/** The tabs and tiles of a queue, in the order of a task's life. `inserted` without the scheduled is pending. */
export const STATES: readonly { word: StateWord; title: string }[] = [
  { word: "inserted", title: "Pending" },
  { word: "scheduled", title: "Scheduled" },
  { word: "claimed", title: "Claimed" },
  { word: "finished", title: "Finished" },
  { word: "dead", title: "Dead" },
  { word: "cancelled", title: "Cancelled" },
];

export function titleOf(state: StateWord | State): string {
  return STATES.find(({ word }) => word === state)?.title ?? state;
}

/** How many tasks of a state there are; the scheduled are no part of the pending. */
export function countOf(counts: Record<StateWord, number>, state: StateWord): number {
  return state === "inserted" ? counts.inserted - counts.scheduled : counts[state];
}

/** The kinds of trouble, the worst first. */
export const TROUBLES: Record<TroubleKind, string> = {
  dead: "Dead letters",
  hung: "Hung",
  gone: "Consumer gone",
  paused: "Paused",
  unaccepted: "Not accepted",
  unconsumed: "No consumer",
  stuck: "Nobody takes them",
  late: "Late",
};

export function filterText(value: FilterValue): string {
  return value === null ? "none" : String(value);
}
