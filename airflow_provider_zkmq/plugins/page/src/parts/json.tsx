/** JSON as a tree that folds. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

/** So many members are shown at once. */
const MOST = 100;
/** So deep, and with so many members, it is unfolded at first. The rest is made when it is opened, however deep. */
const OPEN_LEVELS = 2;
const OPEN_MEMBERS = 30;

/** A number, as it is spelt: JavaScript's own have 53 bits, and would show other digits. */
class Spelt {
  constructor(readonly text: string) {}
}

/** The value of a text; undefined if it is no JSON, or too deep. */
export function parseJson(text: string): { value: unknown } | undefined {
  const spell = (_key: string, value: unknown, context?: { source?: string }) =>
    typeof value === "number" ? new Spelt(context?.source ?? String(value)) : value;
  try {
    return { value: JSON.parse(text, spell as (key: string, value: unknown) => unknown) };
  } catch {
    return undefined;
  }
}

/** Characters that turn or hide the text around them. */
const INVISIBLE = /[\u007f-\u009f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** A text as JSON, with what is invisible spelt as escapes. */
function spelled(text: string): string {
  const asEscape = (character: string) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return JSON.stringify(text).replace(INVISIBLE, asEscape);
}

export function JsonTree({ value }: { value: unknown }) {
  return <Value value={value} level={0} />;
}

function Value({ value, level, name }: { value: unknown; level: number; name?: ComponentChildren }) {
  if (value instanceof Spelt) return <Leaf name={name} kind="number" text={value.text} />;
  if (typeof value === "string") return <Leaf name={name} kind="string" text={spelled(value)} />;
  if (value === null || typeof value !== "object") return <Leaf name={name} kind="word" text={String(value)} />;
  return <Fold value={value} level={level} name={name} />;
}

function Leaf({ name, kind, text }: { name: ComponentChildren; kind: string; text: string }) {
  return (
    <div class="json-leaf">
      {name}
      <span class={`json-${kind}`}>{text}</span>
    </div>
  );
}

function Fold({ value, level, name }: { value: object; level: number; name: ComponentChildren }) {
  const [shown, setShown] = useState(MOST);
  const list = Array.isArray(value);
  const members: [string, unknown][] = Object.entries(value);
  const [open, setOpen] = useState(level < OPEN_LEVELS && members.length <= OPEN_MEMBERS);
  const [begin, end] = list ? "[]" : "{}";
  if (!members.length) return <Leaf name={name} kind="mark" text={`${begin}${end}`} />;
  const hidden = members.length - shown;
  return (
    <details open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        {name}
        <span class="json-mark">{open ? begin : `${begin}…${end}`}</span> <span class="muted">{members.length}</span>
      </summary>
      {open && (
        <div class="json-members">
          {members.slice(0, shown).map(([key, member]) => (
            <Value
              key={key}
              value={member}
              level={level + 1}
              name={<span class="json-key">{list ? `${key}: ` : `${spelled(key)}: `}</span>}
            />
          ))}
          {hidden > 0 && (
            <button type="button" class="button small" onClick={() => setShown(shown + 10 * MOST)}>
              {hidden} more
            </button>
          )}
        </div>
      )}
      {open && <div class="json-mark">{end}</div>}
    </details>
  );
}
