import { useMemo } from "preact/hooks";
import type { Command, Pass } from "../api/types";
import { bytes, percent } from "../format";
import { useWidth } from "./width";

interface Hole {
  command: Command;
  x: number;
  width: number;
  lane: number;
}

/** The shortest hole that can be seen, in pixels. */
const SHORTEST = 1.5;

/**
 * Lays the commands of a pass out like holes in a piano roll: one lane per op, time from left to right, and the length of a
 * hole is the command's share of the bytes.
 */
function holes(pass: Pass, lanes: string[], width: number): Hole[] {
  if (width === 0) return [];
  // On a narrow screen, at least half of the width still tells the shares.
  const shortest = Math.min(SHORTEST, (0.5 * width) / pass.commands.length);
  const scale = width - shortest * pass.commands.length;
  let x = 0;
  return pass.commands.map((command) => {
    const length = shortest + scale * command.share;
    const hole = { command, x, width: length, lane: lanes.indexOf(command.op) };
    x += length;
    return hole;
  });
}

/** What an op mostly does, for its colour. */
function kindOf(op: string): string {
  if (/matmul|expert/.test(op)) return "product";
  if (/attention|rope|append|conv|state/.test(op)) return "cache";
  return "other";
}

function describe({ index, layer, part, op, bytes: size, share }: Command): string {
  const place = layer === null ? part : `layer ${layer} ${part}`;
  return `${index}: ${place} (${op}), ${bytes(size)}, ${percent(share)}`;
}

/** The picture of a pass. `compact` leaves out the names of the lanes. */
export function Roll({ pass, compact }: { pass: Pass; compact?: boolean }) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const lanes = useMemo(() => [...new Set(pass.commands.map(({ op }) => op))], [pass]);
  const pitch = compact ? 9 : 16;
  const drawn = useMemo(() => holes(pass, lanes, width).map((hole) => draw(hole, pitch)), [pass, width, pitch]);
  const label = `Roll of the ${pass.pass} pass: ${pass.commands.length} commands in ${lanes.length} lanes`;
  return (
    <div class={compact ? "roll compact" : "roll"}>
      {!compact && (
        <ul class="lanes" aria-hidden="true">
          {lanes.map((op) => (
            <li key={op}>{op}</li>
          ))}
        </ul>
      )}
      <div ref={ref} class="paper">
        <svg role="img" aria-label={label} width={width} height={lanes.length * pitch}>
          {drawn}
        </svg>
      </div>
    </div>
  );
}

function draw({ command, x, width, lane }: Hole, pitch: number) {
  const height = pitch * 0.62;
  return (
    <rect
      key={command.index}
      class={`hole ${kindOf(command.op)}`}
      x={x.toFixed(1)}
      y={(lane * pitch + (pitch - height) / 2).toFixed(1)}
      width={Math.max(1, width - 0.8).toFixed(1)}
      height={height.toFixed(1)}
      rx={Math.min(height, width) / 2.5}
    >
      <title>{describe(command)}</title>
    </rect>
  );
}
