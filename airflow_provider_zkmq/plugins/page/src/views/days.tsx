/** What ended on each day, where the maintenance DAG keeps a history. */
import { Empty } from "../parts/notes";
import { type Column, Row, Table } from "../parts/table";
import { span } from "../time";
import type { Day } from "../types";
import { count } from "../wording";

const COLUMNS: readonly Column[] = [
  { head: "Day" },
  { head: "Finished", kind: "number" },
  { head: "Dead", kind: "number" },
  { head: "Wait, half", kind: "number" },
  { head: "Wait, 95 of 100", kind: "number" },
];

export function Days({ days, note }: { days: Day[] | null; note: string | null }) {
  if (!days?.length) return <Empty title="No days are known">{note && <p>{note}</p>}</Empty>;
  const most = Math.max(...days.map((day) => day.finished), 1);
  return (
    <Table label="Days" columns={COLUMNS} flat>
      {days.map((day) => (
        <Row columns={COLUMNS} key={day.day}>
          {[
            <time key="day" dateTime={day.day}>
              {day.day}
            </time>,
            <span key="finished" class="bar-count">
              <svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
                <rect width={(100 * day.finished) / most} height="8" />
              </svg>
              {count(day.finished)}
            </span>,
            <span key="dead" class={day.dead ? "bad" : "none"}>
              {count(day.dead)}
            </span>,
            day.wait_p50 === null ? "–" : span(day.wait_p50),
            day.wait_p95 === null ? "–" : span(day.wait_p95),
          ]}
        </Row>
      ))}
    </Table>
  );
}
