/** Links inside the page, and to pages of Airflow. */
import type { ComponentChildren } from "preact";
import { framedHref, shownIn } from "../frame";
import { airflowHref, follow, followAirflow, hrefOf, type Place } from "../router";

interface Options {
  children: ComponentChildren;
  class?: string | undefined;
  title?: string | undefined;
  current?: boolean | undefined;
}

export function Link({ to, children, class: name, title, current }: Options & { to: Place }) {
  // The panel of a task instance is small: what it links to is shown in the whole of Airflow's page.
  const href = shownIn === "panel" ? framedHref(hrefOf(to)) : hrefOf(to);
  return (
    <a
      href={href}
      class={name}
      title={title}
      target={shownIn === "panel" ? "_top" : undefined}
      aria-current={current ? "page" : undefined}
      onClick={(event) => follow(event, to)}
    >
      {children}
    </a>
  );
}

/** `path`: relative to Airflow's base. */
export function AirflowLink({ path, children, class: name }: Options & { path: string }) {
  return (
    <a href={airflowHref(path)} class={name} target="_top" onClick={(event) => followAirflow(event, path)}>
      {children}
    </a>
  );
}
