import { batch, signal } from "@preact/signals";
import type { Call, Round } from "./tree";

/** The least share of time between two renderings: a rendering that takes 5 ms is followed by a pause of 20 ms. */
const PAUSE = 4;

/**
 * An answer while it streams. Deltas are collected in plain strings; the signals that the page renders change at most once per
 * frame, and more rarely if rendering is slow.
 */
export class Answer {
  readonly text = signal("");
  readonly thinking = signal("");
  /** What came before calls of tools, with the calls. The text and the thinking above are what followed. */
  readonly rounds = signal<Round[]>([]);
  /** Chunks received so far: about as many as tokens. */
  readonly tokens = signal(0);
  readonly controller = new AbortController();
  readonly started = performance.now();
  firstToken?: number;
  firstText?: number;

  private textNow = "";
  private thinkingNow = "";
  private tokensNow = 0;
  private scheduled = false;
  private notBefore = 0;
  private readonly decisions = new Map<string, (run: boolean) => void>();

  append(text: string, thinking: string): void {
    this.firstToken ??= performance.now();
    if (text) this.firstText ??= performance.now();
    this.textNow += text;
    this.thinkingNow += thinking;
    this.tokensNow += 1;
    if (!this.scheduled) {
      this.scheduled = true;
      this.schedule();
    }
  }

  /** Everything received so far, for the message. */
  received(): Round & { rounds?: Round[] } {
    const rounds = this.rounds.value;
    const thought = this.thinkingNow !== "";
    return {
      text: this.textNow,
      ...(thought && {
        thinking: this.thinkingNow,
        thinkingMs: (this.firstText ?? performance.now()) - (this.firstToken ?? this.started),
      }),
      ...(rounds.length > 0 && { rounds }),
    };
  }

  /** The model asks for calls: what it said so far belongs to them. */
  call(calls: Call[]): void {
    const { rounds = [], ...said } = this.received();
    this.textNow = this.thinkingNow = "";
    this.tokensNow = 0;
    this.firstToken = this.firstText = undefined;
    batch(() => {
      this.rounds.value = [...rounds, { ...said, calls }];
      this.text.value = this.thinking.value = "";
      this.tokens.value = 0;
    });
  }

  change(call: Call, change: Partial<Call>): void {
    const changed = (other: Call) => (other.id === call.id ? { ...other, ...change } : other);
    this.rounds.value = this.rounds.value.map((round) => ({ ...round, calls: round.calls?.map(changed) }));
  }

  /** Waits until the reader says whether a call is made. */
  decision(call: Call): Promise<boolean> {
    const { signal } = this.controller;
    return new Promise((resolve, reject) => {
      this.decisions.set(call.id, resolve);
      signal.addEventListener("abort", () => reject(signal.reason), { once: true });
    });
  }

  decide(call: Call, run: boolean): void {
    this.decisions.get(call.id)?.(run);
  }

  /** Tokens per second since the first token. */
  rate(): number | undefined {
    if (this.firstToken === undefined || this.tokensNow < 2) return undefined;
    const seconds = (performance.now() - this.firstToken) / 1000;
    return seconds > 0 ? (this.tokensNow - 1) / seconds : undefined;
  }

  private schedule(): void {
    if (document.hidden) setTimeout(() => this.publish(), 500);
    else requestAnimationFrame(() => this.publish());
  }

  private publish(): void {
    const start = performance.now();
    if (start < this.notBefore) {
      this.schedule();
      return;
    }
    this.scheduled = false;
    this.text.value = this.textNow;
    this.thinking.value = this.thinkingNow;
    this.tokens.value = this.tokensNow;
    // Preact renders in a microtask, so a task that follows sees the time that rendering took.
    setTimeout(() => {
      const end = performance.now();
      this.notBefore = end + PAUSE * (end - start) - 16;
    });
  }
}
