import { count, duration, percent, rate } from "../format";
import type { Answer } from "./answer";
import { contextOf } from "./models";
import type { Message, Stats } from "./tree";

/** The figures of an answer, most telling first. */
function figures(stats: Stats): string[] {
  const list: string[] = [];
  if (stats.tokens_per_second != null) list.push(`${rate(stats.tokens_per_second)} tok/s`);
  if (stats.floor_share != null) list.push(`${percent(stats.floor_share)} of the floor`);
  if (stats.completion_tokens != null) list.push(`${count(stats.completion_tokens)} tokens`);
  const { prompt_tokens: prompt, cached_tokens: cached, differs_at: differs, prompt_ms: ms } = stats;
  if (prompt != null && cached != null) {
    const where = differs == null ? "" : `, differs at ${count(differs)}`;
    list.push(`prompt ${count(prompt)}, ${count(cached)} cached${where}`);
  }
  if (ms != null) list.push(`first token ${duration(ms)}`);
  return list;
}

export function AnswerStats({ message }: { message: Message }) {
  const { stats } = message;
  if (!stats) return null;
  const list = figures(stats);
  const context = contextOf(message.model ?? "");
  const used = (stats.prompt_tokens ?? 0) + (stats.completion_tokens ?? 0);
  if (context !== undefined && used > 0) list.push(`${count(used)} of ${count(context)} positions`);
  return (
    <p class="stats">
      {list.map((item) => (
        <span key={item}>{item}</span>
      ))}
      {stats.finish === "length" && <span class="notice">ended at the length limit</span>}
      {message.state === "stopped" && <span class="notice">stopped</span>}
    </p>
  );
}

/** The figures while the answer streams, as the page measures them. */
export function LiveStats({ answer }: { answer: Answer }) {
  const tokens = answer.tokens.value;
  const speed = answer.rate();
  return (
    <p class="stats" aria-hidden="true">
      <Roll />
      {tokens === 0 ? <span>reading the prompt</span> : <span>{count(tokens)} tokens</span>}
      {speed !== undefined && <span>{rate(speed)} tok/s</span>}
    </p>
  );
}

/** Holes of a paper roll that pass by while the model works. */
function Roll() {
  return (
    <span class="playing">
      <i />
      <i />
      <i />
    </span>
  );
}
