// What a run looks like from close by: figures, a scrubber, charts. Shared by the page and by exported runs.

import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { AcceptanceChart, RateChart } from "./charts";
import {
  acceptanceByPosition, compare, decimal, describePass, numSteps, passOf, rateOverTime, summarise, type Run, type Token,
} from "./model";

export function Scrubber({ label, value, max, unit, playMs, describe, onChange }: {
  label: string;
  value: number;
  max: number;
  /** By how much a press of a button moves it. */
  unit: number;
  /** Milliseconds for each unit when playing. */
  playMs: number;
  describe: string;
  onChange: (value: number) => void;
}) {
  const [playing, setPlaying] = useState(false);
  const place = useRef(value);
  place.current = value;
  useEffect(() => {
    if (!playing) return;
    let last = performance.now();
    const timer = setInterval(() => {
      const now = performance.now();
      const next = Math.min(max, place.current + (unit * (now - last)) / playMs);
      last = now;
      onChange(next);
      if (next >= max) setPlaying(false);
    }, Math.min(playMs, 40));
    return () => clearInterval(timer);
  }, [playing, max, unit, playMs]);
  const go = (to: number): void => {
    setPlaying(false);
    onChange(Math.max(0, Math.min(max, to)));
  };
  const play = (): void => {
    if (!playing && value >= max) onChange(0);
    setPlaying(!playing);
  };
  const idle = max === 0;
  return (
    <div class="scrubber">
      <div class="scrubber-row">
        <button type="button" class="icon" disabled={idle} onClick={() => go(Math.ceil(value) - unit)} aria-label="Back">
          ‹
        </button>
        <button type="button" class="icon" disabled={idle} onClick={play} aria-label={playing ? "Pause" : "Play"}>
          {playing ? "❚❚" : "▶"}
        </button>
        <button type="button" class="icon" disabled={idle} onClick={() => go(Math.floor(value) + unit)} aria-label="Forward">
          ›
        </button>
        <input
          type="range"
          aria-label={label}
          aria-valuetext={describe}
          min={0}
          max={max}
          step={unit === 1 ? 1 : "any"}
          value={Math.floor(value)}
          disabled={idle}
          onInput={(event) => go(Number(event.currentTarget.value))}
        />
      </div>
      <p class="muted scrubber-note">{describe}</p>
    </div>
  );
}

export function describeStep(run: Run, step: number): string {
  const { tokens } = run;
  const total = numSteps(tokens);
  if (!total) return "No steps yet";
  if (step < 1) return `Before the first of ${total} steps`;
  const made = tokens.filter((token) => token.step === step);
  const accepted = made.filter((token) => token.source === "accepted").length;
  const last = made[made.length - 1];
  const end = last && last.source !== "accepted" ? last.source : "cut by the end";
  const pass = passOf(run, step);
  const plain = pass ? `one token, ${describePass(pass)}` : "one token, no drafts";
  const drafted = pass ? `${pass.drafter} drafted, K = ${pass.drafted}; ` : "";
  return `Step ${step} of ${total}: ${last?.source === "target" ? plain : `${drafted}${accepted} accepted, then ${end}`}`;
}

export function Figures({ tokens, run }: { tokens: Token[]; run: Run }) {
  const figures = summarise(tokens);
  const items: [string, string][] = [
    ["tokens/s", decimal(figures.tokens_per_second)],
    ["tokens", String(figures.tokens)],
    ["passes of the model", String(figures.steps)],
    ["tokens per drafted pass", decimal(figures.acceptance_length, 2)],
    ["first token", figures.first_token_ms === null ? "–" : `${Math.round(figures.first_token_ms)} ms`],
    ["ended by", run.status === "running" ? "…" : run.status === "done" ? (run.finish ?? "–") : run.status],
  ];
  return (
    <dl class="figures">
      {items.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** The run's figures and charts; `cut` is the last step shown, null for all. */
export function Inspector({ run, cut, onCut, children }: {
  run: Run;
  cut: number | null;
  onCut: (cut: number | null) => void;
  children?: ComponentChildren;
}) {
  const count = run.tokens.length;
  const shown = cut === null ? run.tokens : run.tokens.filter((token) => token.step <= cut);
  const steps = numSteps(run.tokens);
  const rate = useMemo(() => rateOverTime(shown), [count, cut, run]);
  const shares = useMemo(() => acceptanceByPosition(shown), [count, cut, run]);
  const figures = summarise(shown);
  return (
    <section class="card" aria-label="This run">
      <header class="card-head">
        <h2>This run</h2>
        {children}
      </header>
      <Figures tokens={shown} run={run} />
      <h3>Step by step</h3>
      <Scrubber
        label="Step"
        value={cut ?? steps}
        max={run.status === "running" ? 0 : steps}
        unit={1}
        playMs={250}
        describe={describeStep(run, Math.floor(cut ?? steps))}
        onChange={(to) => onCut(to >= steps ? null : to)}
      />
      <RateChart
        lines={[{ name: "tokens/s", colour: "--accent", points: rate }]}
        summary={`Tokens per second, ${decimal(figures.tokens_per_second)} over the whole run`}
      />
      <AcceptanceChart shares={shares} />
    </section>
  );
}

export function SameBadge({ on, off }: { on: Run; off: Run }) {
  const { same, differs, complete } = compare(on, off);
  if (!on.tokens.length || !off.tokens.length) return <span class="verdict waiting">Waiting for both lanes</span>;
  if (differs >= 0) return <span class="verdict different">They differ from token {differs + 1} on</span>;
  if (complete) return <span class="verdict identical">✓ Identical: all {same} tokens</span>;
  return <span class="verdict waiting">The same so far: {same} tokens</span>;
}

/** How many times as fast `on` decodes as `off`; null until both have a rate. */
export function speedup(on: Run, off: Run): number | null {
  const [fast, slow] = [summarise(on.tokens).tokens_per_second, summarise(off.tokens).tokens_per_second];
  return fast !== null && slow !== null ? fast / slow : null;
}
