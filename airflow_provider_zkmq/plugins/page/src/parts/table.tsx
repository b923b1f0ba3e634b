/** Tables that become cards on a narrow screen. */
import type { ComponentChildren } from "preact";

export interface Column {
  head: ComponentChildren;
  /** What stands before the value on a card; the head, if that is a text. */
  label?: string;
  kind?: "number" | "main" | "wide" | "labels" | "tight" | undefined;
}

interface TableOptions {
  /** What the table lists, for those who do not see it. */
  label: string;
  columns: readonly Column[];
  children: ComponentChildren;
  class?: string;
  /** It stays a table on a narrow screen, and scrolls in its box. */
  flat?: boolean;
}

// The roles are written out since a table that is laid out as cards loses those it has by itself.
export function Table({ label, columns, children, class: name = "", flat = false }: TableOptions) {
  // What scrolls must be reached by the keyboard; in other tables there are links.
  const scrolls = flat ? ({ tabIndex: 0, role: "group", "aria-label": label } as const) : {};
  return (
    <div class="table-box" {...scrolls}>
      <table role="table" aria-label={label} class={`table ${flat ? "" : "cards"} ${name}`}>
        <thead role="rowgroup">
          <tr role="row">
            {columns.map((column, at) => (
              <th key={at} role="columnheader" scope="col" class={column.kind}>
                {column.head}
              </th>
            ))}
          </tr>
        </thead>
        <tbody role="rowgroup">{children}</tbody>
      </table>
    </div>
  );
}

interface RowOptions {
  columns: readonly Column[];
  /** A cell for each column. */
  children: readonly ComponentChildren[];
  class?: string | undefined;
}

export function Row({ columns, children, class: name }: RowOptions) {
  return (
    <tr role="row" class={name}>
      {children.map((cell, at) => (
        <Cell key={at} column={columns[at]}>
          {cell}
        </Cell>
      ))}
    </tr>
  );
}

function Cell({ column, children }: { column: Column | undefined; children: ComponentChildren }) {
  const label = column?.label ?? (typeof column?.head === "string" ? column.head : "");
  return (
    <td role="cell" class={column?.kind} data-label={label}>
      {children}
    </td>
  );
}
