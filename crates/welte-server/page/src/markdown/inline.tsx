import type { ComponentChild, ComponentChildren } from "preact";
import type { Token, Tokens } from "marked";
import { decodeEntities } from "./entities";

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
  const list = tokens ?? [];
  const out: ComponentChild[] = [];
  for (let i = 0; i < list.length; i += 1) {
    const token = list[i]!;
    if (token.type !== "html") {
      out.push(one(token));
      continue;
    }
    const raw = token.raw;
    if (/^<br\s*\/?>$/i.test(raw)) {
      out.push(<br />);
      continue;
    }
    const name = raw.match(/^<([a-z]+)>$/i)?.[1]?.toLowerCase();
    const close = name && TAGS.has(name) ? closing(list, i, name) : -1;
    if (name && close > 0) {
      const Tag = name as "b";
      out.push(<Tag>{inline(list.slice(i + 1, close))}</Tag>);
      i = close;
    } else if (!raw.startsWith("<!--")) {
      out.push(raw);
    }
  }
  return out;
}

/** Where the tag that opens at `from` is closed, or -1. */
function closing(tokens: Token[], from: number, name: string): number {
  let depth = 0;
  for (let i = from; i < tokens.length; i += 1) {
    const raw = tokens[i]!.type === "html" ? tokens[i]!.raw.toLowerCase() : "";
    if (raw === `<${name}>`) depth += 1;
    if (raw === `</${name}>`) depth -= 1;
    if (depth === 0) return i;
  }
  return -1;
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
