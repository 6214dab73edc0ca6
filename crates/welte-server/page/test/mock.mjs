// A server that serves dist/ and imitates the endpoints of types.ts. `node test/mock.mjs [PORT]` starts it for a look at the
// page; tests start it in their own process and change `behaviour`.
import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { extname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { mockState, mockTable } from "./engine.mjs";

const DIST = fileURLToPath(new URL("../dist/", import.meta.url));
const TYPES = { ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml" };

export const MODELS = ["qwen3-4b-q4_0", "welte-stories-7m"];

const STORY = `A fox kept a small shop at the edge of the wood. It sold **three things**:

1. honey, in jars
2. candles
3. maps of the wood

| item | price |
|:-----|------:|
| honey | 4 |
| candles | 2 |

This is how the fox counted the money:

\`\`\`python
def total(items):
    """Sum of all prices."""
    return sum(item.price for item in items)  # in coins
\`\`\`

> A map is worth more than honey.

See [the map](https://example.org/map).
`;

/** Pieces of a text, about as long as tokens. */
export function pieces(text) {
  return text.match(/\s*\S{1,5}|\s+$/g) ?? [];
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function body(request) {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  return Buffer.concat(chunks).toString();
}

/**
 * Starts the server. `behaviour` says how it answers:
 * - `answer`: text of the next answers, or a function of the request; `thinking`: text before it
 * - `pause`: milliseconds between tokens; `hold`: a promise to wait for before the first token
 * - `halt`: `{after, until}`: wait for a promise after this many tokens
 * - `error`: `{status, message, headers}` in place of an answer
 * - `cut`: end the stream without a finish after this many tokens; `fail`: send an error after this many
 * - `key`: the API key that requests must carry
 * - `state`: false: no engine endpoints
 * - `idle`: true: no slot has a sequence
 * - `tools`: the tools of MCP servers, by label; `called`: what a call of them answers; `calls`: which calls an answer asks for, a
 *   function of the request
 * - `hears`: the first model takes sounds; `speech`: a model of speech is served too, which writes this down
 * - `pull`: lines of a download, or `{status, message}`
 */
export async function startMock(port = 0) {
  const behaviour = {};
  const requests = [];
  /** Answers whose client left before the end. */
  const left = [];
  /** Calls of tools that were made. */
  const called = [];
  /** Sounds that were to be written down. */
  const heard = [];
  /** Models that were downloaded. */
  const added = [];

  async function answer(request, response, settings) {
    const { error, thinking = "", pause = 2, hold, halt, cut, fail } = behaviour;
    if (error) {
      send(response, error.status, { error: { message: error.message, type: "mock", code: null } }, error.headers);
      return;
    }
    let open = true;
    response.on("close", () => {
      open = false;
      if (!response.writableEnded) left.push(settings);
    });
    await hold;
    response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" });
    const event = (value) => response.write(`data: ${typeof value === "string" ? value : JSON.stringify(value)}\n\n`);
    const delta = (value, reason = null) =>
      event({ object: "chat.completion.chunk", choices: [{ index: 0, delta: value, finish_reason: reason }] });
    const answerText = typeof behaviour.answer === "function" ? behaviour.answer(settings) : (behaviour.answer ?? STORY);
    const text = settings.response_format ? '{"name": "fox", "legs": 4, "id": 12345678901234567890}' : answerText;
    const tokens = [...pieces(thinking).map((piece) => ["reasoning_content", piece]), ...pieces(text).map((piece) => ["content", piece])];
    delta({ role: "assistant", content: "" });
    for (const [i, [name, piece]] of tokens.entries()) {
      if (i === halt?.after) await halt.until;
      if (!open) return;
      if (i === cut) return void response.end();
      if (i === fail) {
        event({ error: { message: "the device failed: a kernel got stuck", type: "server_error" } });
        return void response.end();
      }
      delta({ [name]: piece });
      if (pause > 0) await sleep(pause);
    }
    const calls = behaviour.calls?.(settings) ?? [];
    for (const [index, { id, name, arguments: text }] of calls.entries()) {
      delta({ tool_calls: [{ index, id, type: "function", function: { name, arguments: "" } }] });
      for (const piece of pieces(text)) delta({ tool_calls: [{ index, function: { arguments: piece } }] });
    }
    delta({}, calls.length > 0 ? "tool_calls" : "stop");
    const prompt = Math.ceil(JSON.stringify(settings.messages).length / 4);
    const cached = settings.messages.length > 1 ? Math.floor(prompt / 2) : 0;
    event({
      choices: [],
      usage: { prompt_tokens: prompt, completion_tokens: tokens.length, total_tokens: prompt + tokens.length,
        prompt_tokens_details: { cached_tokens: cached } },
      welte: { tokens_per_second: 1384.2, floor_share: 0.67, cached_tokens: cached, differs_at: cached || null, prompt_ms: 3.1 },
    });
    event("[DONE]");
    response.end();
  }

  function send(response, status, value, headers = {}) {
    response.writeHead(status, { "content-type": "application/json", ...headers });
    response.end(JSON.stringify(value));
  }

  async function serve(request, response) {
    const { pathname } = new URL(request.url, "http://mock");
    const api = ["/v1/", "/welte/", "/api/"].some((start) => pathname.startsWith(start));
    if (!api) {
      const name = pathname === "/" || pathname === "/engine" ? "index.html" : pathname.slice(1);
      if (name.includes("..")) return send(response, 404, {});
      const data = await readFile(join(DIST, name)).catch(() => null);
      if (!data) return send(response, 404, {});
      response.writeHead(200, { "content-type": TYPES[extname(name)] ?? "application/octet-stream", "cache-control": "no-cache" });
      return response.end(data);
    }
    if (behaviour.key && request.headers.authorization !== `Bearer ${behaviour.key}`) {
      return send(response, 401, { error: { message: "missing or wrong API key", type: "authentication_error" } });
    }
    if (pathname === "/v1/models") {
      const audio = (i) => (i === 0 ? behaviour.hears === true : null);
      const data = [...MODELS, ...added].map((id, i) => ({
        id,
        object: "model",
        owned_by: "welte",
        welte: { loaded: i === 0, context: i === 0 ? 8192 : 2048, audio: audio(i) },
      }));
      if (behaviour.speech !== undefined) data.push({ id: "whisper-tiny", object: "model", owned_by: "welte", welte: { loaded: true, speech: true } });
      return send(response, 200, { object: "list", data });
    }
    if (pathname === "/v1/chat/completions") {
      const settings = JSON.parse(await body(request));
      requests.push(settings);
      return answer(request, response, settings);
    }
    if (pathname === "/v1/audio/transcriptions") {
      const chunks = [];
      for await (const chunk of request) chunks.push(chunk);
      const form = await new Response(Buffer.concat(chunks), { headers: { "content-type": request.headers["content-type"] } }).formData();
      heard.push({ model: form.get("model"), file: Buffer.from(await form.get("file").arrayBuffer()) });
      if (typeof behaviour.speech !== "string") return send(response, 503, { error: { message: "the answer takes too long" } });
      return send(response, 200, { text: behaviour.speech });
    }
    if (pathname === "/welte/tools" && request.method === "POST") {
      const call = JSON.parse(await body(request));
      called.push(call);
      return send(response, 200, await behaviour.called(call));
    }
    if (pathname === "/welte/tools") return send(response, 200, { servers: Object.keys(behaviour.tools ?? {}) });
    if (pathname.startsWith("/welte/tools/")) {
      return send(response, 200, { tools: behaviour.tools[decodeURIComponent(pathname.slice("/welte/tools/".length))] });
    }
    if (pathname === "/api/pull") {
      const { model } = JSON.parse(await body(request));
      if (!Array.isArray(behaviour.pull)) return send(response, behaviour.pull.status, { error: behaviour.pull.message });
      response.writeHead(200, { "content-type": "application/x-ndjson" });
      for await (const line of behaviour.pull) {
        response.write(`${JSON.stringify(line)}\n`);
        if (line.status === "success") added.push(model);
      }
      return response.end();
    }
    if (behaviour.state !== false && pathname === "/welte/state") {
      const state = mockState();
      if (behaviour.idle) state.slots = state.slots.map(({ slot }) => ({ slot, state: "idle" }));
      return send(response, 200, state);
    }
    if (behaviour.state !== false && pathname === "/welte/table") return send(response, 200, mockTable());
    send(response, 404, { error: { message: `no endpoint ${pathname}`, type: "invalid_request_error" } });
  }

  const server = createServer((request, response) => {
    serve(request, response).catch((error) => {
      console.error(error);
      response.destroy();
    });
  });
  await new Promise((resolve) => server.listen(port, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${server.address().port}/`;
  const close = () => {
    server.closeAllConnections();
    return new Promise((resolve) => server.close(resolve));
  };
  return { url, behaviour, requests, left, called, heard, close };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const mock = await startMock(Number(process.argv[2] ?? 8080));
  Object.assign(mock.behaviour, { pause: 15, thinking: "The reader wants a story. A fox is a good start, and so is a shop." });
  console.log(mock.url);
}
