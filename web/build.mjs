// Bundles the playground into src/outrider/server/web/dist: index.html, app.js, app.css, favicon.svg.
// The page's export needs the viewer's script and style as text, with their hashes for its own content policy.
import { createHash } from "node:crypto";
import { copyFile, mkdir, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const dist = process.argv[2] ?? join(here, "../src/outrider/server/web/dist");
const common = {
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  charset: "ascii",
  legalComments: "none",
  absWorkingDir: here,
};

const bundle = async (entry, extra = {}) => {
  const result = await build({ ...common, ...extra, entryPoints: [entry], write: false, outdir: "out" });
  const text = (ending) => result.outputFiles.find((file) => file.path.endsWith(ending))?.text ?? "";
  return { script: text(".js"), style: text(".css") };
};
const hash = (text) => `sha256-${createHash("sha256").update(text).digest("base64")}`;

const viewer = await bundle("src/viewer.tsx");
const inline = {
  script: viewer.script.replaceAll("</script", "<\\/script"),
  style: viewer.style.replaceAll("</style", "<\\/style"),
};
const page = await bundle("src/main.tsx", {
  define: {
    VIEWER_SCRIPT: JSON.stringify(inline.script),
    VIEWER_STYLE: JSON.stringify(inline.style),
    VIEWER_SCRIPT_HASH: JSON.stringify(hash(inline.script)),
    VIEWER_STYLE_HASH: JSON.stringify(hash(inline.style)),
  },
});

await rm(dist, { recursive: true, force: true });
await mkdir(dist, { recursive: true });
await writeFile(join(dist, "app.js"), page.script);
await writeFile(join(dist, "app.css"), page.style);
for (const name of ["index.html", "favicon.svg"]) await copyFile(join(here, "src", name), join(dist, name));
console.log(`playground: ${dist} (${Math.round((page.script.length + page.style.length) / 1024)} KiB)`);
