import type { EngineState, Slot } from "../api/types";
import { count, duration, rate } from "../format";

const STATES = { idle: "idle", prompt: "prompt", decode: "generating" };

interface Props {
  state: EngineState;
  /** Told which slot the reader points at, to mark its pages. */
  onMark: (slot: number | undefined) => void;
}

/** The running batch: one bar per slot, from position 0 to the sequence's limit, and the queue. */
export function Batch({ state, onMark }: Props) {
  const { slots, queue } = state;
  const longest = Math.max(1, ...slots.map((slot) => slot.limit ?? 0));
  return (
    <section aria-labelledby="batch">
      <header>
        <h2 id="batch">Running batch</h2>
        <ul class="legend" aria-label="Legend">
          <li class="key cached">from cache</li>
          <li class="key prompt">prompt</li>
          <li class="key generated">generated</li>
          <li class="key rest">budget left</li>
        </ul>
      </header>
      <div class="scroll" tabIndex={0}>
        <table class="batch">
          <thead>
            <tr>
              <th>Slot</th>
              <th>State</th>
              <th class="bar-column">Positions, 0 to {count(longest)}</th>
              <th class="number">Position</th>
              <th class="number">Limit</th>
              <th class="number">tok/s</th>
              <th class="number">Time</th>
              <th>Request</th>
            </tr>
          </thead>
          <tbody>
            {slots.map((slot) => (
              <SlotRow key={slot.slot} slot={slot} longest={longest} onMark={onMark} />
            ))}
          </tbody>
        </table>
      </div>
      {queue.length > 0 && (
        <>
          <h3>Queue</h3>
          <ol class="queue">
            {queue.slice(0, 20).map((waiting) => (
              <li key={waiting.request}>
                <code>{waiting.request}</code>
                <span>{count(waiting.prompt_tokens)} prompt tokens</span>
                <span>waiting {duration(waiting.waiting_ms ?? 0)}</span>
                {waiting.priority !== 0 && <span>priority {waiting.priority}</span>}
                {waiting.preempted && <span class="notice">preempted</span>}
              </li>
            ))}
          </ol>
          {queue.length > 20 && <p class="soft">and {count(queue.length - 20)} more</p>}
        </>
      )}
    </section>
  );
}

function SlotRow({ slot, longest, onMark }: { slot: Slot; longest: number } & Pick<Props, "onMark">) {
  const [mark, unmark] = [() => onMark(slot.slot), () => onMark(undefined)];
  // The same for an idle slot: a sequence may begin, and another one end, while the reader points at the row.
  const pointed = { tabIndex: 0, onMouseEnter: mark, onMouseLeave: unmark, onFocus: mark, onBlur: unmark };
  if (slot.state === "idle") {
    return (
      <tr class="idle" {...pointed}>
        <td>{slot.slot}</td>
        <td>idle</td>
        <td class="bar-column" colSpan={6} />
      </tr>
    );
  }
  const { position = 0, limit = 0, prompt_tokens: prompt = 0, cached_tokens: cached = 0 } = slot;
  const computed = Math.max(0, Math.min(position, prompt) - cached);
  const generated = Math.max(0, position - prompt);
  const part = (tokens: number) => ({ width: `${(100 * tokens) / longest}%` });
  return (
    <tr {...pointed}>
      <td>{slot.slot}</td>
      <td>{STATES[slot.state]}</td>
      <td class="bar-column">
        <div class="bar" aria-hidden="true">
          <i class="key cached" style={part(Math.min(cached, position))} />
          <i class="key prompt" style={part(computed)} />
          <i class="key generated" style={part(generated)} />
          <i class="key rest" style={part(Math.max(0, limit - position))} />
        </div>
      </td>
      <td class="number">{count(position)}</td>
      <td class="number">{count(limit)}</td>
      <td class="number">{slot.tokens_per_second == null || slot.state === "prompt" ? "" : rate(slot.tokens_per_second)}</td>
      <td class="number">{duration(slot.running_ms ?? 0)}</td>
      <td>
        <code>{slot.request}</code>
      </td>
    </tr>
  );
}
