// A run, or a race, as one HTML file that needs nothing else: the data as JSON, and the viewer built beside this page.

import type { Run } from "./model";

declare const VIEWER_SCRIPT: string;
declare const VIEWER_STYLE: string;
declare const VIEWER_SCRIPT_HASH: string;
declare const VIEWER_STYLE_HASH: string;

const html = (text: string): string =>
  text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");

/** JSON that no HTML parser can leave early, whatever a model has written. */
const json = (value: unknown): string =>
  JSON.stringify(value).replaceAll("<", "\\u003c").replaceAll("\u2028", "\\u2028").replaceAll("\u2029", "\\u2029");

export function exported(runs: Run[]): string {
  const title = `Outrider: ${runs.length > 1 ? "race" : "run"} of ${runs[0]!.model}, ${runs[0]!.started.slice(0, 10)}`;
  const policy = [
    "default-src 'none'",
    `script-src '${VIEWER_SCRIPT_HASH}'`,
    `style-src '${VIEWER_STYLE_HASH}'`,
    "base-uri 'none'",
    "form-action 'none'",
  ].join("; ");
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>${html(title)}</title>
<style>${VIEWER_STYLE}</style>
</head>
<body>
<div id="app"></div>
<script type="application/json" id="runs">${json(runs)}</script>
<script>${VIEWER_SCRIPT}</script>
</body>
</html>
`;
}

export function save(runs: Run[]): void {
  const address = URL.createObjectURL(new Blob([exported(runs)], { type: "text/html;charset=utf-8" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = `outrider-${runs.length > 1 ? "race" : "run"}-${runs[0]!.started.slice(0, 19).replaceAll(":", "")}.html`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
