/** A queue's configuration, as it is read. */
import { Facts } from "../parts/section";
import { span } from "../time";

/** What is a number of seconds. */
const SPANS = new Set(["lease", "lock", "task_gc_lifetime", "task_gc_interval", "min_backoff", "max_backoff", "per"]);
/** What it means where there is none. */
const NONE: Record<string, string> = { task_gc_lifetime: "for ever", task_gc_interval: "never", attempts: "unbounded" };

export function Configuration({ values }: { values: Record<string, unknown> }) {
  const facts = Object.entries(values).map(([name, value]) => [name.replaceAll("_", " "), spelt(name, value)] as const);
  return <Facts facts={facts} />;
}

function spelt(name: string, value: unknown): string {
  if (value === null || value === undefined) return NONE[name] ?? "none";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number" && SPANS.has(name)) return span(value);
  if (Array.isArray(value)) return value.map((each) => spelt(name, each)).join(", ") || "none";
  if (typeof value !== "object") return String(value);
  const pairs = Object.entries(value).map(([key, each]) => `${key.replaceAll("_", " ")}: ${spelt(key, each)}`);
  return pairs.join(", ") || "none";
}
