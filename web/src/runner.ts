// Runs requests and keeps what comes of them; tells the page, at most once a frame, that something changed.

import { body, RequestError, stream } from "./api";
import type { Prompt, Run, Settings } from "./model";

export interface Job {
  run: Run;
  stop: () => void;
  finished: Promise<void>;
}

export function start(
  name: string,
  model: string,
  prompt: Prompt,
  settings: Settings,
  key: string,
  changed: () => void,
): Job {
  const run: Run = {
    name,
    model,
    prompt,
    settings: { ...settings },
    tokens: [],
    steps: [],
    reasoned: false,
    status: "running",
    finish: null,
    problem: null,
    speculation: null,
    started: new Date().toISOString(),
    elapsed: 0,
  };
  const controller = new AbortController();
  const finished = follow(run, key, controller.signal, changed);
  return { run, stop: () => controller.abort(), finished };
}

async function follow(run: Run, key: string, signal: AbortSignal, changed: () => void): Promise<void> {
  const began = performance.now();
  try {
    for await (const chunk of stream(body(run.model, run.prompt, run.settings), run.prompt.kind, key, signal)) {
      const at = performance.now() - began;
      for (const detail of chunk.details) run.tokens.push({ ...detail, at });
      run.finish = chunk.finish ?? run.finish;
      run.steps = chunk.steps ?? run.steps;
      run.reasoned ||= chunk.reasoned;
      run.speculation = chunk.speculation ?? run.speculation;
      run.elapsed = at;
      changed();
    }
    run.status = "done";
  } catch (error) {
    run.status = signal.aborted ? "stopped" : "failed";
    if (!signal.aborted) {
      run.problem =
        error instanceof RequestError
          ? error.problem
          : { title: "The server's answer could not be read", detail: String(error) };
    }
  }
  run.elapsed = Math.max(run.elapsed, performance.now() - began);
  changed();
}
