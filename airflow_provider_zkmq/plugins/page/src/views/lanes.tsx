/** The lanes of a queue: what is pending with the same priority and filters, and who would take it. */
import { Badge, FilterChips } from "../parts/badge";
import { Link } from "../parts/link";
import { Empty } from "../parts/notes";
import { type Column, Row, Table } from "../parts/table";
import type { Filters, Lane } from "../types";
import { count, counted } from "../wording";

const COLUMNS: readonly Column[] = [
  { head: "Filters", kind: "wide" },
  { head: "Priority", kind: "number" },
  { head: "Pending", kind: "number" },
  { head: "Who would take them", kind: "wide" },
];
/** So many consumers are named. */
const MOST = 3;

export function Lanes({ lanes, where }: { lanes: Lane[]; where: { connection: string; queue: string } }) {
  if (!lanes.length) return <Empty title="Nothing is pending" />;
  return (
    <Table label="Lanes" columns={COLUMNS}>
      {lanes.map((lane) => (
        <Row columns={COLUMNS} key={`${lane.priority} ${JSON.stringify(lane.filters)}`}>
          {[
            <LaneFilters key="filters" filters={lane.filters} />,
            count(lane.priority),
            <Pending key="pending" lane={lane} where={where} />,
            <Takers key="takers" lane={lane} />,
          ]}
        </Row>
      ))}
    </Table>
  );
}

function LaneFilters({ filters }: { filters: Filters | null }) {
  if (filters === null) return <span class="muted">Mixed: tasks of many filters share this lane</span>;
  return Object.keys(filters).length ? <FilterChips filters={filters} /> : <span class="muted">No filter</span>;
}

function Pending({ lane, where }: { lane: Lane; where: { connection: string; queue: string } }) {
  const selector = lane.filters && selectorOf(lane.filters);
  if (selector === null) return <>{count(lane.count)}</>;
  return <Link to={{ ...where, view: "tasks", state: "inserted", selector }}>{count(lane.count)}</Link>;
}

/** A selector for these filters; null where their values would need quoting. */
function selectorOf(filters: Filters): string | null {
  const pairs = Object.entries(filters).map(([name, value]) => `${name}==${value}`);
  return pairs.length && pairs.every((pair) => /^[\w.=-]+$/.test(pair)) ? pairs.join(", ") : null;
}

function Takers({ lane }: { lane: Lane }) {
  if (!lane.accepted) return <Badge tone="warn">No consumer accepts these</Badge>;
  const named = lane.accepted_by.slice(0, MOST);
  const others = lane.accepted - named.length;
  return (
    <span class="takers">
      {named.join(", ") || counted(lane.accepted, "consumer")}
      {named.length > 0 && others > 0 && <span class="muted"> and {counted(others, "other")}</span>}
    </span>
  );
}
