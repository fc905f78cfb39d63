// Builds the dashboard into src/penstock/dashboard/static: hashed scripts and styles, each with a brotli and a gzip twin.
// `node build.mjs --watch` rebuilds on every change, unminified. `--out DIR` writes somewhere else.
import { createHash } from "node:crypto";
import { mkdir, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
import * as esbuild from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const argument = process.argv.indexOf("--out");
const out = argument > 0 ? process.argv[argument + 1] : join(here, "..", "src", "penstock", "dashboard", "static");
const watching = process.argv.includes("--watch");

const options = {
  absWorkingDir: here,
  entryPoints: { main: "src/main.tsx", app: "src/styles/app.css", layout: "src/layout.worker.ts" },
  bundle: true,
  splitting: true,
  format: "esm",
  target: ["es2022"],
  jsx: "automatic",
  jsxImportSource: "preact",
  outdir: "unused",
  write: false,
  metafile: true,
  minify: !watching,
  sourcemap: watching ? "inline" : false,
  legalComments: "none",
  entryNames: "[name]-[hash]",
  chunkNames: "[name]-[hash]",
  logLevel: "warning",
  plugins: [{ name: "publish", setup: (build) => build.onEnd(publish) }],
};

// In development: the page is loaded again when the sources have changed.
const RELOAD = `
const built = async () => (await fetch("source.txt", { cache: "no-store" })).text();
const first = await built();
setInterval(async () => { if ((await built().catch(() => first)) !== first) location.reload(); }, 700);
`;

async function publish(result) {
  if (result.errors.length) return;
  const files = new Map(result.outputFiles.map((file) => [relative(join(here, "unused"), file.path), file.contents]));
  const entry = (name, ending) => [...files.keys()].find((file) => file.startsWith(name) && file.endsWith(ending));
  let page = await readFile(join(here, "index.html"), "utf8");
  page = page.replace("app.css", entry("app", ".css")).replace("main.js", entry("main", ".js"));
  page = page.replace("</head>", `<meta name="penstock-layout" content="${entry("layout", ".js")}">\n</head>`);
  files.set("index.html", Buffer.from(page));
  files.set("icon.svg", await readFile(join(here, "icon.svg")));
  files.set("source.txt", Buffer.from(await sourceDigest()));
  if (watching) {
    files.set("reload.js", Buffer.from(RELOAD));
    files.set("index.html", Buffer.from(page.replace("</head>", '<script type="module" src="reload.js"></script>\n</head>')));
  }
  await rm(out, { recursive: true, force: true });
  await mkdir(out, { recursive: true });
  for (const [name, contents] of files) {
    await writeFile(join(out, name), contents);
    if (watching || contents.length < 512) continue;
    const quality = { params: { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_SIZE_HINT]: contents.length } };
    await writeFile(join(out, `${name}.br`), brotliCompressSync(contents, quality));
    await writeFile(join(out, `${name}.gz`), gzipSync(contents, { level: 9 }));
  }
  await writeFile(join(out, "sizes.json"), JSON.stringify(sizes(result.metafile, files)));
  if (watching) console.log(`built ${files.size} files`);
}

// Which scripts each page loads, for the test of the budgets.
function sizes(metafile, files) {
  const outputs = Object.entries(metafile.outputs).map(([path, output]) => [relative("unused", path), output]);
  return Object.fromEntries(
    outputs.map(([name, output]) => [
      name,
      {
        brotli: brotliCompressSync(files.get(name)).length,
        imports: output.imports.filter((item) => item.kind === "import-statement").map((item) => relative("unused", item.path)),
        entry: output.entryPoint ?? null,
      },
    ]),
  );
}

// What the build is made of, so that it is repeated only when a source has changed. The Python hook computes the same.
async function sourceDigest() {
  const names = ["build.mjs", "icon.svg", "index.html", "package-lock.json"];
  for (const entry of await readdir(join(here, "src"), { recursive: true, withFileTypes: true })) {
    if (entry.isFile() && entry.name !== "api-types.ts") names.push(relative(here, join(entry.parentPath, entry.name)));
  }
  const hash = createHash("sha256");
  for (const name of names.sort()) {
    hash.update(`${name}\0`);
    hash.update(await readFile(join(here, name)));
    hash.update("\0");
  }
  return hash.digest("hex");
}

if (watching) {
  const context = await esbuild.context(options);
  await context.watch();
} else {
  await esbuild.build(options);
}
