import type { Marked, TokenizerObject } from "marked";
import { Tokenizer } from "marked";

/** Deeper blocks and styles are shown as text: readers gain nothing from them, and recursion would end the page. */
export const MAX_DEPTH = 24;

type Rule = "blockquote" | "list" | "emStrong" | "del" | "link" | "reflink";

/** Limits how deep the rules of a markdown reader call themselves. */
export function limitNesting(marked: Marked): void {
  const depth = { block: 0, inline: 0 };
  const limited = (name: Rule, kind: keyof typeof depth) =>
    function (this: Tokenizer, ...args: unknown[]) {
      // `undefined` means that the rule does not apply; the text then falls to the paragraph or text rule.
      if (depth[kind] >= MAX_DEPTH) return undefined;
      depth[kind] += 1;
      try {
        return (Tokenizer.prototype[name] as (...args: unknown[]) => unknown).apply(this, args);
      } finally {
        depth[kind] -= 1;
      }
    };
  marked.use({
    tokenizer: {
      blockquote: limited("blockquote", "block"),
      list: limited("list", "block"),
      emStrong: limited("emStrong", "inline"),
      del: limited("del", "inline"),
      link: limited("link", "inline"),
      reflink: limited("reflink", "inline"),
    } as unknown as TokenizerObject,
  });
}
