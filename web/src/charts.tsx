// Two small charts over uPlot: tokens per second over time, and acceptance by place in the draft.

import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";

export interface Line {
  name: string;
  colour: string;
  points: [number[], number[]];
}

const token = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Counts up when the colour scheme changes: a canvas does not follow style sheets. */
function useScheme(): number {
  const [changes, setChanges] = useState(0);
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const changed = (): void => setChanges((count) => count + 1);
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, []);
  return changes;
}

function useChart(
  height: number,
  structure: string,
  options: () => Pick<uPlot.Options, "series" | "axes" | "scales">,
  data: uPlot.AlignedData,
) {
  const box = useRef<HTMLDivElement>(null);
  const chart = useRef<uPlot | null>(null);
  const latest = useRef(data);
  latest.current = data;
  const scheme = useScheme();
  useEffect(() => {
    const element = box.current!;
    const width = (): number => Math.max(160, element.clientWidth);
    const made = new uPlot(
      { width: width(), height, legend: { show: false }, cursor: { show: false }, ...options() },
      latest.current,
      element,
    );
    chart.current = made;
    const resize = new ResizeObserver(() => made.setSize({ width: width(), height }));
    resize.observe(element);
    return () => {
      resize.disconnect();
      made.destroy();
      chart.current = null;
    };
  }, [scheme, height, structure]);
  useEffect(() => chart.current?.setData(data), [data]);
  return box;
}

const axis = (extra: Partial<uPlot.Axis>): uPlot.Axis => ({
  stroke: token("--muted"),
  font: "11px system-ui, sans-serif",
  grid: { stroke: token("--line"), width: 1 },
  ticks: { show: false },
  ...extra,
});

export function RateChart({ lines, summary }: { lines: Line[]; summary: string }) {
  const tables = lines.map((line) => line.points as uPlot.AlignedData);
  const data = lines.length === 1 ? tables[0]! : uPlot.join(tables);
  const box = useChart(
    150,
    lines.map((line) => line.name).join("|"),
    () => ({
      scales: { x: { time: false, range: (_, __, max) => [0, Math.max(max ?? 0, 1)] }, y: { range: (_, __, max) => [0, Math.max(max ?? 0, 1) * 1.1] } },
      axes: [axis({ size: 26, values: (_, ticks) => ticks.map((tick) => `${tick} s`) }), axis({ size: 40 })],
      series: [
        {},
        ...lines.map((line, index) => ({
          label: line.name,
          stroke: token(line.colour),
          width: 2,
          spanGaps: true,
          points: { show: false },
          ...(index ? { dash: [6, 4] } : {}),
        })),
      ],
    }),
    data,
  );
  return (
    <figure class="chart">
      <figcaption>
        Tokens per second
        {lines.length > 1 &&
          lines.map((line, index) => (
            <span key={line.name} class={`key line-${index}`}>
              {line.name}
            </span>
          ))}
      </figcaption>
      <div ref={box} role="img" aria-label={summary} />
    </figure>
  );
}

export function AcceptanceChart({ shares }: { shares: number[] }) {
  const places = shares.map((_, index) => index + 1);
  const box = useChart(
    150,
    "acceptance",
    () => ({
      scales: { x: { time: false, range: (_, __, max) => [0.4, Math.max(max ?? 1, 4) + 0.6] }, y: { range: [0, 1] } },
      axes: [
        axis({ size: 26, grid: { show: false }, incrs: [1], values: (_, ticks) => ticks.map((tick) => `${tick}`) }),
        axis({ size: 48, incrs: [0.25, 0.5], values: (_, ticks) => ticks.map((tick) => `${Math.round(100 * tick)} %`) }),
      ],
      series: [
        {},
        {
          stroke: token("--accepted"),
          fill: token("--accepted-fill"),
          paths: uPlot.paths.bars!({ size: [0.6, 48] }),
          points: { show: false },
        },
      ],
    }),
    [places, shares],
  );
  const words = shares.map((share, index) => `draft ${index + 1}: ${Math.round(100 * share)} %`).join(", ");
  return (
    <figure class="chart">
      <figcaption>Acceptance by place in the draft</figcaption>
      <div ref={box} role="img" aria-label={words || "No drafts yet"} />
    </figure>
  );
}
