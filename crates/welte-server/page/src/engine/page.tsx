import { useEffect, useMemo, useState } from "preact/hooks";
import { fetchTable } from "../api/client";
import { RequestError } from "../api/problem";
import type { EngineState, Guesses, Table } from "../api/types";
import { models, refreshModels } from "../chat/models";
import { KeyForm } from "../chat/problem";
import { count, duration, parameters, percent, rate } from "../format";
import { Icon, Logo } from "../icons";
import { address, follow, lastChat } from "../route";
import { Batch } from "./batch";
import { useEngine, type Sample } from "./live";
import { MemoryPlan } from "./memory";
import { Pools } from "./pools";
import { PrefixTree } from "./prefix";
import { TableView } from "./table";

/** The engine at work. */
export function EnginePage() {
  const [chosen, setChosen] = useState("");
  const { state, samples, problem, refresh } = useEngine(chosen);
  const [marked, setMarked] = useState<number>();
  const table = useTable(state?.model.id);
  // The table does not change with the state, so it is not rendered again.
  const tableView = useMemo(() => table && <TableView table={table} />, [table]);
  useEffect(() => void refreshModels(), []);
  const loaded = models.value.filter(({ welte }) => welte?.loaded !== false);
  return (
    <div class="engine-page">
      <header class="top">
        <a
          href={address({ page: "chat", chat: lastChat.value })}
          class="brand"
          onClick={follow({ page: "chat", chat: lastChat.value })}
        >
          <Icon name="left" />
          <Logo />
          <span>Chat</span>
        </a>
        <h1>Engine</h1>
        {loaded.length > 1 && state && (
          <select aria-label="Model" value={state.model.id} onChange={(event) => setChosen(event.currentTarget.value)}>
            {loaded.map(({ id }) => (
              <option key={id}>{id}</option>
            ))}
          </select>
        )}
        <span class="space" />
        {state && (
          <span class={`live ${problem ? "lost" : ""}`}>
            {problem ? "no connection" : "live"} · up {duration(state.uptime_ms)} · Welte {state.version}
          </span>
        )}
      </header>
      <main>
        {problem && (
          <div class="problem" role="alert">
            <p>{problem.title}</p>
            {problem.detail && <p class="soft">{problem.detail}</p>}
            {problem.kind === "key" ? <KeyForm onSaved={refresh} /> : <p class="soft">The page tries again by itself.</p>}
          </div>
        )}
        {state && (
          <>
            <Facts state={state} />
            <Rates state={state} samples={samples} />
            <Batch state={state} onMark={setMarked} />
            <Pools state={state} marked={marked} />
            <PrefixTree state={state} />
            <MemoryPlan state={state} />
          </>
        )}
        {tableView}
      </main>
    </div>
  );
}

function useTable(model: string | undefined): Table | undefined {
  const [table, setTable] = useState<Table>();
  useEffect(() => {
    if (model === undefined) return;
    const control = new AbortController();
    fetchTable(model, control.signal).then(setTable, (error: unknown) => {
      // The live part of the page reports that the server cannot be reached.
      if (!control.signal.aborted && !(error instanceof RequestError)) throw error;
    });
    return () => control.abort();
  }, [model]);
  return table;
}

function Facts({ state }: { state: EngineState }) {
  const { model, device } = state;
  const weights = model.parameters === null ? "" : `${parameters(model.parameters)} weights in `;
  const facts = [
    `${model.architecture}, ${count(model.layers)} layers`,
    `${weights}${model.formats.join(", ")}`,
    `${count(model.context)} positions`,
    device.name,
    device.replay,
    ...(device.bandwidth === null ? [] : [`reads ${count(device.bandwidth / 1e9)} GB/s`]),
  ];
  return (
    <section class="facts" aria-label="Model and device">
      <h2>{model.id}</h2>
      <p class="soft">{facts.join(" · ")}</p>
    </section>
  );
}

function Rates({ state, samples }: { state: EngineState; samples: Sample[] }) {
  const { rates, slots, queue, tree, totals, engine } = state;
  const running = slots.filter((slot) => slot.state !== "idle").length;
  const reused = tree.prompt_tokens > 0 ? tree.reused_tokens / tree.prompt_tokens : 0;
  return (
    <section class="rates" aria-label="Figures">
      <Figure name="Generation" value={rate(rates.decode)} unit="tok/s" samples={samples.map(({ decode }) => decode)} />
      <Figure name="Prompts" value={rate(rates.prompt)} unit="tok/s" samples={samples.map(({ prompt }) => prompt)} />
      <Figure
        name="Share of the floor"
        value={rates.floor_share === null ? "in cache" : percent(rates.floor_share)}
        unit={rates.floor_share === null ? "no floor" : `${rates.rows.toFixed(1)} rows per step`}
      />
      <Figure name="Running" value={count(running)} unit={`of ${count(engine.slots)} slots`} />
      <Figure name="Waiting" value={count(queue.length)} unit={`of ${count(engine.queue)} places`} />
      <Figure name="Prompt tokens from cache" value={percent(reused)} unit={`${count(tree.hits)} of ${count(tree.lookups)} hits`} />
      <Figure
        name="Since start"
        value={count(totals.generated_tokens)}
        unit={`tokens in ${count(totals.requests)} requests`}
      />
      <Figure name="Preemptions" value={count(totals.preemptions)} unit="since start" />
      {totals.guesses.drafted > 0 && <Guessed guesses={totals.guesses} />}
    </section>
  );
}

/** How many guesses were right, and in which share of the rounds each position was. */
function Guessed({ guesses: { drafted, accepted, rounds, by_position } }: { guesses: Guesses }) {
  const last = by_position.findLastIndex((right) => right > 0);
  const shares = by_position.slice(0, last + 1).map((right) => percent(right / Math.max(1, rounds)));
  return (
    <Figure
      name="Right guesses"
      value={percent(accepted / drafted)}
      unit={last < 0 ? `of ${count(drafted)}` : `by position: ${shares.join(", ")}`}
    />
  );
}

interface FigureProps {
  name: string;
  value: string;
  unit: string;
  samples?: number[];
}

function Figure({ name, value, unit, samples }: FigureProps) {
  return (
    <div class="figure">
      <h3>{name}</h3>
      <p>
        <strong>{value}</strong> <span class="soft">{unit}</span>
      </p>
      {samples && <Line samples={samples} />}
    </div>
  );
}

/** The last minute as a line. */
function Line({ samples }: { samples: number[] }) {
  const top = Math.max(1, ...samples);
  const points = samples.map((value, i) => {
    const x = 100 - (samples.length - 1 - i) * (100 / 119);
    return `${x.toFixed(1)},${(23 - (22 * value) / top).toFixed(1)}`;
  });
  return (
    <svg class="line" viewBox="0 0 100 24" preserveAspectRatio="none" aria-hidden="true">
      <polyline points={points.join(" ")} />
    </svg>
  );
}
