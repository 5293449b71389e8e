// A text whose tokens are marked by how they were made. One tab stop: arrow keys move from token to token.

import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { describePass, MEANING, passOf, percent, SOURCES, visible, type Run, type Token } from "./model";

interface Shown {
  index: number;
  left: number;
  top: number;
  bottom: number;
}

export function Tokens({ run, tokens, label, marks = true, cursor = false, differs = -1 }: {
  run: Run;
  tokens: Token[];
  label: string;
  marks?: boolean;
  cursor?: boolean;
  differs?: number;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [shown, setShown] = useState<Shown | null>(null);
  const [current, setCurrent] = useState(0);
  const tip = useId();
  const active = Math.min(current, tokens.length - 1);

  const show = (target: EventTarget | null): void => {
    const element = target instanceof Element ? target.closest<HTMLElement>("[data-index]") : null;
    if (!element) return;
    const area = element.getClientRects()[0] ?? element.getBoundingClientRect();
    setShown({ index: Number(element.dataset.index), left: area.left, top: area.top, bottom: area.bottom });
  };
  const hide = (): void => setShown(null);

  useEffect(() => {
    if (!shown) return;
    const escape = (event: KeyboardEvent): void => {
      if (event.key === "Escape") hide();
    };
    window.addEventListener("scroll", hide, true);
    window.addEventListener("keydown", escape);
    return () => {
      window.removeEventListener("scroll", hide, true);
      window.removeEventListener("keydown", escape);
    };
  }, [shown]);

  const move = (event: KeyboardEvent): void => {
    const places: Record<string, number> = {
      ArrowRight: active + 1,
      ArrowLeft: active - 1,
      Home: 0,
      End: tokens.length - 1,
    };
    const to = places[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const index = Math.max(0, Math.min(tokens.length - 1, to));
    setCurrent(index);
    const element = box.current?.querySelector<HTMLElement>(`[data-index="${index}"]`);
    element?.focus({ preventScroll: true });
    element?.scrollIntoView({ block: "nearest" });
    show(element ?? null);
  };

  useLayoutEffect(() => {
    if (cursor) follow(box.current);
  }, [cursor, tokens.length]);

  const token = shown ? tokens[shown.index] : undefined;
  return (
    <>
      <div
        ref={box}
        class={marks ? "tokens" : "tokens unmarked"}
        role="listbox"
        aria-label={`${label}: ${tokens.length} tokens; arrow keys go from one to the next`}
        onMouseOver={(event) => show(event.target)}
        onMouseLeave={hide}
        onFocusIn={(event) => show(event.target)}
        onFocusOut={hide}
        onClick={(event) => show(event.target)}
        onKeyDown={move}
      >
        {tokens.map((each, index) => (
          <span
            key={index}
            data-index={index}
            data-source={each.source}
            role="option"
            aria-selected={index === active}
            aria-label={`${visible(each.text, each.token_id)}, ${each.source}`}
            aria-describedby={shown?.index === index ? tip : undefined}
            tabIndex={index === active ? 0 : -1}
            onFocus={() => setCurrent(index)}
            class={`token ${each.source}${index === differs ? " differs" : ""}${each.text === "" ? " empty" : ""}${
              each.text.includes("\n") ? " newline" : ""
            }`}
          >
            {each.text}
          </span>
        ))}
        {cursor && <span class="cursor" aria-hidden="true" />}
      </div>
      {token && shown && <Tip id={tip} run={run} token={token} shown={shown} />}
    </>
  );
}

/** Keep the end of a growing text in view, unless the reader has scrolled away from it. */
function follow(box: HTMLElement | null): void {
  const end = box?.querySelector(".cursor")?.getBoundingClientRect();
  if (!box || !end) return;
  const lines = 5 * end.height;
  const inside = end.bottom - box.getBoundingClientRect().bottom;
  if (box.scrollHeight > box.clientHeight) {
    if (inside > 0 && inside < lines) box.scrollTop = box.scrollHeight;
    return;
  }
  const composer = document.querySelector(".composer.bottom")?.getBoundingClientRect().height ?? 0;
  const below = end.bottom + 40 - (window.innerHeight - composer);
  if (below > 0 && below < lines) window.scrollBy(0, below);
}

function Tip({ id, run, token, shown }: { id: string; run: Run; token: Token; shown: Shown }) {
  const box = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const { width, height } = element.getBoundingClientRect();
    const margin = 12;
    const left = Math.max(margin, Math.min(shown.left, document.documentElement.clientWidth - width - margin));
    const below = shown.bottom + 8;
    const top = below + height + margin > window.innerHeight ? Math.max(margin, shown.top - height - 8) : below;
    element.style.left = `${left}px`;
    element.style.top = `${top}px`;
  });
  const rejected = token.rejected;
  const pass = passOf(run, token.step);
  return (
    <div ref={box} id={id} role="tooltip" class="tip">
      <div class="tip-head">
        <code>{visible(token.text, token.token_id)}</code>
        <span class={`badge ${token.source}`}>{token.source}</span>
      </div>
      <p class="muted">
        {MEANING[token.source]} · step {token.step}
        {token.source === "accepted" && `, draft ${token.position + 1}`}
      </p>
      {pass && <p class="tip-pass">{describePass(pass)}</p>}
      <Bar name="Target" value={token.target_prob} />
      {(token.source === "accepted" || token.draft_prob !== null) && <Bar name="Draft" value={token.draft_prob} />}
      {token.acceptance_prob !== null && <Bar name="Acceptance" value={token.acceptance_prob} />}
      {rejected && (
        <div class="tip-rejected">
          <p>
            Rejected: <code class="struck">{visible(rejected.text, rejected.token_id)}</code>
          </p>
          <Bar name="Target" value={rejected.target_prob} />
          <Bar name="Draft" value={rejected.draft_prob} />
          <Bar name="Acceptance" value={rejected.acceptance_prob} />
        </div>
      )}
    </div>
  );
}

function Bar({ name, value }: { name: string; value: number | null }) {
  return (
    <div class="bar">
      <span>{name}</span>
      <span class="bar-track" aria-hidden="true">
        <span class="bar-fill" style={{ width: `${100 * (value ?? 0)}%` }} />
      </span>
      <span class="figure">{value === null ? "not given" : percent(value)}</span>
    </div>
  );
}

export function Legend() {
  return (
    <ul class="legend" aria-label="Marks of tokens">
      {SOURCES.map((source) => (
        <li key={source}>
          <span class={`token ${source}`}>{source}</span> <span class="muted">{MEANING[source]}</span>
        </li>
      ))}
    </ul>
  );
}
