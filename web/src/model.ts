// What a run is, and every figure that is derived from its tokens. Knows nothing about the network or the page.

export const SOURCES = ["target", "accepted", "recovered", "bonus"] as const;
export type Source = (typeof SOURCES)[number];

export const MEANING: Record<Source, string> = {
  target: "made by the model alone, in a pass without drafts",
  accepted: "drafted, and accepted by the model",
  recovered: "put in place of a rejected draft",
  bonus: "added after all drafts were accepted",
};

export interface Rejected {
  token_id: number;
  text: string;
  target_prob: number;
  draft_prob: number | null;
  acceptance_prob: number;
}

export interface TokenDetail {
  token_id: number;
  text: string;
  source: Source;
  step: number;
  position: number;
  target_prob: number;
  draft_prob: number | null;
  acceptance_prob: number | null;
  rejected: Rejected | null;
}

/** One pass of the model: K, what came of it, who drafted, or why nobody did. Empty texts where the server gives none. */
export interface Step {
  drafted: number;
  accepted: number;
  drafter: string;
  why: string;
}

/** `at`: milliseconds from the sending of the request. */
export interface Token extends TokenDetail {
  at: number;
}

export interface Message {
  role: "system" | "user" | "assistant";
  content: string;
}

export type Prompt = { kind: "chat"; messages: Message[] } | { kind: "completion"; text: string };

export interface Settings {
  temperature: string;
  top_p: string;
  seed: string;
  max_tokens: string;
  k: string;
  method: string;
  system: string;
}

export interface Problem {
  title: string;
  detail: string;
  status?: number;
}

/** Which drafter is at work, or why none is, as the server says it. */
export interface Speculation {
  active: boolean;
  /** One line for people. */
  description: string;
  /** The drafter's name. */
  method: string | null;
  inactive_reason: string | null;
}

export type Status = "running" | "done" | "stopped" | "failed";

export interface Run {
  name: string;
  model: string;
  prompt: Prompt;
  settings: Settings;
  tokens: Token[];
  /** Pass by pass, once the answer is complete; else empty. */
  steps: Step[];
  /** The server has told a part of it as reasoning. */
  reasoned: boolean;
  status: Status;
  finish: string | null;
  problem: Problem | null;
  /** Null until the server has told. */
  speculation: Speculation | null;
  started: string;
  elapsed: number;
}

export interface Summary {
  tokens: number;
  steps: number;
  drafted_steps: number;
  accepted: number;
  counts: Record<Source, number>;
  first_token_ms: number | null;
  tokens_per_second: number | null;
  /** 1 + accepted drafts / drafted steps, as vLLM counts: the token that follows the drafts is included. */
  acceptance_length: number | null;
}

/** How many of `tokens`, from the first, are thoughts: up to their end mark and the white space after it. */
export function numThought(run: Run, tokens: Token[]): number {
  if (!run.reasoned) return 0;
  let text = "";
  let end = -1;
  for (const [index, token] of tokens.entries()) {
    text += token.text;
    if (end < 0) end = text.indexOf("</think>");
    if (end >= 0 && text.slice(end + "</think>".length).trim()) return index;
  }
  return tokens.length;
}

/** What the run has said, without its thoughts. */
export function answerOf(run: Run): string {
  const said = run.tokens.slice(numThought(run, run.tokens));
  return said.map((token) => token.text).join("");
}

export function numSteps(tokens: Token[]): number {
  return tokens.length ? tokens[tokens.length - 1]!.step : 0;
}

export function summarise(tokens: Token[]): Summary {
  const counts: Record<Source, number> = { target: 0, accepted: 0, recovered: 0, bonus: 0 };
  const drafted = new Set<number>();
  for (const token of tokens) {
    counts[token.source] += 1;
    if (token.source !== "target") drafted.add(token.step);
  }
  return {
    tokens: tokens.length,
    steps: numSteps(tokens),
    drafted_steps: drafted.size,
    accepted: counts.accepted,
    counts,
    first_token_ms: tokens.length ? tokens[0]!.at : null,
    tokens_per_second: decodeRate(tokens),
    acceptance_length: drafted.size ? 1 + counts.accepted / drafted.size : null,
  };
}

/** Tokens per second after the first answer of the server, so that reading the prompt does not count. */
export function decodeRate(tokens: Token[]): number | null {
  if (tokens.length < 2) return null;
  const first = tokens[0]!.at;
  const later = tokens.filter((token) => token.at > first);
  const span = tokens[tokens.length - 1]!.at - first;
  return later.length && span > 0 ? (1000 * later.length) / span : null;
}

/** Share of drafted steps in which the draft at each place was accepted; places that never were are cut off. */
export function acceptanceByPosition(tokens: Token[]): number[] {
  const drafted = summarise(tokens).drafted_steps;
  const accepted: number[] = [];
  for (const token of tokens) {
    if (token.source !== "accepted") continue;
    while (accepted.length <= token.position) accepted.push(0);
    accepted[token.position]! += 1;
  }
  return accepted.map((count) => count / drafted);
}

/** Seconds, and tokens per second over the second before; a rate over less than `least` ms would say nothing. */
export function rateOverTime(tokens: Token[], window = 1000, least = 250): [number[], number[]] {
  const times: number[] = [];
  const rates: number[] = [];
  if (!tokens.length) return [times, rates];
  const first = tokens[0]!.at;
  let oldest = 0;
  for (let index = 0; index < tokens.length; index += 1) {
    const at = tokens[index]!.at;
    if (tokens[index + 1]?.at === at || at === first) continue;
    const from = Math.max(first, at - window);
    if (at - from < least && index < tokens.length - 1) continue;
    while (tokens[oldest]!.at <= from) oldest += 1;
    times.push((at - first) / 1000);
    rates.push((1000 * (index - oldest + 1)) / (at - from));
  }
  return [times, rates];
}

export interface Comparison {
  same: number;
  /** Place of the first difference, or -1. */
  differs: number;
  complete: boolean;
}

export function compare(one: Run, other: Run): Comparison {
  const length = Math.min(one.tokens.length, other.tokens.length);
  let same = 0;
  while (same < length && one.tokens[same]!.token_id === other.tokens[same]!.token_id) same += 1;
  const complete = one.status === "done" && other.status === "done";
  const uneven = complete && one.tokens.length !== other.tokens.length;
  return { same, differs: same < length || uneven ? same : -1, complete };
}

/** The drafter at work, or the reason why none is. */
export const speculationText = (speculation: Speculation): string =>
  speculation.inactive_reason ?? speculation.description;

/** Who drafted in a pass and what came of it, or why nobody did; null until the server has told. */
export function passOf(run: Run, step: number): Step | null {
  const pass = run.steps[step - 1];
  if (!pass) return null;
  if (pass.drafted) return { ...pass, drafter: pass.drafter || run.speculation?.method || "the drafter" };
  const why = step === 1 ? "this pass read the prompt" : (run.speculation?.inactive_reason ?? "no draft was proposed");
  return { ...pass, why: pass.why || why };
}

export function describePass(pass: Step): string {
  if (!pass.drafted) return `K = 0: ${pass.why}`;
  return `${pass.drafter} drafted, K = ${pass.drafted}, ${pass.accepted} accepted`;
}

export function percent(probability: number | null): string {
  if (probability === null) return "–";
  if (probability > 0 && probability < 0.001) return "< 0.1 %";
  if (probability < 1 && probability > 0.999) return "> 99.9 %";
  return `${(100 * probability).toFixed(1)} %`;
}

export function decimal(value: number | null, digits = 1): string {
  return value === null ? "–" : value.toFixed(digits);
}

/** Tokens as a person can see them: control tokens have no text, white space is spelled out. */
export function visible(text: string, tokenId: number): string {
  if (text === "") return `token ${tokenId}, no text`;
  return text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣");
}
