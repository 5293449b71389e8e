// The playground: what is running, what was said, and which of the three views is open.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { describeServer, RequestError, type Server } from "./api";
import { save } from "./export";
import { Inspector } from "./inspect";
import { Lanes } from "./lanes";
import { speculationNote, summarise, textOf, type Message, type Problem, type Prompt, type Run } from "./model";
import { start, type Job } from "./runner";
import { DEFAULTS, SettingsCard } from "./settings";
import { Legend, Tokens } from "./tokens";

const VIEWS = ["chat", "completion", "race"] as const;
type View = (typeof VIEWS)[number];
const NAMES: Record<View, string> = { chat: "Chat", completion: "Completion", race: "Race" };

const EXAMPLES: Record<View, string[]> = {
  chat: [
    "Write a Python function that checks whether a word is a palindrome, then repeat it with type hints.",
    "List the days of the week twice, one per line.",
  ],
  completion: ["The capital of France is", "def fibonacci(n):\n    "],
  race: [
    "Write a Python class Stack with push, pop and peek, then write it once more with docstrings.",
    "Count from one to thirty in words.",
  ],
};

interface Turn {
  said: string;
  run: Run;
}

interface Race {
  on: Run;
  off: Run;
}

export function App() {
  const [view, setView] = useState<View>("chat");
  const [settings, setSettings] = useState(DEFAULTS);
  const [apiKey, setApiKey] = useState("");
  const [server, setServer] = useState<Server | null>(null);
  const [trouble, setTrouble] = useState<Problem | null>(null);
  const [turns, setTurns] = useState<Record<"chat" | "completion", Turn[]>>({ chat: [], completion: [] });
  const [race, setRace] = useState<Race | null>(null);
  const [drafts, setDrafts] = useState<Record<View, string>>({ chat: "", completion: "", race: "" });
  const [cut, setCut] = useState<number | null>(null);
  const [inspected, setInspected] = useState<Run | null>(null);
  const [busy, setBusy] = useState(false);
  const [marks, setMarks] = useState(true);
  const [settingsOpen, setSettingsOpen] = useState(() => matchMedia("(min-width: 960px)").matches);
  const [, setTick] = useState(0);
  const job = useRef<Job | null>(null);
  const stopped = useRef(false);
  const keyField = useRef<HTMLInputElement>(null);
  const composer = useRef<HTMLTextAreaElement>(null);
  const frame = useRef(0);

  const changed = useCallback(() => {
    if (!frame.current) {
      frame.current = requestAnimationFrame(() => {
        frame.current = 0;
        setTick((tick) => tick + 1);
      });
    }
  }, []);

  const connect = useCallback(async (): Promise<Server | null> => {
    try {
      const found = await describeServer(apiKey);
      setServer(found);
      setTrouble(null);
      if (!found.chat) setView((now) => (now === "chat" ? "completion" : now));
      return found;
    } catch (error) {
      setServer(null);
      const problem =
        error instanceof RequestError
          ? error.problem
          : { title: "The server’s answer could not be read", detail: String(error) };
      setTrouble(problem);
      if (problem.status === 401) setSettingsOpen(true);
      return null;
    }
  }, [apiKey]);

  useEffect(() => {
    const timer = setTimeout(() => void connect(), apiKey ? 400 : 0);
    return () => clearTimeout(timer);
  }, [connect]);

  const promptOf = (said: string, before: Turn[], kind: Prompt["kind"]): Prompt => {
    if (kind === "completion") return { kind, text: said };
    const messages: Message[] = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
    for (const turn of before) {
      if (!turn.run.tokens.length) continue;
      messages.push({ role: "user", content: turn.said }, { role: "assistant", content: textOf(turn.run) });
    }
    return { kind, messages: [...messages, { role: "user", content: said }] };
  };

  const follow = async (next: Job): Promise<Run> => {
    job.current = next;
    await next.finished;
    const status = next.run.problem?.status;
    if (status === 401) setSettingsOpen(true);
    return next.run;
  };

  const begin = async (): Promise<Server | null> => {
    setCut(null);
    stopped.current = false;
    return server ?? connect();
  };

  const send = async (said: string, before: Turn[]): Promise<void> => {
    if (view === "race" || busy || !said.trim()) return;
    setBusy(true);
    try {
      const found = await begin();
      if (!found) return;
      const next = start(NAMES[view], found.model, promptOf(said, before, view), settings, apiKey, changed);
      setTurns((all) => ({ ...all, [view]: [...before, { said, run: next.run }] }));
      setInspected(next.run);
      setDrafts((all) => ({ ...all, [view]: view === "chat" ? "" : said }));
      await follow(next);
    } finally {
      setBusy(false);
    }
  };

  const runRace = async (said: string): Promise<void> => {
    if (busy || !said.trim()) return;
    setBusy(true);
    try {
      const found = await begin();
      if (!found) return;
      const seed = settings.seed.trim() || String(Math.floor(Math.random() * 2 ** 31));
      const shared = { ...settings, seed };
      const method = settings.method === "off" ? "" : settings.method;
      const on = { ...shared, method, k: Number(settings.k) === 0 ? "" : settings.k };
      const prompt = promptOf(said, [], found.chat ? "chat" : "completion");
      const pending = (name: string): Run => ({
        name, model: found.model, prompt, settings: shared, tokens: [], status: "running", finish: null,
        problem: null, speculation: "", started: new Date().toISOString(), elapsed: 0,
      });
      const first = start("Speculation on", found.model, prompt, on, apiKey, changed);
      setRace({ on: first.run, off: pending("Speculation off") });
      const done = await follow(first);
      if (done.status !== "done") {
        setRace({ on: done, off: { ...pending("Speculation off"), status: "stopped" } });
        return;
      }
      const second = start("Speculation off", found.model, prompt, { ...shared, method: "off", k: "" }, apiKey, changed);
      setRace({ on: done, off: second.run });
      if (stopped.current) second.stop();
      await follow(second);
    } finally {
      setBusy(false);
    }
  };

  const submit = (): void => {
    if (view === "race") void runRace(drafts.race);
    else void send(drafts[view], view === "chat" ? turns.chat : []);
  };
  const stop = (): void => {
    stopped.current = true;
    job.current?.stop();
  };
  const retry = (): void => {
    if (view === "race") return void runRace(drafts.race);
    const all = turns[view];
    const last = all[all.length - 1];
    if (last) void send(last.said, all.slice(0, -1));
  };
  const clear = (): void => {
    if (view === "race") setRace(null);
    else setTurns((all) => ({ ...all, [view]: [] }));
    setInspected(null);
    setCut(null);
    composer.current?.focus();
  };
  const open = (next: View): void => {
    setView(next);
    setCut(null);
    const all = next === "race" ? [] : turns[next];
    setInspected(all[all.length - 1]?.run ?? null);
  };

  const shownTurns = view === "race" ? [] : turns[view];
  const latest = view === "race" ? null : (shownTurns[shownTurns.length - 1]?.run ?? null);
  const focus = inspected ?? latest;
  const off = settings.method === "off" || (settings.k.trim() !== "" && Number(settings.k) === 0);
  const empty = view === "race" ? race === null : shownTurns.length === 0;

  return (
    <>
      <header class="top">
        <h1>Outrider</h1>
        <span class="muted model">{server ? server.model : "playground"}</span>
        <div class="tabs" role="tablist" aria-label="What to run" onKeyDown={(event) => tabKeys(event, view, open)}>
          {VIEWS.map((each) => (
            <button
              key={each}
              id={`tab-${each}`}
              type="button"
              role="tab"
              aria-selected={view === each}
              aria-controls="work"
              tabIndex={view === each ? 0 : -1}
              disabled={(busy && view !== each) || (each === "chat" && server?.chat === false)}
              title={each === "chat" && server?.chat === false ? "This model has no chat template" : undefined}
              onClick={() => open(each)}
            >
              {NAMES[each]}
            </button>
          ))}
        </div>
      </header>
      <Banner
        server={server}
        speculation={focus?.speculation || server?.speculation || ""}
        off={off && view !== "race"}
        trouble={trouble}
        onRetry={() => void connect()}
        onKey={() => {
          setSettingsOpen(true);
          requestAnimationFrame(() => keyField.current?.focus());
        }}
      />
      <main class="page" aria-busy={busy}>
        <div class="work" id="work" role="tabpanel" aria-labelledby={`tab-${view}`}>
          {empty && (
            <section class="card welcome">
              <h2>{WELCOME[view].title}</h2>
              <p class="muted">{WELCOME[view].text}</p>
              <Legend />
              <div class="examples">
                {EXAMPLES[view].map((example) => (
                  <button
                    key={example}
                    type="button"
                    class="example"
                    onClick={() => {
                      setDrafts((all) => ({ ...all, [view]: example }));
                      composer.current?.focus();
                    }}
                  >
                    {example}
                  </button>
                ))}
              </div>
            </section>
          )}
          {shownTurns.map((turn, index) => (
            <TurnCard
              key={index}
              turn={turn}
              kind={view === "completion" ? "completion" : "chat"}
              cut={turn.run === focus ? cut : null}
              marks={marks}
              chosen={turn.run === focus}
              several={shownTurns.length > 1}
              last={index === shownTurns.length - 1 && !busy}
              onChoose={() => {
                setCut(null);
                setInspected(turn.run);
              }}
              onRetry={retry}
            />
          ))}
          {view === "race" && race && (
            <Lanes on={race.on} off={race.off}>
              <button type="button" class="quiet" disabled={busy} onClick={() => save([race.on, race.off])}>
                Export HTML
              </button>
            </Lanes>
          )}
          <form
            class="composer card"
            onSubmit={(event) => {
              event.preventDefault();
              if (!busy) submit();
            }}
          >
            <label class="visually-hidden" for="prompt">
              {view === "completion" ? "Text to complete" : "Message"}
            </label>
            <textarea
              id="prompt"
              ref={composer}
              rows={view === "completion" ? 4 : 2}
              value={drafts[view]}
              placeholder={view === "completion" ? "Text to complete" : "Message"}
              onInput={(event) => setDrafts((all) => ({ ...all, [view]: event.currentTarget.value }))}
              onKeyDown={(event) => {
                if (event.key === "Enter" && !event.shiftKey && !event.isComposing && view !== "completion") {
                  event.preventDefault();
                  if (!busy) submit();
                }
              }}
            />
            <div class="composer-row">
              <span class="muted hint">
                {view === "completion" ? "Enter makes a new line" : "Enter sends, Shift+Enter makes a new line"}
              </span>
              <label class="check">
                <input type="checkbox" checked={marks} onChange={(event) => setMarks(event.currentTarget.checked)} /> Marks
              </label>
              {!empty && (
                <button type="button" class="quiet" disabled={busy} onClick={clear}>
                  Clear
                </button>
              )}
              {busy ? (
                <button type="button" class="primary stop" onClick={stop}>
                  Stop
                </button>
              ) : (
                <button type="submit" class="primary" disabled={!drafts[view].trim()}>
                  {view === "race" ? "Race" : view === "chat" ? "Send" : "Complete"}
                </button>
              )}
            </div>
          </form>
          {!empty && <Legend />}
          <Announcer run={view === "race" ? null : latest} busy={busy} />
        </div>
        <aside class="side" aria-label="Settings and figures">
          <details
            class="card"
            open={settingsOpen}
            onToggle={(event) => setSettingsOpen(event.currentTarget.open)}
          >
            <summary>Settings</summary>
            <SettingsCard
              settings={settings}
              apiKey={apiKey}
              server={server}
              keyField={keyField}
              onChange={setSettings}
              onKey={setApiKey}
              chat={view !== "completion"}
            />
          </details>
          {focus && view !== "race" && (
            <Inspector run={focus} cut={cut} onCut={setCut}>
              <button
                type="button"
                class="quiet"
                disabled={focus.status === "running" || !focus.tokens.length}
                onClick={() => save([focus])}
              >
                Export HTML
              </button>
            </Inspector>
          )}
        </aside>
      </main>
    </>
  );
}

const WELCOME: Record<View, { title: string; text: string }> = {
  chat: {
    title: "See each token being made",
    text:
      "Something cheap drafts a few tokens, and the model checks them all in one pass. Every token of the answer is " +
      "marked by how it came about; point at one to see how probable it was, and what it replaced.",
  },
  completion: {
    title: "Continue a text",
    text: "The model goes on from exactly what you write, without a chat template.",
  },
  race: {
    title: "The same prompt and seed, with speculation on and off",
    text:
      "The lanes run one after the other, so that neither slows the other down. Then both can be replayed side by " +
      "side at their real speed. The tokens must be the same; only the time may differ.",
  },
};

function tabKeys(event: KeyboardEvent, view: View, open: (view: View) => void): void {
  const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
  if (!step) return;
  event.preventDefault();
  const next = VIEWS[(VIEWS.indexOf(view) + step + VIEWS.length) % VIEWS.length]!;
  const button = document.getElementById(`tab-${next}`) as HTMLButtonElement;
  if (button.disabled) return;
  open(next);
  button.focus();
}

function Banner({ server, speculation, off, trouble, onRetry, onKey }: {
  server: Server | null;
  speculation: string;
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
  return speculation ? <Note {...speculationNote(speculation)} /> : <div class="banner">Ready: {server.model}</div>;
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

function TurnCard({ turn, kind, cut, marks, chosen, several, last, onChoose, onRetry }: {
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
        <Tokens
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
function Announcer({ run, busy }: { run: Run | null; busy: boolean }) {
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
