import { Icon } from "../icons";
import { CodeBlock } from "../markdown/code";
import type { Answer } from "./answer";
import { indentJson } from "./json";
import type { Call } from "./tree";

const STATES: Record<Call["state"], string> = {
  asked: "not called",
  running: "not finished",
  done: "called",
  declined: "declined",
  failed: "failed",
};

/** A call of a tool. While its answer streams, the reader decides whether it is made. */
export function CallView({ call, answer }: { call: Call; answer: Answer | undefined }) {
  const waits = answer !== undefined && call.state === "asked";
  const state = waits ? "waits for you" : answer && call.state === "running" ? "running" : STATES[call.state];
  return (
    <section class={`call ${call.state}`} aria-label={`Call of ${call.tool}`}>
      <details open={waits}>
        <summary>
          <Icon name="tool" />
          <span class="name">{call.tool}</span>
          <span class="soft">
            {call.server} · {state}
          </span>
        </summary>
        <CodeBlock text={indentJson(call.arguments) ?? call.arguments} language="json" />
        {call.output !== undefined && <CodeBlock text={call.output} language="" />}
      </details>
      {waits && (
        <div class="row">
          <button type="button" class="primary" aria-label={`Run ${call.tool}`} onClick={() => answer.decide(call, true)}>
            Run
          </button>
          <button type="button" aria-label={`Decline ${call.tool}`} onClick={() => answer.decide(call, false)}>
            Decline
          </button>
        </div>
      )}
    </section>
  );
}
