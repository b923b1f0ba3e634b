/** Small marks: states, troubles, filters. */
import type { ComponentChildren } from "preact";
import type { Filters, State, StateWord, TroubleKind } from "../types";
import { filterText, titleOf } from "../wording";

export function Badge({ tone, children, title }: { tone: string; children: ComponentChildren; title?: string }) {
  return (
    <span class={`badge tone-${tone}`} title={title}>
      {children}
    </span>
  );
}

/** `status`: the engine's finer word, shown on hover. */
export function StateBadge({ state, status }: { state: State | StateWord; status?: string }) {
  const word = state === "inserted" && status === "queued-with-backoff" ? "scheduled" : state;
  return (
    <Badge tone={word} {...(status ? { title: `Status: ${status}` } : {})}>
      {titleOf(word)}
    </Badge>
  );
}

const BAD: readonly TroubleKind[] = ["dead", "hung", "gone"];

export function toneOf(kind: TroubleKind): "bad" | "warn" {
  return BAD.includes(kind) ? "bad" : "warn";
}

export function TroubleBadge({ kind, text }: { kind: TroubleKind; text: string }) {
  return (
    <span class={`trouble tone-${toneOf(kind)}`} title={text}>
      {text}
    </span>
  );
}

export function FilterChips({ filters }: { filters: Filters }) {
  const pairs = Object.entries(filters);
  if (!pairs.length) return <span class="none">–</span>;
  return (
    <span class="chips">
      {pairs.map(([name, value]) => (
        <span class="chip" key={name}>
          {name}=<b>{filterText(value)}</b>
        </span>
      ))}
    </span>
  );
}
