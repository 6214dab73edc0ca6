import { preferences } from "../preferences";
import { EventReader } from "./sse";
import { BROKEN, RequestError, UNREACHABLE, problemOf } from "./problem";
import type { CallRequest, CallResult, Chunk, EngineState, Figures, ModelEntry, Progress, Table, Tool, ToolCall, Usage } from "./types";

/** The URL of an endpoint. The page may live in a folder behind a proxy. */
function url(path: string): string {
  return new URL(path, new URL(".", location.href)).href;
}

async function request(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  const key = preferences.value.apiKey;
  if (key) headers.set("authorization", `Bearer ${key}`);
  let response: Response;
  try {
    response = await fetch(url(path), { ...init, headers });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new RequestError(UNREACHABLE);
  }
  if (!response.ok) throw new RequestError(await problemOf(response));
  return response;
}

async function getJson<T>(path: string, signal?: AbortSignal): Promise<T> {
  const response = await request(path, { signal });
  try {
    return (await response.json()) as T;
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new RequestError({ kind: "failed", title: "The server sent an unreadable response." });
  }
}

function withModel(path: string, model?: string): string {
  return model ? `${path}?model=${encodeURIComponent(model)}` : path;
}

export async function fetchModels(): Promise<ModelEntry[]> {
  return (await getJson<{ data: ModelEntry[] }>("v1/models")).data;
}

export function fetchState(model?: string, signal?: AbortSignal): Promise<EngineState> {
  return getJson(withModel("welte/state", model), signal);
}

export function fetchTable(model?: string, signal?: AbortSignal): Promise<Table> {
  return getJson(withModel("welte/table", model), signal);
}

/** The labels of the MCP servers. */
export async function fetchToolServers(): Promise<string[]> {
  return (await getJson<{ servers: string[] }>("welte/tools")).servers;
}

/** The tools of an MCP server. */
export async function fetchTools(server: string, signal: AbortSignal): Promise<Tool[]> {
  return (await getJson<{ tools: Tool[] }>(`welte/tools/${encodeURIComponent(server)}`, signal)).tools;
}

/** Calls a tool of an MCP server. */
export async function callTool(call: CallRequest, signal: AbortSignal): Promise<CallResult> {
  return (await (await post("welte/tools", call, signal)).json()) as CallResult;
}

function post(path: string, body: unknown, signal: AbortSignal): Promise<Response> {
  return request(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal });
}

/** Has a model of speech write down a file. */
export async function transcribe(file: File, model: string, signal: AbortSignal): Promise<string> {
  const body = new FormData();
  body.append("file", file);
  body.append("model", model);
  const response = await request("v1/audio/transcriptions", { method: "POST", body, signal });
  return ((await response.json()) as { text: string }).text;
}

export interface Finish {
  reason: string;
  /** Calls of tools that the model asks for. */
  calls: ToolCall[];
  usage?: Usage;
  figures?: Figures;
}

/** Streams an answer. `onDelta` gets the text and the thinking of each chunk. */
export async function streamAnswer(
  body: Record<string, unknown>,
  signal: AbortSignal,
  onDelta: (text: string, thinking: string) => void,
): Promise<Finish> {
  const response = await post("v1/chat/completions", body, signal);
  const finish: Finish = { reason: "", calls: [] };
  const events = new EventReader();
  await readBody(response, signal, (text) => {
    for (const data of events.push(text)) {
      if (data !== "[DONE]") readChunk(data, finish, onDelta);
    }
  });
  if (finish.reason === "") throw new RequestError(BROKEN);
  return finish;
}

/** Reads a response while it arrives. */
async function readBody(response: Response, signal: AbortSignal, onText: (text: string) => void): Promise<void> {
  const decoder = new TextDecoder();
  const reader = response.body!.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      onText(done ? decoder.decode() : decoder.decode(value, { stream: true }));
      if (done) break;
    }
  } catch (error) {
    if (signal.aborted || error instanceof RequestError) throw error;
    throw new RequestError(BROKEN);
  } finally {
    // An unread rest of the stream would keep the connection, and so the request, alive.
    reader.cancel().catch(() => {});
  }
}

/** Has the server download a model from the hub. `onProgress` gets each line of progress. */
export async function pullModel(model: string, signal: AbortSignal, onProgress: (line: Progress) => void): Promise<void> {
  const response = await post("api/pull", { model }, signal);
  let rest = "";
  let status = "";
  await readBody(response, signal, (text) => {
    const lines = (rest + text).split("\n");
    rest = lines.pop()!;
    for (const line of lines.filter((line) => line !== "")) {
      const progress = JSON.parse(line) as Progress;
      if (progress.error) throw new RequestError({ kind: "failed", title: "The download failed.", detail: progress.error });
      status = progress.status ?? status;
      onProgress(progress);
    }
  });
  if (status !== "success") throw new RequestError(BROKEN);
}

function readChunk(data: string, finish: Finish, onDelta: (text: string, thinking: string) => void): void {
  let chunk: Chunk;
  try {
    chunk = JSON.parse(data) as Chunk;
  } catch {
    throw new RequestError({ kind: "failed", title: "The server sent an unreadable piece of the answer." });
  }
  if (chunk.error) {
    throw new RequestError({ kind: "failed", title: "The server ended the answer.", detail: chunk.error.message });
  }
  const choice = chunk.choices?.[0];
  if (choice?.delta) {
    const { content, reasoning_content, reasoning, tool_calls: calls } = choice.delta;
    const thinking = reasoning_content ?? reasoning ?? "";
    for (const { index, id, function: part } of calls ?? []) {
      const call = (finish.calls[index] ??= { id: id ?? "", name: "", arguments: "" });
      call.name += part?.name ?? "";
      call.arguments += part?.arguments ?? "";
    }
    if (content || thinking || calls) onDelta(content ?? "", thinking);
  }
  if (choice?.finish_reason) finish.reason = choice.finish_reason;
  if (chunk.usage) finish.usage = chunk.usage;
  if (chunk.welte) finish.figures = chunk.welte;
}
