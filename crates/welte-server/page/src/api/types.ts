// The shapes of API.md. That file explains every field.

export interface ModelEntry {
  id: string;
  welte?: { loaded?: boolean; context?: number | null };
}

export interface Figures {
  tokens_per_second?: number | null;
  floor_share?: number | null;
  cached_tokens?: number | null;
  differs_at?: number | null;
  prompt_ms?: number | null;
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  prompt_tokens_details?: { cached_tokens?: number | null } | null;
}

export interface Chunk {
  choices?: {
    delta?: { content?: string | null; reasoning_content?: string | null; reasoning?: string | null };
    finish_reason?: string | null;
  }[];
  usage?: Usage | null;
  welte?: Figures | null;
  error?: { message?: string; type?: string };
}

/** A line of a download. */
export interface Progress {
  status?: string;
  completed?: number;
  total?: number;
  error?: string;
}

export interface PlanEntry {
  name: string;
  class: string;
  bytes: number;
}

export interface Slot {
  slot: number;
  state: "idle" | "prompt" | "decode";
  request?: string;
  prompt_tokens?: number;
  cached_tokens?: number;
  position?: number;
  limit?: number;
  tokens_per_second?: number | null;
  running_ms?: number;
  pages?: { pool: number; runs: [number, number][] }[];
}

export interface Waiting {
  request: string;
  prompt_tokens: number;
  priority: number;
  waiting_ms: number | null;
  preempted: boolean;
}

export interface Pool {
  name: string;
  kind: "attention" | "recurrent";
  format: string | null;
  layers: number;
  window: number;
  page_bytes: number;
  pages: string;
}

export interface Branch {
  id: number;
  parent: number | null;
  start: number;
  tokens: number;
  sequences: number;
  idle_ms: number | null;
}

export interface EngineState {
  version: string;
  uptime_ms: number;
  model: {
    id: string;
    architecture: string;
    parameters: number | null;
    formats: string[];
    layers: number;
    vocab: number;
    context: number;
  };
  device: { kind: string; name: string; replay: string; memory: number | null; bandwidth: number | null };
  plan: { total: number; available: number | null; entries: PlanEntry[] };
  engine: { slots: number; queue: number; page: number; decode_rows: number; prompt_rows: number };
  rates: { decode: number; prompt: number; rows: number; floor_share: number | null };
  slots: Slot[];
  queue: Waiting[];
  pools: Pool[];
  tree: {
    nodes: number;
    capacity: number;
    tokens: number;
    lookups: number;
    hits: number;
    prompt_tokens: number;
    reused_tokens: number;
    evictions: number | null;
    branches: Branch[];
  };
  totals: { requests: number; prompt_tokens: number; generated_tokens: number; preemptions: number };
}

export interface Command {
  index: number;
  layer: number | null;
  part: string;
  op: string;
  format: string | null;
  bytes: number;
  flops: number;
  share: number;
  reads: string[];
  writes: string[];
}

export interface Pass {
  pass: string;
  rows: number;
  bytes: number;
  flops: number;
  commands: Command[];
}

export interface Table {
  passes: Pass[];
}
