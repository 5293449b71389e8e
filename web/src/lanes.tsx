// Two runs of one prompt side by side: speculation on against off. Shared by the page and by exported races.

import type { ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";
import { Answer } from "./answer";
import { AcceptanceChart, RateChart } from "./charts";
import { SameBadge, Scrubber, speedup } from "./inspect";
import { acceptanceByPosition, compare, decimal, rateOverTime, speculationText, summarise, type Run } from "./model";

export function Lanes({ on, off, marks = true, children }: {
  on: Run;
  off: Run;
  marks?: boolean;
  children?: ComponentChildren;
}) {
  const [time, setTime] = useState<number | null>(null);
  const over = on.status !== "running" && off.status !== "running";
  const max = Math.max(...[on, off].map((run) => run.tokens[run.tokens.length - 1]?.at ?? 0));
  const now = over ? time : null;
  const shown = (run: Run) => (now === null ? run.tokens : run.tokens.filter((token) => token.at <= now));
  const counts = on.tokens.length + off.tokens.length;
  const lines = useMemo(
    () => [
      { name: "on", colour: "--accent", points: rateOverTime(shown(on)) },
      { name: "off", colour: "--target", points: rateOverTime(shown(off)) },
    ],
    [counts, now, on, off],
  );
  const shares = useMemo(() => acceptanceByPosition(shown(on)), [counts, now, on]);
  const times = over ? speedup(on, off) : null;
  const { differs } = compare(on, off);
  return (
    <>
      <div class="race-head">
        <span role="status">
          <SameBadge on={on} off={off} />
        </span>
        {times !== null && (
          <span class="speedup">
            <strong>{times.toFixed(2)}×</strong> the tokens per second
          </span>
        )}
        <span class="muted">
          temperature {on.settings.temperature || "default"}, seed {on.settings.seed}
        </span>
        {children}
      </div>
      <div class="lanes">
        <Lane title="Speculation on" run={on} tokens={shown(on)} differs={differs} live={now === null} marks={marks} />
        <Lane title="Speculation off" run={off} tokens={shown(off)} differs={differs} live={now === null} marks={marks} />
      </div>
      {["suffix", "composite"].includes(on.speculation?.method ?? "") && (
        <p class="muted">
          This drafter remembers the answers of this server: a prompt that was answered before runs faster than a new one.
        </p>
      )}
      <section class="card" aria-label="Replay and figures">
        <h3>Replay both from their start, at their real speed</h3>
        <Scrubber
          label="Time"
          value={now ?? max}
          max={over ? max : 0}
          unit={100}
          playMs={100}
          describe={over ? `${((now ?? max) / 1000).toFixed(1)} s of ${(max / 1000).toFixed(1)} s` : "When both are done"}
          onChange={(to) => setTime(to >= max ? null : to)}
        />
        <div class="charts">
          <RateChart
            lines={lines}
            summary={`Tokens per second: on ${decimal(summarise(on.tokens).tokens_per_second)}, off ${decimal(summarise(off.tokens).tokens_per_second)}`}
          />
          <AcceptanceChart shares={shares} />
        </div>
      </section>
    </>
  );
}

function Lane({ title, run, tokens, differs, live, marks }: {
  title: string;
  run: Run;
  tokens: Run["tokens"];
  differs: number;
  live: boolean;
  marks: boolean;
}) {
  const figures = summarise(tokens);
  const waiting = run.status === "running" && !tokens.length;
  const { speculation } = run;
  return (
    <section class="card lane" aria-label={title}>
      <header class="card-head">
        <h2>{title}</h2>
        <span class="rate">
          <strong>{decimal(figures.tokens_per_second)}</strong> tokens/s
        </span>
      </header>
      <p class="muted">
        {figures.tokens} tokens in {figures.steps} passes
        {speculation && ` · ${speculation.active ? "" : "inactive because "}${speculationText(speculation)}`}
      </p>
      {waiting && <p class="muted">Waiting for its turn …</p>}
      <Answer
        run={run}
        tokens={tokens}
        label={title}
        marks={marks}
        cursor={live && run.status === "running" && !waiting}
        differs={differs}
      />
      {run.problem && (
        <p class="problem-line" role="alert">
          <strong>{run.problem.title}.</strong> {run.problem.detail}
        </p>
      )}
    </section>
  );
}
