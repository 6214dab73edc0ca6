import { useEffect, useState } from "preact/hooks";
import { fetchState, fetchTable } from "../api/client";
import { RequestError } from "../api/problem";
import type { EngineState, Pass } from "../api/types";
import { Roll } from "../engine/roll";
import { bytes, count, parameters } from "../format";
import { address, follow } from "../route";
import { model, send } from "./store";

const STARTERS = [
  "Tell me a story about a fox.",
  "Explain how a language model chooses its next word.",
  "Write a Python function that finds the median of a list.",
  "Suggest three dinners for a busy week.",
];

interface Facts {
  state: EngineState;
  pass: Pass | undefined;
}

/** The start of a conversation: who answers, what to ask, the device, and a picture of the table. */
export function Start() {
  const facts = useFacts(model.value);
  return (
    <section class="start" aria-label="Start">
      <h2>What would you like to know?</h2>
      {model.value !== "" && (
        <>
          <p class="soft">
            <strong>{model.value}</strong> answers.
          </p>
          <ul class="starters" aria-label="Suggestions">
            {STARTERS.map((text) => (
              <li key={text}>
                <button type="button" onClick={() => send(text, [])}>
                  {text}
                </button>
              </li>
            ))}
          </ul>
        </>
      )}
      {facts && (
        <a class="roll-link" href={address({ page: "engine", chat: "" })} onClick={follow({ page: "engine", chat: "" })}>
          {facts.pass && <Roll pass={facts.pass} compact />}
          <span class="soft">{describe(facts)}</span>
        </a>
      )}
    </section>
  );
}

function describe({ state, pass }: Facts): string {
  const { model, device } = state;
  const size = model.parameters ? `${parameters(model.parameters)} weights` : model.architecture;
  const list = [`${size} in ${model.formats[0] ?? "F32"}`, device.name, `${count(model.context)} positions`];
  if (pass) list.push(`${count(pass.commands.length)} commands and ${bytes(pass.bytes)} per token`);
  return list.join(" · ");
}

function useFacts(id: string): Facts | undefined {
  const [facts, setFacts] = useState<Facts>();
  useEffect(() => {
    if (id === "") return;
    const control = new AbortController();
    const load = async () => {
      try {
        const [state, table] = await Promise.all([fetchState(id, control.signal), fetchTable(id, control.signal)]);
        setFacts({ state, pass: table.passes.find(({ pass }) => pass === "decode") });
      } catch (error) {
        // A model that is not loaded has no facts, and the page works without them.
        if (!control.signal.aborted && !(error instanceof RequestError)) throw error;
        setFacts(undefined);
      }
    };
    void load();
    return () => control.abort();
  }, [id]);
  return facts;
}
