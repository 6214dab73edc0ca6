import type { Branch, EngineState } from "../api/types";
import { count, duration } from "../format";
import { useWidth } from "./width";

const PITCH = 14;
const HEIGHT = 8;

interface Placed {
  branch: Branch;
  row: number;
  /** The row of the parent, if the branch is not in it. */
  from: number | undefined;
}

/** Gives each branch a row. The first child continues its parent's row; each further child begins a new row below. */
function place(branches: Branch[]): Placed[] {
  const children = new Map<number | null, Branch[]>();
  const known = new Set(branches.map(({ id }) => id));
  for (const branch of branches) {
    const parent = branch.parent !== null && known.has(branch.parent) ? branch.parent : null;
    children.set(parent, [...(children.get(parent) ?? []), branch]);
  }
  const placed: Placed[] = [];
  let rows = 0;
  const visit = (branch: Branch, row: number, from: number | undefined) => {
    placed.push({ branch, row, from });
    (children.get(branch.id) ?? []).forEach((child, i) => {
      if (i === 0) visit(child, row, undefined);
      else visit(child, rows++, row);
    });
  };
  for (const root of children.get(null) ?? []) visit(root, rows++, undefined);
  return placed;
}

/** The prefix tree: every path from the left is a text whose keys and values are cached. */
export function PrefixTree({ state }: { state: EngineState }) {
  const { tree } = state;
  const [ref, width] = useWidth<HTMLDivElement>();
  const placed = place(tree.branches);
  const end = Math.max(1, ...tree.branches.map(({ start, tokens }) => start + tokens));
  const rows = Math.max(0, ...placed.map(({ row }) => row + 1));
  const x = (position: number) => (position / end) * (width - 2) + 1;
  return (
    <section aria-labelledby="tree">
      <header>
        <h2 id="tree">Prefix tree</h2>
        <ul class="legend" aria-label="Legend">
          <li class="key owned">in use</li>
          <li class="key cached">cached</li>
        </ul>
      </header>
      <p>
        {count(tree.nodes)} of {count(tree.capacity)} nodes hold {count(tree.tokens)} tokens.{" "}
        <span class="soft">
          {count(tree.hits)} of {count(tree.lookups)} prompts reused {count(tree.reused_tokens)} of{" "}
          {count(tree.prompt_tokens)} tokens{tree.evictions === null ? "" : `; ${count(tree.evictions)} evictions`}.
        </span>
      </p>
      <div class="tree" ref={ref}>
        {width > 0 && rows > 0 && (
          <svg role="img" aria-label={`${count(placed.length)} branches`} width={width} height={rows * PITCH}>
            {placed.map(({ branch, row, from }) => (
              <g key={branch.id}>
                {from !== undefined && (
                  <path
                    class="fork"
                    d={`M${x(branch.start).toFixed(1)} ${from * PITCH + HEIGHT}V${row * PITCH + HEIGHT / 2 + 1}`}
                  />
                )}
                <rect
                  class={`key ${branch.sequences > 0 ? "owned" : "cached"}`}
                  x={(x(branch.start) + 0.5).toFixed(1)}
                  y={row * PITCH + 1}
                  width={Math.max(1.5, x(branch.start + branch.tokens) - x(branch.start) - 1).toFixed(1)}
                  height={HEIGHT}
                  rx={3}
                >
                  <title>{describe(branch)}</title>
                </rect>
              </g>
            ))}
          </svg>
        )}
      </div>
      {rows > 0 && (
        <p class="axis soft" aria-hidden="true">
          <span>position 0</span>
          <span>{count(end)}</span>
        </p>
      )}
    </section>
  );
}

function describe({ start, tokens, sequences, idle_ms: idle }: Branch): string {
  const idleFor = idle == null ? "not in use" : `not used for ${duration(idle)}`;
  const use = sequences > 0 ? `${count(sequences)} running sequences` : idleFor;
  return `positions ${count(start)} to ${count(start + tokens)}, ${use}`;
}
