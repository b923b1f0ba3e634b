/** The address bar holds all of a view's state: this reads and writes it. */
import { computed, signal } from "@preact/signals";
import { base, framedHref, leave, openBy, showAddress, shownIn } from "./frame";

const NAMES = [
  "connection",
  "queue",
  "view",
  "task",
  "state",
  "selector",
  "error",
  "kind",
  "id",
  "batch",
  "older",
  "cursor",
  "search",
  "dag_id",
  "run_id",
  "task_id",
  "map_index",
] as const;

type Name = (typeof NAMES)[number];

/** A view and its state. What is absent is not in the address. */
export type Place = { readonly [name in Name]?: string | undefined };

const current = signal<Place>(read());

/** Where we are. */
export const place = computed(() => current.value);

export function start(): void {
  window.addEventListener("popstate", () => {
    current.value = read();
    showAddress();
  });
  showAddress();
}

/** The address of a place, relative to the page's. */
export function hrefOf(to: Place): string {
  const query = new URLSearchParams();
  for (const name of NAMES) {
    const value = to[name];
    if (value) query.set(name, value);
  }
  const text = query.toString();
  return text ? `?${text}` : location.pathname;
}

/** Goes to a place. `replace`: as the same step of the history, as letters typed into a search are. */
export function go(to: Place, { replace = false } = {}): void {
  const href = hrefOf(to);
  if (replace) history.replaceState(null, "", href);
  else history.pushState(null, "", href);
  current.value = read();
  showAddress();
  if (replace) return;
  window.scrollTo(0, 0);
  document.getElementById("content")?.focus({ preventScroll: true });
}

/** What a click on a link of the page does. */
export function follow(event: MouseEvent, to: Place): void {
  const href = hrefOf(to);
  const search = href.startsWith("?") ? href : "";
  if (event.button !== 0 || event.shiftKey || event.altKey) return;
  if (event.metaKey || event.ctrlKey) {
    if (shownIn === "alone") return;
    event.preventDefault(); // the sandbox would keep the browser from opening a tab
    openBy(framedHref(search), "_blank");
    return;
  }
  event.preventDefault();
  if (shownIn === "panel") leave(framedHref(search));
  else go(to);
}

/** What a click on a link to a page of Airflow does. `path`: relative to Airflow's base. */
export function followAirflow(event: MouseEvent, path: string): void {
  if (shownIn === "alone" || event.button !== 0 || event.shiftKey || event.altKey) return;
  event.preventDefault();
  if (event.metaKey || event.ctrlKey) openBy(airflowHref(path), "_blank");
  else leave(airflowHref(path));
}

export function airflowHref(path: string): string {
  return `${base}/${path.replace(/^\/+/, "")}`;
}

function read(): Place {
  const query = new URLSearchParams(location.search);
  const found: { [name in Name]?: string } = {};
  for (const name of NAMES) {
    const value = query.get(name);
    if (value) found[name] = value;
  }
  return found;
}
