/** What ended on each day, where the maintenance DAG keeps a history. */
import * as api from "../api";
import { Empty, Failed, Loading } from "../parts/notes";
import { type Column, Row, Table } from "../parts/table";
import { useResource } from "../resource";
import { span } from "../time";
import type { Day } from "../types";
import { count } from "../wording";

const COLUMNS: readonly Column[] = [
  { head: "Day" },
  { head: "Finished", kind: "number" },
  { head: "Dead", kind: "number" },
  { head: "Mean wait", kind: "number" },
  { head: "95 of 100 waited at most", kind: "number" },
];

export function Days({ connection, queue }: { connection: string; queue: string }) {
  // Read once: a day is long, and the history is read from files.
  const found = useResource(`days ${connection} ${queue}`, 0, (abort) => api.days(connection, queue, abort));
  if (found.error && !found.value) return <Failed error={found.error} retry={found.reload} />;
  if (!found.value) return <Loading what="the history" />;
  const { days, note } = found.value;
  if (!days?.length) return <Empty title="No days are known">{note && <p>{note}</p>}</Empty>;
  return <DayTable days={days} />;
}

function DayTable({ days }: { days: Day[] }) {
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
            day.wait_mean === null ? "–" : span(day.wait_mean),
            day.wait_p95 === null ? "–" : span(day.wait_p95),
          ]}
        </Row>
      ))}
    </Table>
  );
}
