import { Component, type ComponentChild, type VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Token, Tokens } from "marked";
import { type Block, Blocks } from "./blocks";
import { CodeBlock } from "./code";
import { inline } from "./inline";

interface Rendered {
  block: Block;
  node: VNode;
}

interface Props {
  text: string;
  /** The text may still grow. */
  open: boolean;
  /** Told each block, as plain text, when it can no longer change. */
  onClosed?: (text: string) => void;
}

/** A text in markdown. If it cannot be shown as such, its source is shown: an answer must never break its conversation. */
export class Markdown extends Component<Props, { failed: boolean }> {
  override state = { failed: false };

  static override getDerivedStateFromError() {
    return { failed: true };
  }

  override render(props: Props) {
    return this.state.failed ? <p class="plain">{props.text}</p> : <Rendering {...props} />;
  }
}

function Rendering({ text, open, onClosed }: Props) {
  const blocks = useRef<Blocks>(undefined);
  const rendered = useRef(new Map<number, Rendered>());
  blocks.current ??= new Blocks();
  const list = open ? blocks.current.update(text) : blocks.current.finish(text);
  const next = new Map<number, Rendered>();
  const closed: string[] = [];
  const nodes = list.map((item) => {
    const old = rendered.current.get(item.id);
    // Preact skips an element that is the same object as before.
    const same = old && old.block.token === item.token;
    const entry = { block: item, node: same ? old.node : <div key={item.id}>{block(item.token)}</div> };
    next.set(item.id, entry);
    if (!item.open && (!old || old.block.open)) closed.push(plain(item.token));
    return entry.node;
  });
  rendered.current = next;
  useEffect(() => {
    for (const block of closed) onClosed?.(block);
  });
  return <div class="markdown">{nodes}</div>;
}

/** A block as text to read aloud. */
function plain(token: Token): string {
  if (token.type === "code") return "Code block.";
  if (token.type === "table") {
    const { header, rows } = token as Tokens.Table;
    return [header, ...rows].map((row) => row.map(({ text }) => text).join(", ")).join("; ");
  }
  return token.raw.replace(/[*_`#>|]+/g, " ").trim();
}

function block(token: Token): ComponentChild {
  switch (token.type) {
    case "heading": {
      // The page itself uses the first two levels.
      const { depth, tokens } = token as Tokens.Heading;
      const Tag = `h${Math.min(6, depth + 2)}` as "h3";
      return <Tag>{inline(tokens)}</Tag>;
    }
    case "paragraph":
      return <p>{inline((token as Tokens.Paragraph).tokens)}</p>;
    case "code": {
      const { text, lang } = token as Tokens.Code;
      return <CodeBlock text={text} language={(lang ?? "").trim().split(/[\s{]/)[0] ?? ""} />;
    }
    case "blockquote":
      return <blockquote>{blocksOf((token as Tokens.Blockquote).tokens)}</blockquote>;
    case "list":
      return <List token={token as Tokens.List} />;
    case "table":
      return <Table token={token as Tokens.Table} />;
    case "hr":
      return <hr />;
    case "displayMath":
      return <pre class="math">{(token as Tokens.Generic).text}</pre>;
    case "html":
      return token.raw.startsWith("<!--") ? null : <p class="raw">{token.raw.trim()}</p>;
    case "space":
    case "def":
      return null;
    default:
      return inline([token]);
  }
}

function blocksOf(tokens: Token[]): ComponentChild[] {
  return tokens.map(block);
}

function List({ token }: { token: Tokens.List }) {
  const items = token.items.map((item) => <li class={item.task ? "task" : undefined}>{blocksOf(item.tokens)}</li>);
  if (!token.ordered) return <ul>{items}</ul>;
  return <ol start={token.start === "" ? undefined : token.start}>{items}</ol>;
}

function Table({ token }: { token: Tokens.Table }) {
  const cell = (item: Tokens.TableCell, Tag: "th" | "td") => (
    <Tag class={item.align ? `align-${item.align}` : undefined}>{inline(item.tokens)}</Tag>
  );
  return (
    <div class="scroll" tabIndex={0}>
      <table>
        <thead>
          <tr>{token.header.map((item) => cell(item, "th"))}</tr>
        </thead>
        <tbody>
          {token.rows.map((row) => (
            <tr>{row.map((item) => cell(item, "td"))}</tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
