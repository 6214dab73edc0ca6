import { Fragment } from "preact";
import { useState } from "preact/hooks";
import type { Command, Pass, Table } from "../api/types";
import { bytes, count, percent } from "../format";
import { type Fold, fold } from "./fold";
import { Roll } from "./roll";

/** The table of commands, as a picture and as text. */
export function TableView({ table }: { table: Table }) {
  const [chosen, setChosen] = useState("decode");
  const [folded, setFolded] = useState(true);
  const pass = table.passes.find((other) => other.pass === chosen) ?? table.passes[0];
  if (!pass) return null;
  const folds = folded ? fold(pass.commands) : pass.commands.map((command) => ({ commands: [command], times: 1 }));
  return (
    <section aria-labelledby="table">
      <header>
        <h2 id="table">Table</h2>
        <div class="choice" role="group" aria-label="Pass">
          {table.passes.map((other) => (
            <button key={other.pass} type="button" aria-pressed={other === pass} onClick={() => setChosen(other.pass)}>
              {other.pass}
            </button>
          ))}
        </div>
      </header>
      <p>
        {count(pass.commands.length)} commands read and write {bytes(pass.bytes)} for one row.{" "}
        <span class="soft">
          Up to {count(pass.rows)} rows per step. One hole is one command; its length is its share of the bytes.
        </span>
      </p>
      <Roll pass={pass} />
      <label class="check">
        <input type="checkbox" checked={folded} onChange={(event) => setFolded(event.currentTarget.checked)} />
        <span>Show equal layers once</span>
      </label>
      <div class="scroll" tabIndex={0}>
        <table class="commands">
          <thead>
            <tr>
              <th class="number">Index</th>
              {!folded && <th class="number">Layer</th>}
              <th>Part</th>
              <th>Op</th>
              <th>Format</th>
              <th class="number">Bytes</th>
              <th class="share">Share</th>
              <th>Reads → writes</th>
            </tr>
          </thead>
          <tbody>
            {folds.map((entry) => (
              <Rows key={entry.commands[0]!.index} entry={entry} folded={folded} top={largest(pass)} />
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

/** The largest share of a command, for the scale of the bars. */
function largest(pass: Pass): number {
  return Math.max(...pass.commands.map(({ share }) => share));
}

function Rows({ entry, folded, top }: { entry: Fold; folded: boolean; top: number }) {
  const { commands, times } = entry;
  const first = commands[0]!.layer;
  return (
    <Fragment>
      {folded && first !== null && (
        <tr class="group">
          <td colSpan={7}>
            {times === 1 ? `layer ${first}` : `layers ${first} to ${first + times - 1} (${times} times)`}
          </td>
        </tr>
      )}
      {commands.map((command) => (
        <Row key={command.index} command={command} folded={folded} top={top} />
      ))}
    </Fragment>
  );
}

function Row({ command, folded, top }: { command: Command; folded: boolean; top: number }) {
  const { index, layer, part, op, format, bytes: size, share, reads, writes } = command;
  return (
    <tr>
      <td class="number">{index}</td>
      {!folded && <td class="number">{layer ?? ""}</td>}
      <td>{part}</td>
      <td>
        <code>{op}</code>
      </td>
      <td>{format ?? ""}</td>
      <td class="number">{bytes(size)}</td>
      <td class="share">
        <i style={{ width: `${(60 * share) / top}%` }} />
        {percent(share)}
      </td>
      <td class="soft">
        {reads.join(", ")} → {writes.join(", ")}
      </td>
    </tr>
  );
}
