/**
 * Indents JSON; undefined if the text is not JSON. Numbers and strings stay as they are written: a number read by JavaScript
 * may lose digits.
 */
export function indentJson(text: string): string | undefined {
  try {
    JSON.parse(text);
  } catch {
    return undefined;
  }
  let out = "";
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  tokens.forEach((token, i) => {
    const next = tokens[i + 1];
    if (token === "{" || token === "[") {
      depth += 1;
      out += next === "}" || next === "]" ? token : token + line();
    } else if (token === "}" || token === "]") {
      depth -= 1;
      const empty = tokens[i - 1] === "{" || tokens[i - 1] === "[";
      out += empty ? token : line() + token;
    } else if (token === ",") {
      out += token + line();
    } else {
      out += token === ":" ? ": " : token;
    }
  });
  return out;
}
