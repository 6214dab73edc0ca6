import { StringStream, type StreamParser } from "@codemirror/streamparser";
import { c, cpp, csharp, dart, java, kotlin } from "@codemirror/legacy-modes/mode/clike";
import { diff } from "@codemirror/legacy-modes/mode/diff";
import { dockerFile } from "@codemirror/legacy-modes/mode/dockerfile";
import { go } from "@codemirror/legacy-modes/mode/go";
import { javascript, json, typescript } from "@codemirror/legacy-modes/mode/javascript";
import { lua } from "@codemirror/legacy-modes/mode/lua";
import { powerShell } from "@codemirror/legacy-modes/mode/powershell";
import { properties } from "@codemirror/legacy-modes/mode/properties";
import { python } from "@codemirror/legacy-modes/mode/python";
import { r } from "@codemirror/legacy-modes/mode/r";
import { ruby } from "@codemirror/legacy-modes/mode/ruby";
import { rust } from "@codemirror/legacy-modes/mode/rust";
import { shell } from "@codemirror/legacy-modes/mode/shell";
import { swift } from "@codemirror/legacy-modes/mode/swift";
import { toml } from "@codemirror/legacy-modes/mode/toml";
import { html, xml } from "@codemirror/legacy-modes/mode/xml";
import { yaml } from "@codemirror/legacy-modes/mode/yaml";
import { css, sql } from "./modes";

type Parser = StreamParser<unknown>;

/** Languages with all names that people put behind a fence. */
const LANGUAGES: [Parser, string][] = [
  [c, "c h"],
  [cpp, "cpp c++ cc cxx hpp cuda cu"],
  [csharp, "csharp cs c#"],
  [css, "css scss less"],
  [dart, "dart"],
  [diff, "diff patch"],
  [dockerFile, "dockerfile docker"],
  [go, "go golang"],
  [html, "html svelte vue"],
  [java, "java"],
  [javascript, "javascript js jsx mjs node"],
  [json, "json jsonc json5"],
  [kotlin, "kotlin kt"],
  [lua, "lua"],
  [powerShell, "powershell ps1 pwsh"],
  [properties, "ini properties conf"],
  [python, "python py python3"],
  [r, "r"],
  [ruby, "ruby rb"],
  [rust, "rust rs"],
  [shell, "shell sh bash zsh console shell-session"],
  [sql, "sql postgresql mysql sqlite"],
  [swift, "swift"],
  [toml, "toml"],
  [typescript, "typescript ts tsx"],
  [xml, "xml svg"],
  [yaml, "yaml yml"],
];

const BY_NAME = new Map(LANGUAGES.flatMap(([parser, names]) => names.split(" ").map((name) => [name, parser] as const)));

/** CSS classes of the parsers' token names. */
const CLASSES: Record<string, string> = {
  keyword: "keyword",
  controlKeyword: "keyword",
  operatorKeyword: "keyword",
  definitionKeyword: "keyword",
  moduleKeyword: "keyword",
  modifier: "keyword",
  tag: "keyword",
  tagName: "keyword",
  string: "string",
  regexp: "string",
  attributeValue: "string",
  inserted: "inserted",
  deleted: "deleted",
  positive: "inserted",
  negative: "deleted",
  number: "number",
  atom: "number",
  bool: "number",
  null: "number",
  unit: "number",
  comment: "comment",
  meta: "meta",
  processingInstruction: "meta",
  annotation: "meta",
  builtin: "type",
  type: "type",
  typeName: "type",
  className: "type",
  namespace: "type",
  qualifier: "type",
  def: "name",
  macroName: "name",
  propertyName: "name",
  attribute: "name",
  attributeName: "name",
  heading: "name",
};

/** A stretch of a line; no class means plain text. */
export interface Span {
  text: string;
  kind: string | undefined;
}

/** Longer lines are not highlighted: they are data. */
const LONGEST_LINE = 2000;

/** Highlights code line by line. Each line is read once, also while the code grows. */
export class Highlighter {
  private readonly parser: Parser | undefined;
  private state: unknown;

  constructor(language: string) {
    this.parser = BY_NAME.get(language.toLowerCase());
    this.state = this.parser?.startState?.(2);
  }

  /** Reads the next line, without its line break. */
  line(text: string): Span[] {
    return this.read(text, this.state);
  }

  /** Reads a line that may still grow: the state stays as it is. */
  peek(text: string): Span[] {
    return this.read(text, this.copy());
  }

  private copy(): unknown {
    const { state, parser } = this;
    if (parser?.copyState) return parser.copyState(state);
    if (typeof state !== "object" || state === null) return state;
    // CodeMirror's rule: a shallow copy, with arrays copied.
    return Object.fromEntries(Object.entries(state).map(([name, value]) => [name, Array.isArray(value) ? [...value] : value]));
  }

  private read(text: string, state: unknown): Span[] {
    const { parser } = this;
    if (!parser || text.length > LONGEST_LINE) return [{ text, kind: undefined }];
    if (text === "") {
      parser.blankLine?.(state, 2);
      return [];
    }
    const spans: Span[] = [];
    const stream = new StringStream(text, 4, 2);
    let stuck = 0;
    while (!stream.eol()) {
      const name = parser.token(stream, state);
      if (stream.pos === stream.start) {
        // A parser may change its state without reading; one that never reads is skipped over.
        stuck += 1;
        if (stuck > 10) stream.next();
        else continue;
      }
      stuck = 0;
      const piece = stream.current();
      const kind = kindOf(name);
      const last = spans.at(-1);
      if (last && last.kind === kind) last.text += piece;
      else spans.push({ text: piece, kind });
      stream.start = stream.pos;
    }
    return spans;
  }
}

function kindOf(name: string | null): string | undefined {
  for (const word of name?.split(/[ .]/) ?? []) {
    const kind = CLASSES[word];
    if (kind) return kind;
  }
  return undefined;
}
