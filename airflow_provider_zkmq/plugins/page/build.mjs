/** Builds the sources into ../static: one script, one style sheet, the page and the licences of what is bundled. */
import { createHash } from "node:crypto";
import { readdir, readFile, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "..", "static");
/** What the page may weigh: whoever is called at night may have a slow line. */
const MOST_BYTES = 250_000;

const { metafile } = await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx" },
  outdir: target,
  bundle: true,
  minify: true,
  format: "iife",
  charset: "utf8",
  legalComments: "none",
  // The first browsers that know light-dark() in style sheets.
  target: ["es2022", "chrome123", "firefox120", "safari17.5"],
  metafile: true,
});

const names = ["app.js", "app.css"];
const bytes = await Promise.all(names.map((name) => readFile(join(target, name))));
const size = bytes.reduce((sum, each) => sum + each.length, 0);
if (size > MOST_BYTES) throw new Error(`app.js and app.css have ${size} bytes; at most ${MOST_BYTES} are allowed`);

// The hash makes a browser forget the files of another version, however long it may keep them.
let html = await readFile(join(here, "src/index.html"), "utf8");
names.forEach((name, at) => {
  const hash = createHash("sha256").update(bytes[at]).digest("hex").slice(0, 12);
  html = html.replace(`static/${name}`, `static/${name}?v=${hash}`);
});
await writeFile(join(target, "index.html"), html);
await writeFile(join(target, "LICENSES.txt"), await licences(bundledPackages(Object.keys(metafile.inputs))));
console.log(names.map((name, at) => `${name} ${bytes[at].length}`).join(", "), `bytes, together ${size}`);

/** The names of the packages of which something is in the bundle. */
function bundledPackages(files) {
  const found = files.map((file) => /^node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(file)?.[1]);
  return [...new Set(found.filter(Boolean))].sort();
}

async function licences(packages) {
  const texts = await Promise.all(
    packages.map(async (name) => {
      const folder = join(here, "node_modules", name);
      const { version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
      const file = (await readdir(folder)).find((each) => /^licen[cs]e/i.test(each));
      if (!file) throw new Error(`${name} has no licence file`);
      return `${name} ${version} (${license})\n\n${(await readFile(join(folder, file), "utf8")).trim()}\n`;
    }),
  );
  return `app.js and app.css contain parts of these packages.\n\n${texts.join(`\n${"-".repeat(80)}\n\n`)}`;
}
