// Requests to the server that gave this page: what it is, and streams of tokens. Knows nothing about the page.

import type { Problem, Prompt, Settings, Speculation, Step, TokenDetail } from "./model";

export interface Server {
  model: string;
  /** Whether the model has a chat template. */
  chat: boolean;
  speculation: Speculation | null;
  /** The drafters that a request may choose from; empty if it may not. */
  methods: string[];
  k: number | null;
}

export class RequestError extends Error {
  constructor(readonly problem: Problem) {
    super(problem.title);
  }
}

const headers = (key: string): Record<string, string> => (key ? { Authorization: `Bearer ${key}` } : {});

export async function describeServer(key: string): Promise<Server> {
  const models = await getJson("v1/models", key);
  const model = models.data?.[0];
  if (!model?.id) {
    throw new RequestError({ title: "The server offers no model", detail: "/v1/models has an empty list." });
  }
  const { speculation } = model;
  return {
    model: model.id,
    chat: model.chat !== false,
    speculation: speculation ?? null,
    methods: (speculation?.methods ?? []).filter((method: string) => method !== "auto" && method !== "off"),
    k: speculation?.num_speculative_tokens ?? null,
  };
}

async function getJson(path: string, key: string): Promise<any> {
  const response = await send(path, { headers: headers(key) });
  return response.json();
}

async function send(path: string, init: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, { cache: "no-store", ...init });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new RequestError({
      title: "The server does not answer",
      detail: "It may have stopped, or the network is down. Start it again with “outrider serve”, then try again.",
    });
  }
  if (!response.ok) throw new RequestError(await refusal(response));
  return response;
}

async function refusal(response: Response): Promise<Problem> {
  const { status } = response;
  let message = "";
  let param = "";
  try {
    const body = await response.json();
    message = body.error?.message ?? body.detail ?? "";
    param = body.error?.param ?? "";
  } catch {
    message = response.statusText;
  }
  const after = response.headers.get("retry-after");
  const titles: Record<number, string> = {
    400: param ? `The server refused “${param}”` : "The server refused this request",
    401: "The API key is missing or wrong",
    404: "The server does not know this",
    413: "The request is too large",
    422: "The server refused this request",
    429: "The server has too many requests waiting",
    503: "The server is not ready yet",
  };
  const hint = status === 401 ? "Enter the key the server was started with under Settings." : "";
  const wait = after && (status === 429 || status === 503) ? `Try again in ${after} s.` : "";
  return {
    status,
    title: titles[status] ?? `The server answered with an error (${status})`,
    detail: [typeof message === "string" ? message : JSON.stringify(message), hint, wait].filter(Boolean).join(" "),
  };
}

export interface Chunk {
  details: TokenDetail[];
  finish: string | null;
  speculation: Speculation | null;
  /** Comes with the last chunk. */
  steps: Step[] | null;
  reasoned: boolean;
}

const number = (text: string): number | undefined => (text.trim() === "" ? undefined : Number(text));

/** The body of a request; settings left empty are left to the server. */
export function body(model: string, prompt: Prompt, settings: Settings): Record<string, unknown> {
  const what = prompt.kind === "chat" ? { messages: prompt.messages } : { prompt: prompt.text };
  const speculative: Record<string, unknown> = {};
  if (settings.method) speculative.method = settings.method;
  if (number(settings.k) !== undefined) speculative.num_speculative_tokens = number(settings.k);
  const off = settings.method === "off" || number(settings.k) === 0;
  return {
    model,
    ...what,
    temperature: number(settings.temperature),
    top_p: number(settings.top_p),
    seed: number(settings.seed),
    max_tokens: number(settings.max_tokens),
    stream: true,
    token_details: true,
    detailed_metrics: true,
    ...(off ? { speculative_config: "off" } : Object.keys(speculative).length ? { speculative_config: speculative } : {}),
  };
}

/** Chunks as they come. Throws `RequestError` on a refusal, an error in the stream, or one that ends early. */
export async function* stream(
  request: Record<string, unknown>,
  kind: Prompt["kind"],
  key: string,
  signal: AbortSignal,
): AsyncGenerator<Chunk> {
  const response = await send(kind === "chat" ? "v1/chat/completions" : "v1/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers(key) },
    body: JSON.stringify(request),
    signal,
  });
  for await (const data of events(response, signal)) {
    if (data === "[DONE]") return;
    const parsed = JSON.parse(data);
    if (parsed.error) {
      throw new RequestError({ title: "The request failed while it ran", detail: parsed.error.message ?? "" });
    }
    const choice = parsed.choices?.[0];
    yield {
      details: choice?.token_details ?? [],
      finish: choice?.finish_reason ?? null,
      speculation: parsed.metrics?.speculation ?? null,
      steps: stepsOf(parsed.metrics?.speculative_decoding),
      reasoned: typeof choice?.delta?.reasoning_content === "string",
    };
  }
  throw cut();
}

function stepsOf(told: any): Step[] | null {
  const drafted: number[] | undefined = told?.per_step_drafted;
  if (!drafted) return null;
  return drafted.map((count, index) => ({
    drafted: count,
    accepted: told.per_step_accepted?.[index] ?? 0,
    drafter: told.per_step_drafter?.[index] ?? "",
    why: told.per_step_why?.[index] ?? "",
  }));
}

const cut = (): RequestError =>
  new RequestError({
    title: "The connection broke off",
    detail: "The answer is not complete; what came so far is kept. Try again when the server is back.",
  });

/** The data of server-sent events; comments are passed over. */
async function* events(response: Response, signal: AbortSignal): AsyncGenerator<string> {
  const reader = response.body!.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      let part: ReadableStreamReadResult<Uint8Array>;
      try {
        part = await reader.read();
      } catch (error) {
        if (signal.aborted) throw error;
        throw cut();
      }
      if (part.done) return;
      rest += decoder.decode(part.value, { stream: true });
      const lines = rest.split("\n");
      rest = lines.pop()!;
      for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
    }
  } finally {
    void reader.cancel().catch(() => undefined);
  }
}
