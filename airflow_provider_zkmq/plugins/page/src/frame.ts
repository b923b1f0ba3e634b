/** Where the page is shown: in a frame of Airflow's UI, or alone in a tab; and how to get from one to the other. */

/** The path of the page's route in Airflow's UI. */
const ROUTE = "/plugin/zkmq-queues";

/** The path of `[api] base_url` without its last slash: "" or "/air". */
export const base = location.pathname.replace(/\/zkmq\/?$/, "");

const outer: Window | null = (() => {
  try {
    // Reading the location of a window of another origin throws.
    return window.parent !== window && window.parent.location.pathname ? window.parent : null;
  } catch {
    return null;
  }
})();

/** `page`: the frame of the navigation's entry; `panel`: that of a task instance; `alone`: a tab of its own. */
export const shownIn: "page" | "panel" | "alone" =
  outer === null ? "alone" : outer.location.pathname.includes(ROUTE) ? "page" : "panel";

/** The document that has Airflow's theme, if there is one. */
export const outerDocument = outer?.document ?? null;

/** The address in Airflow's UI of a place of this page. */
export function framedHref(search: string): string {
  return `${base}${ROUTE}${location.pathname}${search}`;
}

/** Shows our address as Airflow's own, so that it can be copied, and a reload comes back to it. */
export function showAddress(): void {
  if (shownIn !== "page" || !outer) return;
  outer.history.replaceState(outer.history.state, "", framedHref(location.search));
}

/**
 * Opens an address of Airflow in the whole tab. Airflow's sandbox keeps frames from navigating the tab, therefore its
 * own router is told: it looks at the address on each `popstate`.
 */
export function leave(href: string): void {
  if (!outer) {
    location.assign(href);
    return;
  }
  const index = Number(outer.history.state?.idx ?? 0) + 1;
  outer.history.pushState({ idx: index, key: Math.random().toString(36).slice(2), usr: null }, "", href);
  outer.dispatchEvent(new PopStateEvent("popstate", { state: outer.history.state }));
}

/**
 * Opens an address by a link of Airflow's document, to which the frame's sandbox does not apply: `_blank` for another
 * tab, `_top` for a load of the whole tab, as a login needs.
 */
export function openBy(href: string, target: "_blank" | "_top"): void {
  const link = (outerDocument ?? document).createElement("a");
  link.href = href;
  link.target = target;
  link.rel = "noopener";
  link.click();
}

/** Airflow's page to log in, which comes back to where we are. */
export function loginHref(): string {
  const here = outer?.location.href ?? location.href;
  return `${base}/api/v2/auth/login?next=${encodeURIComponent(here)}`;
}
