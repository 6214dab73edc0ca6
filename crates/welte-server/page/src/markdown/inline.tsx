import type { ComponentChild, ComponentChildren } from "preact";
import type { Token, Tokens } from "marked";
import { decodeEntities } from "./entities";
import { MAX_DEPTH } from "./nesting";

// The page never uses HTML from the model. Tokens become elements here; tags outside of this list are shown as text.
const TAGS = new Set(["b", "strong", "i", "em", "u", "s", "sub", "sup", "kbd", "mark", "small", "code"]);

/** The address of a link, if it leads to a web page or a mail program. */
export function safeHref(href: string): string | undefined {
  try {
    const url = new URL(decodeEntities(href));
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : undefined;
  } catch {
    return undefined;
  }
}

function Link({ href, children }: { href: string; children: ComponentChildren }) {
  const safe = safeHref(href);
  if (!safe) return <>{children}</>;
  return (
    <a href={safe} target="_blank" rel="noopener noreferrer nofollow">
      {children}
    </a>
  );
}

export function inline(tokens: Token[] | undefined): ComponentChild[] {
  return styled(tokens ?? [], 0, tokens?.length ?? 0, pairs(tokens ?? []), 0);
}

/** The tokens from `from` to `to`, with the tags among them. */
function styled(tokens: Token[], from: number, to: number, ends: Map<number, number>, depth: number): ComponentChild[] {
  const out: ComponentChild[] = [];
  for (let i = from; i < to; i += 1) {
    const token = tokens[i]!;
    if (token.type !== "html") {
      out.push(one(token));
      continue;
    }
    const raw = token.raw;
    const end = ends.get(i);
    if (/^<br\s*\/?>$/i.test(raw)) {
      out.push(<br />);
    } else if (end !== undefined && end < to && depth < MAX_DEPTH) {
      const Tag = raw.slice(1, -1).toLowerCase() as "b";
      out.push(<Tag>{styled(tokens, i + 1, end, ends, depth + 1)}</Tag>);
      i = end;
    } else if (!raw.startsWith("<!--")) {
      out.push(raw);
    }
  }
  return out;
}

/** Where each tag that is shown as an element ends. Tags without an end are missing. */
function pairs(tokens: Token[]): Map<number, number> {
  const open = new Map<string, number[]>();
  const ends = new Map<number, number>();
  for (const [i, { type, raw }] of tokens.entries()) {
    const [, close, name] = (type === "html" && raw.toLowerCase().match(/^<(\/?)([a-z]+)>$/)) || [];
    if (!name || !TAGS.has(name)) continue;
    const starts = open.get(name) ?? [];
    open.set(name, starts);
    if (!close) {
      starts.push(i);
      continue;
    }
    const start = starts.pop();
    if (start !== undefined) ends.set(start, i);
  }
  return ends;
}

function one(token: Token): ComponentChild {
  switch (token.type) {
    case "strong":
      return <strong>{inline((token as Tokens.Strong).tokens)}</strong>;
    case "em":
      return <em>{inline((token as Tokens.Em).tokens)}</em>;
    case "del":
      return <del>{inline((token as Tokens.Del).tokens)}</del>;
    case "codespan":
      return <code>{(token as Tokens.Codespan).text}</code>;
    case "br":
      return <br />;
    case "link": {
      const { href, tokens } = token as Tokens.Link;
      return <Link href={href}>{inline(tokens)}</Link>;
    }
    case "image": {
      // A picture from an address that the model chose could leak the conversation, so the page never loads it.
      const { href, text } = token as Tokens.Image;
      return <Link href={href}>{text || href}</Link>;
    }
    case "inlineMath":
    case "displayMath":
      return <code class="math">{(token as Tokens.Generic).text}</code>;
    case "checkbox":
      return <input type="checkbox" checked={(token as Tokens.Checkbox).checked} disabled />;
    case "escape":
      return (token as Tokens.Escape).text;
    default: {
      const { tokens, text, raw } = token as Tokens.Generic;
      if (tokens) return inline(tokens);
      return decodeEntities(typeof text === "string" ? text : raw);
    }
  }
}
