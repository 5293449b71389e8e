// The three views of the page, and what each says before anything ran.

import { Legend } from "./tokens";

export const VIEWS = ["chat", "completion", "race"] as const;
export type View = (typeof VIEWS)[number];
export const NAMES: Record<View, string> = { chat: "Chat", completion: "Completion", race: "Race" };

const EXAMPLES: Record<View, string[]> = {
  chat: [
    "Write a Python function that checks whether a word is a palindrome, then repeat it with type hints.",
    "Write a short poem about the sea, and repeat its first line after every line.",
  ],
  completion: ["The capital of France is", "def fibonacci(n):\n    "],
  race: [
    "Write a short poem about the sea, and repeat its first line after every line.",
    "Write a Python class Stack with push, pop and peek, then write it once more with docstrings.",
  ],
};

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

export function Welcome({ view, onExample }: { view: View; onExample: (example: string) => void }) {
  return (
    <section class="card welcome">
      <h2>{WELCOME[view].title}</h2>
      <p class="muted">{WELCOME[view].text}</p>
      <Legend />
      <div class="examples">
        {EXAMPLES[view].map((example) => (
          <button key={example} type="button" class="example" onClick={() => onExample(example)}>
            {example}
          </button>
        ))}
      </div>
    </section>
  );
}
