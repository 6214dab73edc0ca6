import type { EngineState } from "../api/types";
import { bytes, percent } from "../format";

const CLASSES = ["weights", "cache", "scratch decode", "scratch prompt", "tables"];

/** The memory plan: all that was allocated at load, by class. */
export function MemoryPlan({ state }: { state: EngineState }) {
  const { plan, device } = state;
  const sums = CLASSES.map((name, i) => ({
    name,
    color: `class-${i}`,
    bytes: plan.entries.filter((entry) => entry.class === name).reduce((sum, entry) => sum + entry.bytes, 0),
  })).filter((sum) => sum.bytes > 0);
  const whole = device.memory ?? plan.available ?? plan.total;
  const of = device.memory ? `of ${bytes(device.memory)} of the device` : plan.available ? `of ${bytes(plan.available)} available` : "";
  return (
    <section aria-labelledby="memory">
      <header>
        <h2 id="memory">Memory plan</h2>
        <ul class="legend" aria-label="Classes">
          {sums.map((sum) => (
            <li key={sum.name} class={`key ${sum.color}`}>
              {sum.name} {bytes(sum.bytes)}
            </li>
          ))}
        </ul>
      </header>
      <div class="bar large" aria-hidden="true">
        {sums.map((sum) => (
          <i key={sum.name} class={`key ${sum.color}`} style={{ width: `${(100 * sum.bytes) / Math.max(whole, plan.total)}%` }} />
        ))}
      </div>
      <p>
        {bytes(plan.total)} {of} <span class="soft">({percent(plan.total / whole)}). Nothing is allocated after load.</span>
      </p>
      <details>
        <summary>All {plan.entries.length} lines</summary>
        <div class="scroll" tabIndex={0}>
          <table>
            <thead>
              <tr>
                <th>Name</th>
                <th>Class</th>
                <th class="number">Size</th>
              </tr>
            </thead>
            <tbody>
              {plan.entries.map((entry) => (
                <tr key={entry.name}>
                  <td>{entry.name}</td>
                  <td>{entry.class}</td>
                  <td class="number">{bytes(entry.bytes)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </details>
    </section>
  );
}
