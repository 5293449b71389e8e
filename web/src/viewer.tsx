// The page inside an exported file: it shows what the file holds and asks nobody for anything.

import "uplot/dist/uPlot.min.css";
import "./style.css";
import { render } from "preact";
import { useState } from "preact/hooks";
import { Answer } from "./answer";
import { Inspector } from "./inspect";
import { Lanes } from "./lanes";
import { speculationText, type Run, type Settings } from "./model";
import { Legend } from "./tokens";

const NAMES: [keyof Settings, string][] = [
  ["temperature", "temperature"],
  ["top_p", "top_p"],
  ["seed", "seed"],
  ["max_tokens", "max tokens"],
  ["method", "drafter"],
  ["k", "K"],
];

function Prompt({ run }: { run: Run }) {
  const parts =
    run.prompt.kind === "chat"
      ? run.prompt.messages.map((message) => ({ name: message.role, text: message.content }))
      : [{ name: "prompt", text: run.prompt.text }];
  const settings = NAMES.filter(([key]) => run.settings[key] !== "").map(([key, name]) => `${name} ${run.settings[key]}`);
  const { speculation } = run;
  return (
    <section class="card" aria-label="Prompt">
      {parts.map((part, index) => (
        <div key={index} class="turn">
          <span class="who">{part.name}</span>
          <p class="said">{part.text}</p>
        </div>
      ))}
      <p class="muted">
        {run.model} · {new Date(run.started).toLocaleString()} · {settings.join(" · ")}
        {speculation &&
          ` · speculation ${speculation.active ? "active: " : "inactive because "}${speculationText(speculation)}`}
      </p>
    </section>
  );
}

function Viewer({ runs }: { runs: Run[] }) {
  const [cut, setCut] = useState<number | null>(null);
  const [run, other] = runs;
  if (!run) return null;
  return (
    <>
      <header class="top">
        <h1>Outrider</h1>
        <span class="muted">exported {other ? "race" : "run"}</span>
      </header>
      <main class="page single">
        <Prompt run={run} />
        {other ? (
          <Lanes on={run} off={other} />
        ) : (
          <>
            <section class="card" aria-label="Answer">
              <Answer
                run={run}
                label="Answer"
                tokens={cut === null ? run.tokens : run.tokens.filter((token) => token.step <= cut)}
              />
            </section>
            <Inspector run={run} cut={cut} onCut={setCut} />
          </>
        )}
        <Legend />
      </main>
    </>
  );
}

const runs = JSON.parse(document.getElementById("runs")!.textContent!) as Run[];
render(<Viewer runs={runs} />, document.getElementById("app")!);
