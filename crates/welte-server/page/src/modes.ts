import { simpleMode } from "@codemirror/legacy-modes/mode/simple-mode";

// Two languages by their syntax alone. CodeMirror's modes for them know every property and every dialect by name, and are
// ten times as large.

export const css = simpleMode({
  start: [
    { regex: /\/\*/, token: "comment", next: "comment" },
    { regex: /\/\/.*/, token: "comment" },
    { regex: /@[\w-]+/, token: "keyword" },
    { regex: /"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'/, token: "string" },
    { regex: /--[\w-]+|\$[\w-]+/, token: "def" },
    // A property, but not a selector with a pseudo-class.
    { regex: /[\w-]+(?=\s*:(?!:|[a-z-]+[^;{}]*\{))/, token: "propertyName" },
    { regex: /#[\da-fA-F]{3,8}\b(?!.*\{)/, token: "number" },
    { regex: /[-+]?(?:\d+\.?\d*|\.\d+)(?:%|[a-zA-Z]+)?/, token: "number" },
    { regex: /!important\b/, token: "keyword" },
    { regex: /[.#][\w-]+/, token: "type" },
    { regex: /::?[\w-]+/, token: "meta" },
    { regex: /[\w-]+/ },
  ],
  comment: [
    { regex: /.*?\*\//, token: "comment", next: "start" },
    { regex: /.*/, token: "comment" },
  ],
});

const SQL_KEYWORDS =
  "add all alter and as asc begin between by case cast check column commit conflict constraint create cross current default " +
  "delete desc distinct do drop else end except exists explain filter following for foreign from full function grant group " +
  "having if in index inner insert intersect into is join key lateral left like limit materialized natural not nothing null " +
  "nulls offset on or order outer over partition preceding primary procedure range recursive references replace restrict " +
  "returning returns revoke right rollback row rows select set some table temporary then to transaction trigger truncate " +
  "unbounded union unique update using values view when where window with";

const SQL_TYPES =
  "array bigint binary bit blob bool boolean bytea char character date datetime decimal double enum float int integer " +
  "interval json jsonb money numeric real serial smallint text time timestamp timestamptz tinyint uuid varbinary varchar";

function words(list: string): RegExp {
  return new RegExp(`(?:${list.replaceAll(" ", "|")})\\b`, "i");
}

export const sql = simpleMode({
  start: [
    { regex: /--.*|#.*/, token: "comment" },
    { regex: /\/\*/, token: "comment", next: "comment" },
    { regex: /'(?:[^'\\]|\\.|'')*'?/, token: "string" },
    { regex: /"[^"]*"?|`[^`]*`?/, token: "propertyName" },
    { regex: /\d+(?:\.\d+)?(?:e[-+]?\d+)?\b/, token: "number" },
    { regex: words(SQL_KEYWORDS), token: "keyword" },
    { regex: words(SQL_TYPES), token: "type" },
    { regex: words("true false"), token: "atom" },
    { regex: /[@:$]\w+/, token: "def" },
    { regex: /[a-zA-Z_]\w*/ },
  ],
  comment: [
    { regex: /.*?\*\//, token: "comment", next: "start" },
    { regex: /.*/, token: "comment" },
  ],
});
