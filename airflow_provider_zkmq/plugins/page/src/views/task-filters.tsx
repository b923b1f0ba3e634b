/** The form that filters a list of tasks. What is in it stands in the address. */

import { Link } from "../parts/link";
import { go, type Place } from "../router";

export const FILTERS = [
  { name: "selector", title: "Filters", hint: "region==eu, any(1, a==1, b==2)" },
  { name: "error", title: "Error has", hint: "TimeoutError*host" },
  { name: "id", title: "Task id", hint: "order-17" },
  { name: "batch", title: "Batch", hint: "nightly" },
  { name: "older", title: "Older than", hint: "2h" },
] as const;

export function FilterForm({ at }: { at: Place }) {
  const used = at.kind || FILTERS.some(({ name }) => at[name]);
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const values = FILTERS.map(({ name }) => [name, String(form.get(name) ?? "").trim() || undefined]);
    go({ ...at, ...Object.fromEntries(values), cursor: undefined });
  };
  return (
    <form class="filters" onSubmit={submit} role="search" aria-label="Filter tasks">
      {FILTERS.map(({ name, title, hint }, index) => (
        <label key={name} class={`field field-${name}`}>
          <span>{title}</span>
          <input name={name} placeholder={hint} defaultValue={at[name] ?? ""} data-search={index === 0 || undefined} />
        </label>
      ))}
      {at.kind && (
        <p class="field">
          <span>Error is</span> <span class="mono">{at.kind}</span>
        </p>
      )}
      <button type="submit" class="button solid">
        Filter
      </button>
      {used && (
        <Link to={{ connection: at.connection, queue: at.queue, view: at.view, state: at.state }} class="button">
          Clear
        </Link>
      )}
    </form>
  );
}
