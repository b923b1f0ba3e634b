/** Lines over time, drawn by uPlot. */
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { dark } from "../theme";
import { hourAndMinute } from "../time";
import { rate } from "../wording";

const HEIGHT = 170;
/** The steps of the axis: there are no half tasks. */
const WHOLE = [0, 1, 2, 3, 4, 5, 6].flatMap((zeros) => [1, 2, 5].map((digit) => digit * 10 ** zeros));

export interface ChartOptions {
  title: string;
  /** For those who do not see it: what there is to see. */
  description: string;
  /** The name of a colour among the tokens, such as `--chart-1`. */
  colour: string;
  /** Seconds since 1970. */
  times: readonly number[];
  values: readonly (number | null)[];
}

export function Chart({ title, description, colour, times, values }: ChartOptions) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const isDark = dark.value;

  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const made = new uPlot(settings(element, title, colour), [[], []], element);
    plot.current = made;
    const sizes = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HEIGHT }));
    sizes.observe(element);
    return () => {
      sizes.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [title, colour, isDark]);

  useEffect(() => {
    plot.current?.setData([[...times], [...values]]);
  }, [times, values, title, colour, isDark]);

  return (
    <figure class="chart">
      <figcaption>{title}</figcaption>
      <div ref={box} role="img" aria-label={description} />
    </figure>
  );
}

function settings(element: HTMLElement, title: string, colour: string): uPlot.Options {
  const line = resolved(element, colour);
  const axis: uPlot.Axis = {
    stroke: resolved(element, "--fg-muted"),
    grid: { stroke: resolved(element, "--border-muted"), width: 1 },
    ticks: { show: false },
    font: `11px ${getComputedStyle(element).fontFamily}`,
  };
  return {
    width: element.clientWidth,
    height: HEIGHT,
    cursor: { y: false, sync: { key: "queue" }, drag: { x: false, y: false }, points: { size: 7 } },
    legend: { live: true, markers: { show: false } },
    scales: { y: { range: (_plot, _low, high) => [0, Math.max(1, high * 1.1)] } },
    axes: [
      { ...axis, space: 60, size: 26, values: (_plot, ticks) => ticks.map(hourAndMinute) },
      { ...axis, size: 48, incrs: WHOLE, values: (_plot, ticks) => ticks.map((tick) => rate(tick)) },
    ],
    series: [
      // Until somebody points at a minute, the last one is told.
      { label: "At", value: (plot, at) => hourAndMinute(at ?? plot.data[0].at(-1) ?? 0) },
      {
        label: title,
        stroke: line,
        fill: `color-mix(in oklch, ${line} 14%, transparent)`,
        width: 1.5,
        // A line needs two minutes: one that stands alone is a point.
        points: { show: true, size: 5, fill: line, filter: (plot) => alone(Array.from(plot.data[1] ?? [])) },
        value: (plot, value, _series, index) => rate(index === null ? (plot.data[1]?.at(-1) ?? null) : value),
      },
    ],
  };
}

/** Where a value is known, and neither the one before nor the one after it. */
function alone(values: readonly (number | null | undefined)[]): number[] {
  return values.flatMap((value, at) => (value != null && values[at - 1] == null && values[at + 1] == null ? [at] : []));
}

/** A colour of the theme as a canvas takes it, which knows neither variables nor light-dark(). */
function resolved(element: HTMLElement, name: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  element.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}
