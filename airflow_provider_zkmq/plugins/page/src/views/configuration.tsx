/** A queue's configuration, as it is read. */
import { Facts } from "../parts/section";

export function Configuration({ values }: { values: Record<string, unknown> }) {
  const facts = Object.entries(values).map(([name, value]) => [name.replaceAll("_", " "), spelt(value)] as const);
  return <Facts facts={facts} />;
}

function spelt(value: unknown): string {
  if (value === null || value === undefined) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Array.isArray(value)) return value.map(spelt).join(", ") || "–";
  if (typeof value !== "object") return String(value);
  const pairs = Object.entries(value).map(([name, each]) => `${name}=${spelt(each)}`);
  return pairs.join(" ") || "–";
}
