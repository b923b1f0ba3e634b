/** An error: the line that says what it is, and the rest folded. */

/** Of a traceback the last line says what it was; of any other text the first one. */
function mainLine(text: string): string {
  const lines = text.trim().split("\n");
  const line = text.startsWith("Traceback") ? lines.findLast((each) => /^\S/.test(each)) : lines[0];
  return line ?? text;
}

/** `whole`: what is unfolded, if it is another text, as one error of a kind. */
export function ErrorText({ text, whole = text }: { text: string; whole?: string }) {
  const line = mainLine(text);
  const short = line.length > 300 ? `${line.slice(0, 300)}…` : line;
  if (short === whole.trim()) return <p class="error-text">{short}</p>;
  return (
    <details class="error-text">
      <summary>{short}</summary>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by the keyboard */}
      <pre tabIndex={0} role="region" aria-label="The whole error">
        {whole}
      </pre>
    </details>
  );
}

/** That line alone, cut by the style sheet to what has room. */
export function ErrorLine({ text }: { text: string }) {
  return (
    <span class="error-line" title={text.length > 1000 ? `${text.slice(0, 1000)}…` : text}>
      {mainLine(text)}
    </span>
  );
}
