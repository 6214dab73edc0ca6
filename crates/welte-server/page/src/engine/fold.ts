import type { Command } from "../api/types";

/** A stretch of commands that is repeated for `times` neighbouring layers. */
export interface Fold {
  commands: Command[];
  times: number;
}

/** What two layers must have in common to be shown once. */
function pattern(commands: Command[]): string {
  return JSON.stringify(commands.map(({ part, op, format, bytes, reads, writes }) => [part, op, format, bytes, reads, writes]));
}

/** Cuts a table into stretches: layers that do the same are shown once. */
export function fold(commands: Command[]): Fold[] {
  const folds: Fold[] = [];
  for (let at = 0; at < commands.length; ) {
    const { layer } = commands[at]!;
    let end = at + 1;
    while (layer !== null && commands[end]?.layer === layer) end += 1;
    const group = commands.slice(at, end);
    const last = folds.at(-1);
    const same = layer !== null && last && last.commands[0]!.layer !== null && pattern(last.commands) === pattern(group);
    if (same) last.times += 1;
    else folds.push({ commands: group, times: 1 });
    at = end;
  }
  return folds;
}
