/** A payload or a result as text, as JSON that folds, or as a hex dump. */
import { useMemo, useState } from "preact/hooks";
import type { Preview as PreviewOf } from "../types";
import { bytes } from "../wording";
import { CopyButton } from "./copy";
import { JsonTree, parseJson } from "./json";

export function Preview({ title, preview, href }: { title: string; preview: PreviewOf; href: string }) {
  // What was cut off is no JSON any more.
  const isWhole = preview.kind === "json" && !preview.truncated;
  const tree = useMemo(() => (isWhole ? parseJson(preview.text) : undefined), [isWhole, preview.text]);
  const [raw, setRaw] = useState(false);
  const kind = preview.kind === "binary" ? "binary, as hexadecimal" : preview.kind === "json" ? "JSON" : "text";
  return (
    <section class="panel" aria-label={title}>
      <header class="panel-head">
        <h2>{title}</h2>
        <span class="muted">
          {bytes(preview.bytes)}, {kind}
        </span>
        <span class="grow" />
        {tree && (
          <button type="button" class="button small" aria-pressed={raw} onClick={() => setRaw(!raw)}>
            As it is
          </button>
        )}
        {preview.kind !== "binary" && preview.bytes > 0 && (
          <CopyButton text={preview.text} what={title.toLowerCase()} />
        )}
        {preview.bytes > 0 && (
          <a class="button small" href={href} download>
            Download
          </a>
        )}
      </header>
      {preview.truncated && (
        <p class="muted">Only the beginning is shown. The download has all {bytes(preview.bytes)}.</p>
      )}
      {preview.bytes === 0 ? (
        <p class="muted">Empty.</p>
      ) : tree && !raw ? (
        <div class="payload">
          <JsonTree value={tree.value} />
        </div>
      ) : (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by the keyboard
        <pre class="payload" tabIndex={0} role="region" aria-label={`${title}, the text`}>
          {preview.text}
        </pre>
      )}
    </section>
  );
}
