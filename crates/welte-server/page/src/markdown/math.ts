import type { TokenizerAndRendererExtension, Tokens } from "marked";

// Formulas are shown as their source. Without these rules, markdown would take their backslashes and underscores away.

const DISPLAY = /^(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])/;
const INLINE = /^\\\(([\s\S]+?)\\\)/;

function token(type: string, match: RegExpMatchArray | null): Tokens.Generic | undefined {
  return match ? { type, raw: match[0], text: (match[1] ?? match[2] ?? "").trim() } : undefined;
}

function startOf(source: string, pattern: RegExp): number | undefined {
  const at = source.search(pattern);
  return at < 0 ? undefined : at;
}

export const math: TokenizerAndRendererExtension[] = [
  {
    name: "displayMath",
    level: "block",
    start: (source) => startOf(source, /\$\$|\\\[/),
    tokenizer: (source) => token("displayMath", source.match(DISPLAY)),
  },
  {
    name: "inlineMath",
    level: "inline",
    start: (source) => startOf(source, /\\[([]|\$\$/),
    tokenizer: (source) => token("inlineMath", source.match(INLINE) ?? source.match(DISPLAY)),
  },
];
