/** Who consumes a queue, what each accepts, and what each has in hand. */
import { Ago } from "../parts/ago";
import { Badge } from "../parts/badge";
import { Command } from "../parts/copy";
import { Link } from "../parts/link";
import { Empty } from "../parts/notes";
import { type Column, Row, Table } from "../parts/table";
import { span } from "../time";
import type { Consumer, HeldClaim } from "../types";
import { count } from "../wording";

const COLUMNS: readonly Column[] = [
  { head: "Consumer", kind: "wide" },
  { head: "Accepts" },
  { head: "In hand", kind: "number" },
  { head: "Holds", kind: "wide" },
];
/** So many claims of a consumer are shown at once. */
const MOST = 4;

type Where = { connection: string; queue: string };

export function Consumers({ consumers, where }: { consumers: Consumer[]; where: Where }) {
  if (!consumers.length)
    return (
      <Empty title="No consumer lives">
        <p>Start one, or let a DAG claim:</p>
        <Command text={`zkmq worker ${where.queue}`} />
      </Empty>
    );
  return (
    <Table label="Consumers" columns={COLUMNS}>
      {consumers.map((consumer) => (
        <Row columns={COLUMNS} key={consumer.consumer}>
          {[
            <Name key="name" consumer={consumer} />,
            consumer.accepts.length ? (
              <span class="chips" key="accepts">
                {consumer.accepts.map((each) => (
                  <span class="chip" key={each}>
                    {each}
                  </span>
                ))}
              </span>
            ) : (
              <span class="muted">everything</span>
            ),
            count(consumer.in_hand),
            <Claims key="claims" claims={consumer.claims} where={where} />,
          ]}
        </Row>
      ))}
    </Table>
  );
}

function Name({ consumer }: { consumer: Consumer }) {
  const machine = [consumer.host, consumer.pid === null ? null : `pid ${consumer.pid}`].filter(Boolean).join(", ");
  return (
    <>
      <span class="queue-name">
        <b>{consumer.name ?? consumer.consumer}</b>
        {!consumer.alive && <Badge tone="bad">Gone</Badge>}
      </span>
      <span class="muted small">{machine}</span>
      {consumer.name && <span class="muted small mono">{consumer.consumer}</span>}
    </>
  );
}

function Claims({ claims, where }: { claims: HeldClaim[]; where: Where }) {
  if (!claims.length) return <span class="none">nothing</span>;
  const rest = claims.slice(MOST);
  return (
    <ul class="claims">
      {claims.slice(0, MOST).map((claim) => (
        <Claim key={claim.id} claim={claim} where={where} />
      ))}
      {rest.length > 0 && (
        <li>
          <details>
            <summary>{rest.length} more</summary>
            <ul class="claims">
              {rest.map((claim) => (
                <Claim key={claim.id} claim={claim} where={where} />
              ))}
            </ul>
          </details>
        </li>
      )}
    </ul>
  );
}

function Claim({ claim, where }: { claim: HeldClaim; where: Where }) {
  return (
    <li>
      <Link to={{ ...where, task: claim.id }} class="mono">
        {claim.id}
      </Link>{" "}
      {claim.hung && <Badge tone="bad">Hung</Badge>}{" "}
      <span class="muted">
        claimed <Ago at={claim.claimed_at} />
        {claim.hung && `, nothing was heard for ${span(claim.idle)}`}
        {claim.lease_until && (
          <>
            , lease {claim.lapsed ? "ended" : "ends"} <Ago at={claim.lease_until} />
          </>
        )}
      </span>
      {claim.progress !== null && (
        <meter class="meter" min={0} max={1} value={claim.progress} aria-label={`Progress of ${claim.id}`} />
      )}
      {claim.note && <span class="muted small">{claim.note}</span>}
    </li>
  );
}
