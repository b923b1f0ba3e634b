/** Text to be copied, such as a command. */
import { useRef, useState } from "preact/hooks";

export function Command({ text }: { text: string }) {
  const code = useRef<HTMLElement>(null);
  return (
    <span class="command">
      <code ref={code}>{text}</code>
      <CopyButton text={text} what="command" select={() => code.current} />
    </span>
  );
}

interface CopyOptions {
  text: string;
  what: string;
  /** What is selected where the browser does not let us copy, as without TLS. */
  select?: () => HTMLElement | null;
}

export function CopyButton({ text, what, select }: CopyOptions) {
  const [feedback, setFeedback] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setFeedback("Copied");
    } catch {
      const element = select?.();
      if (element) window.getSelection()?.selectAllChildren(element);
      setFeedback(element ? "Selected" : "Not allowed");
    }
    setTimeout(() => setFeedback(""), 2_000);
  };
  return (
    <button type="button" class="button small" onClick={copy} aria-label={`Copy the ${what}`}>
      <span aria-live="polite">{feedback || "Copy"}</span>
    </button>
  );
}
