/** How much of a file has come, or of the weights was read, in bytes. */
export interface Progress {
  done: number;
  total: number;
}

/** Facts about a loaded model. */
export interface ModelFacts {
  [name: string]: unknown;
}

export interface GenerateOptions {
  /** The most tokens of the answer. */
  maxTokens?: number;
  /** 0: always the likeliest token. */
  temperature?: number;
  seed?: number;
  /** Gets each piece of text as it is made. */
  onText?: (text: string) => void;
  /** Ends the answer, which is then the text so far. */
  signal?: AbortSignal;
}

export interface Answer {
  text: string;
  /** What the engine says at the end: counts and speeds. */
  end: Record<string, unknown>;
}

/** An engine in a worker of its own. It does one task after the other. */
export class Engine {
  /** Why this browser cannot run the engine; `null`: it can. */
  static problem(): string | null;
  constructor();
  /** Loads a GGUF file: one that the user has chosen, or one at an address. */
  load(
    model: File | Blob | string | URL,
    onProgress?: (progress: Progress) => void,
  ): Promise<ModelFacts>;
  /** Answers a prompt. Each prompt is a conversation of its own. */
  generate(prompt: string, options?: GenerateOptions): Promise<Answer>;
  /** Ends the worker and frees what it has. */
  close(): void;
}
