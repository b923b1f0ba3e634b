/** A part of a view, with its head. */
import type { ComponentChildren } from "preact";

interface Options {
  title: string;
  extra?: ComponentChildren;
  children: ComponentChildren;
}

export function Section({ title, extra, children }: Options) {
  return (
    <section class="section" aria-label={title}>
      <header class="section-head">
        <h2>{title}</h2>
        <span class="grow" />
        {extra}
      </header>
      {children}
    </section>
  );
}

/** Names and values, those that are null left out. */
export function Facts({ facts }: { facts: readonly (readonly [string, ComponentChildren])[] }) {
  return (
    <dl class="facts">
      {facts
        .filter(([, value]) => value !== null && value !== undefined)
        .map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
    </dl>
  );
}
