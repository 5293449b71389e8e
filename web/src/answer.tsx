// The tokens of one run as a reader wants them: what the model thought first is folded away, the answer is in the open.

import { numThought, type Run, type Token } from "./model";
import { Tokens } from "./tokens";

export function Answer({ run, tokens, label, marks = true, cursor = false, differs = -1 }: {
  run: Run;
  /** Those of the run that are shown, from its beginning. */
  tokens: Token[];
  label: string;
  marks?: boolean;
  cursor?: boolean;
  differs?: number;
}) {
  const thought = numThought(run, tokens);
  const shared = { run, marks };
  if (!thought) return <Tokens {...shared} tokens={tokens} label={label} cursor={cursor} differs={differs} />;
  const thinking = cursor && thought === tokens.length;
  return (
    <div class="answer">
      <details class="thinking" open={differs >= 0 && differs < thought}>
        <summary>
          {thinking ? "Thinking …" : "Thoughts"} <span class="muted">{thought} tokens</span>
        </summary>
        <Tokens {...shared} tokens={tokens.slice(0, thought)} label="Thoughts" differs={differs} />
      </details>
      <Tokens
        {...shared}
        tokens={tokens.slice(thought)}
        label={label}
        cursor={cursor}
        differs={differs < thought ? -1 : differs - thought}
      />
    </div>
  );
}
