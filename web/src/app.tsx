// The playground: what is running, what was said, and which of the three views is open.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { describeServer, RequestError, type Server } from "./api";
import { save } from "./export";
import { Inspector } from "./inspect";
import { Lanes } from "./lanes";
import { answerOf, type Message, type Problem, type Prompt, type Run } from "./model";
import { Announcer, Banner, TurnCard, type Turn } from "./parts";
import { start, type Job } from "./runner";
import { DEFAULTS, SettingsCard } from "./settings";
import { Legend } from "./tokens";
import { NAMES, VIEWS, Welcome, type View } from "./views";

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

  const loading = trouble?.status === 503;
  useEffect(() => {
    if (!loading) return;
    const timer = setInterval(() => void connect(), 1000);
    return () => clearInterval(timer);
  }, [loading, connect]);

  const promptOf = (said: string, before: Turn[], kind: Prompt["kind"]): Prompt => {
    if (kind === "completion") return { kind, text: said };
    const messages: Message[] = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
    for (const turn of before) {
      if (!turn.run.tokens.length) continue;
      messages.push({ role: "user", content: turn.said }, { role: "assistant", content: answerOf(turn.run) });
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
        name, model: found.model, prompt, settings: shared, tokens: [], steps: [], reasoned: false, status: "running",
        finish: null, problem: null, speculation: null, started: new Date().toISOString(), elapsed: 0,
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

  const form = (
    <form
      key={view}
      class={view === "race" ? "composer card" : "composer card bottom"}
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
        {/* Two elements: one that turned into a submit button while it is clicked would submit. */}
        {busy ? (
          <button key="stop" type="button" class="primary stop" onClick={stop}>
            Stop
          </button>
        ) : (
          <button key="send" type="submit" class="primary" disabled={!drafts[view].trim()}>
            {view === "race" ? "Race" : view === "chat" ? "Send" : "Complete"}
          </button>
        )}
      </div>
    </form>
  );

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
        speculation={focus?.speculation ?? server?.speculation ?? null}
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
          {view === "race" && form}
          {empty && (
            <Welcome
              view={view}
              onExample={(example) => {
                setDrafts((all) => ({ ...all, [view]: example }));
                composer.current?.focus();
              }}
            />
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
            <Lanes on={race.on} off={race.off} marks={marks}>
              <button type="button" class="quiet" disabled={busy} onClick={() => save([race.on, race.off])}>
                Export HTML
              </button>
            </Lanes>
          )}
          {view !== "race" && form}
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
