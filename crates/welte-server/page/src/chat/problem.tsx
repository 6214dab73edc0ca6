import { useEffect, useState } from "preact/hooks";
import type { Problem } from "../api/problem";
import { Icon } from "../icons";
import { preferences, setPreferences } from "../preferences";
import { refreshModels } from "./models";
import { regenerate, streaming } from "./store";
import type { Message } from "./tree";

/** What went wrong with an answer, and a way to try again. */
export function ProblemNote({ message, problem }: { message: Message; problem: Problem }) {
  const left = useCountdown(problem.wait ?? 0, message.created);
  const busy = streaming.value !== undefined;
  return (
    <div class="problem" role="alert">
      <p>
        <Icon name="warning" />
        {problem.title}
      </p>
      {problem.detail && <p class="soft">{problem.detail}</p>}
      {problem.kind === "key" ? (
        <KeyForm onSaved={() => regenerate(message)} />
      ) : (
        <button type="button" disabled={busy || left > 0} onClick={() => regenerate(message)}>
          {left > 0 ? `Try again in ${left} s` : "Try again"}
        </button>
      )}
    </div>
  );
}

/** Whole seconds until `seconds` have passed since `start`. */
function useCountdown(seconds: number, start: number): number {
  const remaining = () => Math.max(0, Math.ceil(seconds - (Date.now() - start) / 1000));
  const [left, setLeft] = useState(remaining);
  useEffect(() => {
    const timer = setInterval(() => setLeft(remaining()), 250);
    return () => clearInterval(timer);
  }, [seconds, start]);
  return left;
}

/** Asks for the API key. */
export function KeyForm({ onSaved }: { onSaved: () => void }) {
  const [key, setKey] = useState(preferences.value.apiKey);
  return (
    <form
      class="row"
      onSubmit={(event) => {
        event.preventDefault();
        setPreferences({ apiKey: key.trim() });
        void refreshModels();
        onSaved();
      }}
    >
      <input
        type="password"
        aria-label="API key"
        placeholder="API key"
        autocomplete="off"
        value={key}
        onInput={(event) => setKey(event.currentTarget.value)}
      />
      <button type="submit" class="primary" disabled={key.trim() === ""}>
        Save and try again
      </button>
    </form>
  );
}
