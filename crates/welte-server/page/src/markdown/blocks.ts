import { Marked, type Token, type Tokens } from "marked";
import { math } from "./math";
import { limitNesting } from "./nesting";

const marked = new Marked({ gfm: true, extensions: math });
limitNesting(marked);

/** A block of the text: a paragraph, a list, a code block, … */
export interface Block {
  id: number;
  token: Token;
  /** The block may still change. */
  open: boolean;
}

interface Fence {
  char: string;
  length: number;
  /** Where the code begins in the text. */
  code: number;
  /** Where the first line that was not searched for the end begins. */
  searched: number;
  block: Block;
}

/**
 * Splits a growing text into blocks. Blocks that can no longer change are kept, and only the rest is read again, so that the
 * work for an answer grows with its length and not with its square.
 */
export class Blocks {
  private closed: Block[] = [];
  private tail: Block[] = [];
  private text = "";
  /** How much of the text lies in closed blocks. */
  private offset = 0;
  private fence: Fence | undefined;
  private serial = 0;
  /** Characters read by the lexer so far: what the tests look at. */
  work = 0;

  /** All blocks of the text. A text that does not continue the previous one is read from the start. */
  update(text: string): readonly Block[] {
    if (!text.startsWith(this.text)) this.reset();
    this.text = text;
    if (this.fence && !this.continueFence(this.fence)) return this.all();
    this.read();
    return this.all();
  }

  /** All blocks of a text that is complete. */
  finish(text: string): readonly Block[] {
    const before = this.update(text);
    this.reset();
    this.text = text;
    this.work += text.length;
    // References to links may be defined after their use, so the whole text is read once more. Blocks that are the same as
    // before keep their identity and are not rendered again.
    this.closed = marked.lexer(text).filter(isShown).map((token, i) => {
      const old = before[i];
      return old && sameSource(old.token, token) && !hasReference(token) ? { ...old, open: false } : { ...this.block(token), open: false };
    });
    this.offset = text.length;
    return this.closed;
  }

  /** A block of the token; `before` is the block in its place so far. */
  private block(token: Token, before?: Block): Block {
    return { id: before?.id ?? this.serial++, token, open: true };
  }

  private reset(): void {
    this.closed = [];
    this.tail = [];
    this.text = "";
    this.offset = 0;
    this.fence = undefined;
  }

  private all(): Block[] {
    return [...this.closed, ...this.tail];
  }

  private read(): void {
    const rest = this.text.slice(this.offset);
    this.work += rest.length;
    const tokens = marked.lexer(rest);
    const solid = tokens.flatMap((token, i) => (token.type === "space" ? [] : [i]));
    // A block is closed when the next block has begun with a whole line. A shorter line may still continue the block, like the
    // dash of another list item.
    let last = solid.pop();
    if (last !== undefined && !tokens[last]!.raw.includes("\n")) last = solid.pop();
    let start = 0;
    for (const token of tokens.slice(0, last ?? 0)) {
      start += token.raw.length;
      if (isShown(token)) this.closed.push({ ...this.block(token, this.tail.shift()), open: false });
    }
    this.offset += start;
    const open = tokens.slice(last ?? 0).filter(isShown);
    this.tail = open.map((token, i) => this.block(token, this.tail[i]));
    this.openFence();
  }

  /** Notices that the rest of the text is one code block without an end. */
  private openFence(): void {
    const rest = this.text.slice(this.offset);
    const head = rest.match(/^(`{3,}|~{3,})([^\n`]*)\n/);
    const block = this.tail[0];
    if (!head || !block || this.tail.length > 1 || block.token.type !== "code") return;
    const fence = head[1]!;
    const code = this.offset + head[0].length;
    this.fence = { char: fence[0]!, length: fence.length, code, searched: code, block };
    if (this.continueFence(this.fence)) this.read();
  }

  /** Extends the open code block. Returns whether its end was found; the lexer then reads the block once more. */
  private continueFence(fence: Fence): boolean {
    for (;;) {
      const end = this.text.indexOf("\n", fence.searched);
      const line = this.text.slice(fence.searched, end < 0 ? undefined : end);
      if (isFenceEnd(line, fence)) {
        // Without its line break, the line may still become code.
        if (end < 0) break;
        this.fence = undefined;
        this.closeFence(fence, end + 1);
        return true;
      }
      if (end < 0) break;
      fence.searched = end + 1;
    }
    const raw = this.text.slice(this.offset);
    // While the last line may be the end of the block, it is not shown as code.
    const last = this.text.slice(fence.searched);
    const shown = last !== "" && isFenceStart(last, fence) ? fence.searched : this.text.length;
    const token: Tokens.Code = { ...(fence.block.token as Tokens.Code), raw, text: this.text.slice(fence.code, shown) };
    fence.block = { ...fence.block, token };
    this.tail = [fence.block];
    return false;
  }

  private closeFence(fence: Fence, end: number): void {
    const raw = this.text.slice(this.offset, end);
    const text = this.text.slice(fence.code, Math.max(fence.code, fence.searched - 1));
    const token: Tokens.Code = { ...(fence.block.token as Tokens.Code), raw, text };
    this.closed.push({ ...fence.block, token, open: false });
    this.tail = [];
    this.offset = end;
  }
}

function isFenceEnd(line: string, fence: Fence): boolean {
  const text = line.trim();
  return text.length >= fence.length && text === fence.char.repeat(text.length) && line.search(/\S/) <= 3;
}

/** Whether a line that is not complete may become the end of the block. */
function isFenceStart(line: string, fence: Fence): boolean {
  const text = line.trim();
  return text === fence.char.repeat(text.length) && line.search(/\S|$/) <= 3;
}

function isShown(token: Token): boolean {
  return token.type !== "space" && token.type !== "def";
}

function sameSource(a: Token, b: Token): boolean {
  return a.type === b.type && a.raw.trimEnd() === b.raw.trimEnd();
}

/** Whether a block may refer to a link that is defined elsewhere. */
function hasReference(token: Token): boolean {
  return /\[[^\]]*\]/.test(token.raw) && token.type !== "code";
}
