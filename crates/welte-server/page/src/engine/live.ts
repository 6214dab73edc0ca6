import { useEffect, useState } from "preact/hooks";
import { fetchState } from "../api/client";
import { type Problem, RequestError } from "../api/problem";
import type { EngineState } from "../api/types";

const INTERVAL_MS = 500;
const RETRY_MS = 3000;
/** A minute of samples. */
const SAMPLES = 120;

export interface Sample {
  decode: number;
  prompt: number;
}

export interface Live {
  state?: EngineState;
  /** The last minute, oldest first. */
  samples: Sample[];
  problem?: Problem;
  refresh: () => void;
}

/** The state of the engine, asked again and again while the page is visible. */
export function useEngine(model: string): Live {
  const [state, setState] = useState<EngineState>();
  const [samples, setSamples] = useState<Sample[]>([]);
  const [problem, setProblem] = useState<Problem>();
  const [round, setRound] = useState(0);
  useEffect(() => {
    const control = new AbortController();
    let timer = 0;
    const poll = async () => {
      let pause = INTERVAL_MS;
      try {
        const next = await fetchState(model || undefined, control.signal);
        setState(next);
        setSamples((old) => [...old, { decode: next.rates.decode, prompt: next.rates.prompt }].slice(-SAMPLES));
        setProblem(undefined);
      } catch (error) {
        if (control.signal.aborted) return;
        if (!(error instanceof RequestError)) throw error;
        setProblem(error.problem);
        pause = RETRY_MS;
      }
      schedule(pause);
    };
    const schedule = (pause: number) => {
      clearTimeout(timer);
      if (!document.hidden && !control.signal.aborted) timer = setTimeout(poll, pause);
    };
    const wake = () => schedule(0);
    document.addEventListener("visibilitychange", wake);
    setSamples([]);
    void poll();
    return () => {
      control.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", wake);
    };
  }, [model, round]);
  return { state, samples, problem, refresh: () => setRound(round + 1) };
}
