// Tests of the modules that need no browser.
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { createServer } from "vite";

let vite;
const load = (path) => vite.ssrLoadModule(`/src/${path}`);

before(async () => {
  const root = fileURLToPath(new URL("..", import.meta.url));
  vite = await createServer({ root, logLevel: "error", server: { middlewareMode: true, ws: false, watch: null }, appType: "custom" });
});
after(() => vite.close());

/** A pseudo-random number below `n`; the same in every run. */
function random(seed) {
  let x = seed;
  return (n) => {
    x = (Math.imul(x, 1664525) + 1013904223) >>> 0;
    return Math.floor((x / 4294967296) * n);
  };
}

describe("server-sent events", () => {
  const TEXT = 'data: {"a":1}\n\n: comment\r\ndata: two\r\ndata:lines\r\n\r\nevent: x\rdata: é\r\rdata: [DONE]\n\n';
  const EVENTS = ['{"a":1}', "two\nlines", "é", "[DONE]"];

  test("the events do not depend on where the text is cut", async () => {
    const { EventReader } = await load("api/sse.ts");
    for (let first = 0; first <= TEXT.length; first += 1) {
      for (let second = first; second <= TEXT.length; second += 1) {
        const reader = new EventReader();
        const parts = [TEXT.slice(0, first), TEXT.slice(first, second), TEXT.slice(second)];
        assert.deepEqual(parts.flatMap((part) => reader.push(part)), EVENTS);
      }
    }
  });

  test("an event without an end is not delivered", async () => {
    const { EventReader } = await load("api/sse.ts");
    assert.deepEqual(new EventReader().push("data: one\n"), []);
  });
});

describe("markdown", () => {
  const TEXT = `# Title

A paragraph with **bold**
over two lines.
- one
- two

  more of two

- three

1. first
   \`\`\`js
   let a = 1;
   \`\`\`
2. second

| a | b |
|---|--:|
| 1 | 2 |

\`\`\`\`python title
def f():
    return "\`\`\`"

~~~
\`\`\`\`
after the code
===

> quote
> goes on

<b>tag</b> and [a link][ref]

\\[ a_1 + b_1 \\]

~~~
no end`;

  /** What a reader sees of a block, without its id. */
  const view = (blocks) => blocks.map(({ token }) => [token.type, token.type === "code" ? token.text : token.raw.trimEnd()]);

  test("a text that arrives in pieces has the blocks of the whole text", async () => {
    const { Blocks } = await load("markdown/blocks.ts");
    const whole = view(new Blocks().finish(TEXT));
    assert.ok(whole.length > 10);
    for (let seed = 1; seed <= 60; seed += 1) {
      const next = random(seed);
      const blocks = new Blocks();
      for (let at = 0; at < TEXT.length; ) {
        at += 1 + next(seed % 2 ? 3 : 40);
        blocks.update(TEXT.slice(0, at));
      }
      assert.deepEqual(view(blocks.update(TEXT)), whole, `seed ${seed}`);
      assert.deepEqual(view(blocks.finish(TEXT)), whole, `seed ${seed}`);
    }
  });

  test("text of any depth is read, and its depth stays small", async () => {
    const { Blocks } = await load("markdown/blocks.ts");
    const { MAX_DEPTH } = await load("markdown/nesting.ts");
    const depth = (token) => 1 + Math.max(0, ...(token.tokens ?? token.items ?? []).map(depth));
    const hostile = {
      quotes: `${">".repeat(10_000)} end`,
      lists: `${"- ".repeat(10_000)}end`,
      numbers: `${"1. ".repeat(10_000)}end`,
      both: `${"> - ".repeat(5_000)}end`,
      indents: Array.from({ length: 200 }, (_, i) => `${"  ".repeat(i)}- end`).join("\n"),
      stars: `${"**a _b ".repeat(1000)}end${"_ **".repeat(1000)}`,
      deletions: `${"~~a *b ".repeat(1000)}end${"* ~~".repeat(1000)}`,
      links: `${"[a".repeat(1000)}end${"](x)".repeat(1000)}`,
    };
    for (const [name, text] of Object.entries(hostile)) {
      const blocks = new Blocks().finish(text);
      assert.equal(blocks.length, 1, name);
      assert.ok(blocks[0].token.raw.includes("end"), name);
      // A level of a list is two tokens: the list and its item. Styles are nested inside the innermost block.
      assert.ok(depth(blocks[0].token) <= 3 * MAX_DEPTH + 3, `${name}: ${depth(blocks[0].token)}`);
    }
    const quotes = (n) => depth(new Blocks().finish(`${">".repeat(n)} end`)[0].token);
    assert.equal(quotes(20) - quotes(10), 10, "what people write is nested as written");
  });

  test("closed blocks keep their identity", async () => {
    const { Blocks } = await load("markdown/blocks.ts");
    const blocks = new Blocks();
    const first = blocks.update("one\n\ntwo\n\nthree\n")[0];
    assert.equal(first.open, false);
    assert.equal(blocks.update("one\n\ntwo\n\nthree\n\nfour\n")[0], first);
    assert.equal(blocks.finish("one\n\ntwo\n\nthree\n\nfour\n")[0].token, first.token);
  });

  test("the work grows with the length of the text", async () => {
    const { Blocks } = await load("markdown/blocks.ts");
    const work = (text) => {
      const blocks = new Blocks();
      for (let at = 30; at < text.length; at += 30) blocks.update(text.slice(0, at));
      return blocks.work / text.length;
    };
    const paragraphs = (n) => "Some words in a paragraph that is not long.\n\n".repeat(n);
    const code = (n) => `\`\`\`js\n${"let a = 1; // a line of code\n".repeat(n)}`;
    for (const text of [paragraphs, code]) {
      assert.ok(work(text(2000)) < 1.5 * work(text(100)) + 1, `${work(text(100))} ${work(text(2000))}`);
    }
  });

  test("a link defined at the end is found", async () => {
    const { Blocks } = await load("markdown/blocks.ts");
    const blocks = new Blocks();
    const text = "see [the map][m]\n\nmore\n\nmore\n\n[m]: https://example.org/\n";
    blocks.update(text);
    assert.equal(blocks.finish(text)[0].token.tokens[1].href, "https://example.org/");
  });

  test("links lead to web pages and mail programs only", async () => {
    const { safeHref } = await load("markdown/inline.tsx");
    assert.equal(safeHref("https://example.org/a?b=1&amp;c"), "https://example.org/a?b=1&c");
    assert.equal(safeHref("mailto:a@example.org"), "mailto:a@example.org");
    for (const bad of ["javascript:alert(1)", "JaVaScRiPt:alert(1)", "java\nscript:alert(1)", "&#106;avascript:alert(1)", "data:text/html,x", "/relative", "file:///etc/passwd", "blob:x", ""]) {
      assert.equal(safeHref(bad), undefined, bad);
    }
  });

  test("character references", async () => {
    const { decodeEntities } = await load("markdown/entities.ts");
    assert.equal(decodeEntities("a &lt; b &amp;&amp; &#65;&#x42; &nosuch; &constructor; &#0; &#xD800; &"), "a < b && AB &nosuch; &constructor; \ufffd \ufffd &");
  });
});

describe("highlighting", () => {
  test("keeps the text and knows the languages", async () => {
    const { Highlighter } = await load("highlight.ts");
    const samples = {
      rust: ["fn main() {", '    let s = "a string";', "}"],
      python: ['"""text', 'over lines"""', "def f(x): return 1  # why"],
      typescript: ["const a: number = 1; /* open", "closed */ let b"],
      json: ['{"a": [1, true, null]}'],
      css: ["/* a", "b */ .x:hover { color: #fff; margin: 2px }"],
      sql: ["select 'it''s' from t where a = 1 -- end"],
      c: ["int main(void) { return 0; } // end"],
      bash: ['for f in *.rs; do echo "$f"; done'],
      html: ["<p class='a'>text</p>"],
      yaml: ["a: 1", "", "- b"],
      diff: ["+ new", "- old"],
      nosuchlanguage: ["plain text"],
    };
    for (const [language, lines] of Object.entries(samples)) {
      const highlighter = new Highlighter(language);
      const kinds = [];
      for (const line of lines) {
        const peeked = highlighter.peek(line);
        const spans = highlighter.line(line);
        assert.deepEqual(peeked, spans, `${language}: looking at a line must not change the state`);
        assert.equal(spans.map(({ text }) => text).join(""), line, language);
        kinds.push(...spans.map(({ kind }) => kind));
      }
      assert.equal(kinds.some((kind) => kind !== undefined), language !== "nosuchlanguage", language);
    }
  });

  test("a comment goes on in the next line", async () => {
    const { Highlighter } = await load("highlight.ts");
    for (const language of ["c", "rust", "typescript", "css", "sql"]) {
      const highlighter = new Highlighter(language);
      highlighter.line("/* begin");
      assert.deepEqual(highlighter.line("let int"), [{ text: "let int", kind: "comment" }], language);
    }
  });
});

describe("messages", () => {
  const message = (id, parent, created, role = "user") => ({ id, chat: "c", parent, role, text: id, created });
  const messages = new Map(
    [message("a", "", 1), message("b", "a", 2, "assistant"), message("b2", "a", 3, "assistant"), message("c", "b", 4)].map((m) => [m.id, m]),
  );

  test("the path follows the chosen versions, else the newest", async () => {
    const { chosenPath } = await load("chat/tree.ts");
    const ids = (chosen) => chosenPath(messages, chosen).map(({ id }) => id);
    assert.deepEqual(ids({}), ["a", "b2"]);
    assert.deepEqual(ids({ a: "b" }), ["a", "b", "c"]);
    assert.deepEqual(ids({ a: "gone" }), ["a", "b2"]);
  });

  test("a subtree is a message and all that follows", async () => {
    const { subtree, pathTo } = await load("chat/tree.ts");
    assert.deepEqual(subtree(messages, "b").sort(), ["b", "c"]);
    assert.deepEqual(pathTo(messages, "c").map(({ id }) => id), ["a", "b", "c"]);
  });

  test("images stand before the text, and are not part of it", async () => {
    const { content, requestMessages } = await load("chat/tree.ts");
    const image = "data:image/png;base64,AA==";
    const files = [{ name: "a.png", text: "", image }, { name: "b.txt", text: "b" }];
    const asked = { ...message("q", "", 1), text: "What is this?", files };
    const text = "File b.txt:\n```\nb\n```\n\nWhat is this?";
    assert.equal(content(asked), text);
    assert.deepEqual(requestMessages([asked], ""), [
      { role: "user", content: [{ type: "image_url", image_url: { url: image } }, { type: "text", text }] },
    ]);
    const alone = { ...message("r", "", 1), text: "", files: files.slice(0, 1) };
    assert.deepEqual(requestMessages([alone], "")[0].content, [{ type: "image_url", image_url: { url: image } }]);
  });

  test("sounds are parts of their own", async () => {
    const { requestMessages } = await load("chat/tree.ts");
    const audio = (kind) => ({ name: "a", text: "", audio: `data:audio/${kind};base64,AA==` });
    const message = { id: "a", role: "user", text: "", files: ["wav", "x-wav", "mpeg", "flac"].map(audio) };
    const formats = requestMessages([message], "")[0].content.map((part) => part.input_audio.format);
    assert.deepEqual(formats, ["wav", "wav", "mp3", "flac"]);
  });

  test("recordings are files of 16 bits in one channel", async () => {
    const { wav } = await load("chat/wav.ts");
    const file = Buffer.from(wav([new Float32Array([0, 1, -1, 2]), new Float32Array([0, 0, -1, 2])], 16000));
    assert.equal(file.length, 52);
    assert.equal(file.toString("latin1", 0, 16), "RIFF\x2c\0\0\0WAVEfmt ");
    assert.deepEqual([0, 1, 2, 3].map((i) => file.readInt16LE(44 + 2 * i)), [0, 16384, -32767, 32767]);
  });

  test("attached files stand before the text, in a fence that they cannot close", async () => {
    const { content, requestMessages } = await load("chat/tree.ts");
    const user = { ...message("q", "", 1), text: "What is this?", files: [{ name: "a.md", text: "```\ncode\n```\n" }] };
    assert.equal(content(user), "File a.md:\n````\n```\ncode\n```\n````\n\nWhat is this?");
    const empty = { ...message("e", "q", 2, "assistant"), text: "" };
    assert.deepEqual(requestMessages([user, empty], " ").map(({ role }) => role), ["user"]);
    assert.deepEqual(requestMessages([message("x", "", 1)], "be brief"), [
      { role: "system", content: "be brief" },
      { role: "user", content: "x" },
    ]);
  });
});

describe("options", () => {
  test("only what the user set is sent", async () => {
    const { NO_OPTIONS, requestFields } = await load("chat/options.ts");
    assert.deepEqual(requestFields(NO_OPTIONS), {});
    const set = { ...NO_OPTIONS, system: "s", temperature: 0, seed: 7, stop: "\nEND\n", thinking: "off", json: true, schema: '{"type": "object"}' };
    assert.deepEqual(requestFields(set), {
      temperature: 0,
      seed: 7,
      stop: ["END"],
      chat_template_kwargs: { enable_thinking: false },
      response_format: { type: "json_schema", json_schema: { name: "answer", schema: { type: "object" }, strict: true } },
    });
    assert.throws(() => requestFields({ ...NO_OPTIONS, json: true, schema: "{" }), SyntaxError);
  });
});

describe("JSON answers", () => {
  test("are indented without touching numbers and strings", async () => {
    const { indentJson } = await load("chat/json.ts");
    assert.equal(indentJson('{"a":12345678901234567890,"b":["x: {,}","\\"",{}],"c":[]}'), '{\n  "a": 12345678901234567890,\n  "b": [\n    "x: {,}",\n    "\\"",\n    {}\n  ],\n  "c": []\n}');
    assert.equal(indentJson('{"a":'), undefined);
  });
});

describe("problems", () => {
  test("are told in words", async () => {
    const { problemOf } = await load("api/problem.ts");
    const of = (status, body, headers) => problemOf(new Response(body, { status, headers }));
    const error = (message) => JSON.stringify({ error: { message } });
    assert.deepEqual(await of(401, error("no key")), { kind: "key", title: "The server asks for an API key.", detail: "no key" });
    assert.equal((await of(429, error("full"), { "retry-after": "3" })).wait, 3);
    assert.equal((await of(503, "", { "retry-after": "soon" })).wait, undefined);
    assert.equal((await of(400, error("temperature must not be negative"))).detail, "temperature must not be negative");
    assert.equal((await of(502, "<html>bad gateway</html>")).detail, undefined);
    assert.equal((await of(502, "bad gateway")).kind, "failed");
  });
});

describe("numbers", () => {
  test("are written as people read them", async () => {
    const { bytes, duration, parameters, percent, rate } = await load("format.ts");
    assert.deepEqual([0, 1023, 1536, 5 << 20, 9 * 2 ** 30].map(bytes), ["0 B", "1023 B", "1.5 KiB", "5.0 MiB", "9.00 GiB"]);
    assert.deepEqual([0, 4.021, 56.14, 99.96, 1384.2].map(rate), ["0", "4.02", "56.1", "100", "1,384"]);
    assert.deepEqual([0, 0.004, 0.67, 1].map(percent), ["0 %", "0.4 %", "67 %", "100 %"]);
    assert.deepEqual([3.14, 640, 12_340, 61_000, 7_260_000].map(duration), ["3.1 ms", "640 ms", "12.3 s", "1 min 1 s", "2 h 1 min"]);
    assert.deepEqual([950, 7_100_000, 4_022_468_096].map(parameters), ["950", "7.1 million", "4.0 billion"]);
  });
});

describe("the table", () => {
  test("equal neighbouring layers are folded", async () => {
    const { fold } = await load("engine/fold.ts");
    const command = (index, layer, part, bytes = 1) => ({ index, layer, part, op: part, format: "F32", bytes, flops: 0, share: 0, reads: [], writes: [] });
    const list = [
      command(0, null, "embed"),
      command(1, 0, "qkv"), command(2, 0, "down"),
      command(3, 1, "qkv"), command(4, 1, "down"),
      command(5, 2, "qkv", 2), command(6, 2, "down"),
      command(7, null, "head"), command(8, null, "head"),
    ];
    assert.deepEqual(fold(list).map(({ commands, times }) => [commands[0].index, commands.length, times]), [
      [0, 1, 1], [1, 2, 2], [5, 2, 1], [7, 1, 1], [8, 1, 1],
    ]);
  });
});
