// What the page asks of the server. The server returns dist/index.html for / and for /engine, and the other files of dist/ under their
// names. Requests are relative to the folder of that path, so the page also works behind a reverse proxy under a prefix. With an API key
// every request carries `Authorization: Bearer KEY`.
//
// Durations end in `_ms`, sizes are bytes, shares lie between 0 and 1. A value that the server does not know is null. The page ignores
// other fields. `?model=ID` of /welte/state and /welte/table selects a loaded model; without it they describe the default model.
//
// Errors have OpenAI's shape. At 401 and 403 the page asks for the API key and tries again; at 429 and 503 it counts down `Retry-After`.

/** An entry of GET /v1/models; the first one is the default model. */

export interface ModelEntry {
  id: string;
  /**
   * In memory (other models load at their first request); the most positions of one sequence; whether it takes sounds, if it is loaded;
   * whether it is a model of speech, which only writes down what it hears (POST /v1/audio/transcriptions).
   */
  welte?: { loaded?: boolean; context?: number | null; audio?: boolean | null; speech?: boolean };
}

/** The figures of an answer. */
export interface Figures {
  /** Generated tokens per second, without the prompt. */
  tokens_per_second?: number | null;
  /** Share of the memory floor; null if the model fits the device's cache or its bandwidth is unknown. */
  floor_share?: number | null;
  /** Tokens of the prompt that were not computed again. */
  cached_tokens?: number | null;
  /** The first token that differs from the closest cached text; null if nothing similar was cached or all of it matched. */
  differs_at?: number | null;
  /** Time from admission to the first token. */
  prompt_ms?: number | null;
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  prompt_tokens_details?: { cached_tokens?: number | null } | null;
}

/**
 * An event of POST /v1/chat/completions. The last one has empty `choices`, `usage` and `welte`; then comes `data: [DONE]`. A stream
 * without a finish reason is broken: the page keeps the text and offers to try again. Closing the connection cancels the answer.
 */
export interface Chunk {
  choices?: {
    delta?: {
      content?: string | null;
      reasoning_content?: string | null;
      reasoning?: string | null;
      /** Pieces of calls. The first piece of each has its id and name. */
      tool_calls?: { index: number; id?: string; function?: { name?: string; arguments?: string } }[];
    };
    finish_reason?: string | null;
  }[];
  usage?: Usage | null;
  welte?: Figures | null;
  error?: { message?: string; type?: string };
}

/** A tool of an MCP server: GET /welte/tools has the labels of the servers, GET /welte/tools/LABEL the tools of one. */
export interface Tool {
  name: string;
  description?: string | null;
  /** A JSON schema. */
  parameters: unknown;
}

/** A call that the model asks for. */
export interface ToolCall {
  id: string;
  name: string;
  arguments: string;
}

/** The body of POST /welte/tools, which calls a tool. */
export interface CallRequest {
  server: string;
  name: string;
  arguments: string;
}

/** What the tool said, or what went wrong. */
export interface CallResult {
  output?: string;
  error?: string;
}

/** A line of a download. */
export interface Progress {
  status?: string;
  completed?: number;
  total?: number;
  error?: string;
}

/** A line of welte_table's MemoryPlan. */
export interface PlanEntry {
  name: string;
  class: string;
  bytes: number;
}

/** A slot; an idle one has only `slot` and `state`. */
export interface Slot {
  slot: number;
  state: "idle" | "prompt" | "decode";
  request?: string;
  prompt_tokens?: number;
  cached_tokens?: number;
  /** Positions computed so far, cached ones included. */
  position?: number;
  /** Where the sequence must end: prompt plus budget. */
  limit?: number;
  tokens_per_second?: number | null;
  /** Since admission. */
  running_ms?: number;
  /** Pages for each pool, in order of position, as runs: first page, count. */
  pages?: { pool: number; runs: [number, number][] }[];
}

/** A waiting request, in the order of admission. A preempted one ran before and lost its pages. */
export interface Waiting {
  request: string;
  prompt_tokens: number;
  priority: number;
  waiting_ms: number | null;
  preempted: boolean;
}

/** A cache. */
export interface Pool {
  name: string;
  kind: "attention" | "recurrent";
  /** null for a recurrent cache. */
  format: string | null;
  layers: number;
  /** 0: attention is unbounded. */
  window: number;
  page_bytes: number;
  /** A letter per page: . free, o owned by one sequence, s shared by several, c only in the prefix tree. */
  pages: string;
}

/** A run of nodes of the prefix tree without a fork; at most 256, those used last, each after its parent. Never with texts or tokens. */
export interface Branch {
  id: number;
  parent: number | null;
  /** Position of the first token. */
  start: number;
  tokens: number;
  /** Running sequences on it. */
  sequences: number;
  idle_ms: number | null;
}

/** GET /welte/state, twice per second while the engine page is visible. */
export interface EngineState {
  version: string;
  uptime_ms: number;
  model: {
    id: string;
    architecture: string;
    /** How many weights. */
    parameters: number | null;
    /** Of the weights by bytes, largest first. */
    formats: string[];
    layers: number;
    vocab: number;
    context: number;
  };
  /** `replay` says in words how it replays a table, `bandwidth` is its reading speed in bytes per second; `memory` is null today. */
  device: { kind: string; name: string; replay: string; memory: number | null; bandwidth: number | null };
  /** `available` is null today. */
  plan: { total: number; available: number | null; entries: PlanEntry[] };
  /** Sequences that run together, requests that may wait, positions of a page, the most rows of a step. */
  engine: { slots: number; queue: number; page: number; decode_rows: number; prompt_rows: number };
  /** Averages over the last second: tokens per second over all slots, rows of a decode step, share of the memory floor. */
  rates: { decode: number; prompt: number; rows: number; floor_share: number | null };
  slots: Slot[];
  queue: Waiting[];
  pools: Pool[];
  tree: {
    nodes: number;
    capacity: number;
    tokens: number;
    /** Prompts that were looked up since the start, and those that reused at least one page. */
    lookups: number;
    hits: number;
    prompt_tokens: number;
    reused_tokens: number;
    evictions: number | null;
    branches: Branch[];
  };
  /** Since the start. */
  totals: { requests: number; prompt_tokens: number; generated_tokens: number; preemptions: number; guesses: Guesses };
}

/** Tokens that were guessed ahead. They count when their requests end. */
export interface Guesses {
  drafted: number;
  accepted: number;
  /** Steps that verified guesses. */
  rounds: number;
  /** Right first guesses, second ones, and so on. */
  by_position: number[];
}

export interface Command {
  index: number;
  /** null outside of layers. */
  layer: number | null;
  part: string;
  op: string;
  /** null without weights. */
  format: string | null;
  bytes: number;
  flops: number;
  /** Its part of the pass's bytes. */
  share: number;
  /** Names of buffers, in the order of the op's roles. */
  reads: string[];
  writes: string[];
}

/** A pass; bytes and flops are those of one row. */
export interface Pass {
  pass: string;
  rows: number;
  bytes: number;
  flops: number;
  commands: Command[];
}

/** GET /welte/table. */
export interface Table {
  passes: Pass[];
}
