/** Light or dark, as Airflow's UI is, also when that changes. */
import { signal } from "@preact/signals";
import { outerDocument } from "./frame";

const system = window.matchMedia("(prefers-color-scheme: dark)");

/** Whether the page is dark now. */
export const dark = signal(false);

export function start(): void {
  if (outerDocument) {
    const options = { attributes: true, attributeFilter: ["class"] };
    new MutationObserver(update).observe(outerDocument.documentElement, options);
  }
  window.addEventListener("storage", update);
  system.addEventListener("change", update);
  update();
}

function update(): void {
  dark.value = isDark();
  document.documentElement.classList.toggle("dark", dark.value);
  document.documentElement.classList.toggle("light", !dark.value);
}

function isDark(): boolean {
  const classes = outerDocument?.documentElement.classList;
  if (classes?.contains("dark")) return true;
  if (classes?.contains("light")) return false;
  const chosen = stored();
  return chosen === "dark" || (chosen !== "light" && system.matches);
}

/** What the user has chosen in Airflow's UI, which keeps it here. */
function stored(): string | null {
  try {
    return localStorage.getItem("theme");
  } catch {
    return null; // a browser may forbid it
  }
}
