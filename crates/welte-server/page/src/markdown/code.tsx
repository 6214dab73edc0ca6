import type { VNode } from "preact";
import { useRef } from "preact/hooks";
import { CopyButton } from "../controls";
import { Highlighter, type Span } from "../highlight";

/** Lines that are rendered as one unchanging piece. */
const LINES_PER_PIECE = 40;

/** The rendered part of a code block that grows. */
class Lines {
  private readonly highlighter: Highlighter;
  private readonly pieces: VNode[] = [];
  private lines: VNode[] = [];
  private read = "";
  private count = 0;

  constructor(readonly language: string) {
    this.highlighter = new Highlighter(language);
  }

  /** Whether the text continues the lines read so far. */
  continues(text: string): boolean {
    return text.startsWith(this.read);
  }

  render(text: string): (VNode | VNode[])[] {
    for (;;) {
      const end = text.indexOf("\n", this.read.length);
      if (end < 0) break;
      const line = text.slice(this.read.length, end);
      this.lines.push(row(this.count, this.highlighter.line(line), "\n"));
      this.count += 1;
      this.read = text.slice(0, end + 1);
      if (this.lines.length === LINES_PER_PIECE) {
        this.pieces.push(<span key={`piece ${this.count}`}>{this.lines}</span>);
        this.lines = [];
      }
    }
    const last = row(this.count, this.highlighter.peek(text.slice(this.read.length)), "");
    // Arrays are copied: Preact must not see an array that changed since the last rendering.
    return [[...this.pieces], [...this.lines, last]];
  }
}

function row(index: number, spans: Span[], end: string): VNode {
  return (
    <span key={index}>
      {spans.map(({ text, kind }) => (kind ? <span class={`code-${kind}`}>{text}</span> : text))}
      {end}
    </span>
  );
}

export function CodeBlock({ text, language }: { text: string; language: string }) {
  const lines = useRef<Lines>(undefined);
  if (!lines.current || lines.current.language !== language || !lines.current.continues(text)) {
    lines.current = new Lines(language);
  }
  return (
    <figure class="code" aria-label={language ? `Code, ${language}` : "Code"}>
      <figcaption>
        <span>{language || "text"}</span>
        <CopyButton text={() => text} label="Copy code" />
      </figcaption>
      {/* Keyboard users scroll long lines, so the block takes the focus. */}
      <pre tabIndex={0}>
        <code>{lines.current.render(text)}</code>
      </pre>
    </figure>
  );
}
