// Parts of the page around the texts: the banner, one turn with what went wrong in it, and what is read out.

import { Answer } from "./answer";
import type { Server } from "./api";
import { speculationText, summarise, type Problem, type Prompt, type Run, type Speculation } from "./model";

export interface Turn {
  said: string;
  run: Run;
}

export function Banner({ server, speculation, off, trouble, onRetry, onKey }: {
  server: Server | null;
  speculation: Speculation | null;
  off: boolean;
  trouble: Problem | null;
  onRetry: () => void;
  onKey: () => void;
}) {
  if (trouble) {
    return (
      <div class="banner bad" role="alert">
        <span>
          <strong>{trouble.title}.</strong> {trouble.detail}
        </span>
        {trouble.status === 401 && (
          <button type="button" onClick={onKey}>
            Enter key
          </button>
        )}
        <button type="button" onClick={onRetry}>
          Try again
        </button>
      </div>
    );
  }
  if (!server) return <div class="banner">Asking the server what it is …</div>;
  if (off) {
    return <Note active={false} text="speculation is turned off in the settings here" />;
  }
  if (!speculation) return <div class="banner">Ready: {server.model}</div>;
  return <Note active={speculation.active} text={speculationText(speculation)} />;
}

function Note({ active, text }: { active: boolean; text: string }) {
  return (
    <div class={active ? "banner good" : "banner off"} role="status">
      <span class="dot" aria-hidden="true" />
      <span>
        {active ? "Speculation active: " : "Speculation inactive because "}
        <strong>{text}</strong>
      </span>
    </div>
  );
}

export function TurnCard({ turn, kind, cut, marks, chosen, several, last, onChoose, onRetry }: {
  turn: Turn;
  kind: Prompt["kind"];
  cut: number | null;
  marks: boolean;
  chosen: boolean;
  several: boolean;
  last: boolean;
  onChoose: () => void;
  onRetry: () => void;
}) {
  const { run, said } = turn;
  const tokens = cut === null ? run.tokens : run.tokens.filter((token) => token.step <= cut);
  return (
    <section class={several && chosen ? "card turn-card chosen" : "card turn-card"} aria-label={kind === "chat" ? "Turn" : "Completion"}>
      <div class="turn">
        <span class="who">{kind === "chat" ? "You" : "Text"}</span>
        <p class="said">{said}</p>
      </div>
      <div class="turn">
        <span class="who">{kind === "chat" ? "Model" : "Continued"}</span>
        <Answer
          run={run}
          tokens={tokens}
          label={kind === "chat" ? "Answer" : "Continuation"}
          marks={marks}
          cursor={run.status === "running" && cut === null}
        />
      </div>
      {run.status === "stopped" && <p class="muted">Stopped.</p>}
      {run.problem && (
        <div class="problem" role="alert">
          <span>
            <strong>{run.problem.title}.</strong> {run.problem.detail}
          </span>
          {last && (
            <button type="button" onClick={onRetry}>
              Try again
            </button>
          )}
        </div>
      )}
      {several && !chosen && (
        <button type="button" class="quiet" onClick={onChoose}>
          Inspect
        </button>
      )}
    </section>
  );
}

/** What a screen reader is told: the beginning and the end of a run, not each token. */
export function Announcer({ run, busy }: { run: Run | null; busy: boolean }) {
  let text = "";
  if (busy) text = "Generating";
  else if (run?.status === "done") {
    const { tokens, tokens_per_second: rate } = summarise(run.tokens);
    text = `Done: ${tokens} tokens${rate === null ? "" : ` at ${rate.toFixed(0)} tokens per second`}`;
  } else if (run?.status === "stopped") text = "Stopped";
  return (
    <p class="visually-hidden" role="status">
      {text}
    </p>
  );
}
