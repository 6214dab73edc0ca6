import type { EngineState, Pool } from "../api/types";
import { bytes, count } from "../format";
import { useWidth } from "./width";

/** The letters of a pool's map, with their names. */
const STATES: [string, string][] = [
  ["o", "owned"],
  ["s", "shared"],
  ["c", "cached"],
  [".", "free"],
];

const NAMES = new Map(STATES);

export function Pools({ state, marked }: { state: EngineState; marked: number | undefined }) {
  return (
    <section aria-labelledby="pools">
      <header>
        <h2 id="pools">Page pools</h2>
        <ul class="legend" aria-label="Legend">
          {STATES.map(([letter, name]) => (
            <li key={letter} class={`key ${name}`}>
              {name}
            </li>
          ))}
        </ul>
      </header>
      {state.pools.map((pool, i) => (
        <PoolMap key={pool.name} pool={pool} page={state.engine.page} runs={runsOf(state, marked, i)} />
      ))}
    </section>
  );
}

/** The pages of a slot in a pool. */
function runsOf(state: EngineState, slot: number | undefined, pool: number): [number, number][] {
  const found = state.slots.find((other) => other.slot === slot);
  return found?.pages?.find((list) => list.pool === pool)?.runs ?? [];
}

function PoolMap({ pool, page, runs }: { pool: Pool; page: number; runs: [number, number][] }) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const total = pool.pages.length;
  const cell = cellSize(total);
  const columns = Math.max(1, Math.floor(width / cell));
  const rows = Math.ceil(total / columns);
  const counts = STATES.map(([letter, name]) => ({ name, pages: countOf(pool.pages, letter) }));
  const used = counts.map(({ name, pages }) => `${count(pages)} ${name}`).join(", ");
  const facts = [
    pool.kind === "attention" ? `pages of ${count(page)} positions` : "one page per sequence",
    bytes(pool.page_bytes),
    ...(pool.format ? [pool.format] : []),
    `${count(pool.layers)} layers`,
    ...(pool.window > 0 ? [`window of ${count(pool.window)}`] : []),
  ];
  return (
    <div class="pool">
      <p>
        <strong>{pool.name}</strong> {used} <span class="soft">({facts.join(", ")})</span>
      </p>
      <div ref={ref}>
        {width > 0 && (
          <svg role="img" aria-label={`Map of ${count(total)} pages: ${used}`} width={columns * cell} height={rows * cell}>
            <defs>
              <pattern id={`grid-${cell}`} width={cell} height={cell} patternUnits="userSpaceOnUse">
                <path class="grid" d={`M${cell} 0V${cell}H0`} />
              </pattern>
            </defs>
            {lettersOf(pool.pages).flatMap(([letter, first, length]) =>
              rectangles(first, length, columns, cell).map((box) => (
                <rect key={`${box.x} ${box.y}`} class={`key ${NAMES.get(letter) ?? ""}`} {...box} />
              )),
            )}
            {runs.flatMap(([first, length]) =>
              rectangles(first, length, columns, cell).map((box) => <rect class="marked" {...box} />),
            )}
            <rect width="100%" height="100%" fill={`url(#grid-${cell})`} />
          </svg>
        )}
      </div>
    </div>
  );
}

function cellSize(pages: number): number {
  if (pages <= 800) return 14;
  if (pages <= 3000) return 10;
  return pages <= 12_000 ? 6 : 4;
}

function countOf(text: string, letter: string): number {
  return text.split(letter).length - 1;
}

/** Runs of equal letters: letter, first place, length. */
function lettersOf(text: string): [string, number, number][] {
  const runs: [string, number, number][] = [];
  for (let at = 0; at < text.length; ) {
    let end = at + 1;
    while (text[end] === text[at]) end += 1;
    runs.push([text[at]!, at, end - at]);
    at = end;
  }
  return runs;
}

interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

/** A run of cells as rectangles: the rest of its first row, whole rows, the start of its last row. */
function rectangles(first: number, length: number, columns: number, cell: number): Box[] {
  const boxes: Box[] = [];
  const add = (row: number, column: number, wide: number, high: number) =>
    boxes.push({ x: column * cell, y: row * cell, width: wide * cell, height: high * cell });
  let at = first;
  let left = length;
  const column = at % columns;
  if (column > 0) {
    const wide = Math.min(left, columns - column);
    add(Math.floor(at / columns), column, wide, 1);
    at += wide;
    left -= wide;
  }
  const whole = Math.floor(left / columns);
  if (whole > 0) {
    add(at / columns, 0, columns, whole);
    at += whole * columns;
    left -= whole * columns;
  }
  if (left > 0) add(at / columns, 0, left, 1);
  return boxes;
}
