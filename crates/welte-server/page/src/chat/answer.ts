import { signal } from "@preact/signals";

/** The least share of time between two renderings: a rendering that takes 5 ms is followed by a pause of 20 ms. */
const PAUSE = 4;

/**
 * An answer while it streams. Deltas are collected in plain strings; the signals that the page renders change at most once per
 * frame, and more rarely if rendering is slow.
 */
export class Answer {
  readonly text = signal("");
  readonly thinking = signal("");
  /** Chunks received so far: about as many as tokens. */
  readonly tokens = signal(0);
  readonly controller = new AbortController();
  readonly started = performance.now();
  firstToken?: number;
  firstText?: number;

  private textNow: string;
  private thinkingNow = "";
  private tokensNow = 0;
  private scheduled = false;
  private notBefore = 0;

  constructor(text = "") {
    this.textNow = text;
    this.text.value = text;
  }

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

  /** Everything received so far. */
  received(): { text: string; thinking: string } {
    return { text: this.textNow, thinking: this.thinkingNow };
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
