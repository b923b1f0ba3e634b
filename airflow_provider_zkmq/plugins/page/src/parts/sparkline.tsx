/** A small drawing of a queue's depth over time. */
import { count } from "../wording";

const WIDTH = 120;
const HEIGHT = 26;

export function Sparkline({ points }: { points: readonly [number, number][] }) {
  const first = points[0];
  const last = points[points.length - 1];
  if (!first || !last || points.length < 2) return <span class="none">–</span>;
  const highest = Math.max(...points.map(([, depth]) => depth));
  const range = last[0] - first[0] || 1;
  const x = (at: number) => (((at - first[0]) / range) * WIDTH).toFixed(1);
  const y = (depth: number) => (HEIGHT - 1 - (depth / (highest || 1)) * (HEIGHT - 3)).toFixed(1);
  const line = points.map(([at, depth]) => `${x(at)},${y(depth)}`).join("L");
  const minutes = Math.max(1, Math.round(range / 60));
  const label = `Pending over the last ${minutes} min: ${count(last[1])} now, ${count(highest)} at most`;
  return (
    <svg class="sparkline" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={label}>
      <title>{label}</title>
      <path class="sparkline-area" d={`M${line}L${WIDTH},${HEIGHT}L0,${HEIGHT}Z`} />
      <path class="sparkline-line" d={`M${line}`} vector-effect="non-scaling-stroke" />
    </svg>
  );
}
