import { useRef, useState } from "preact/hooks";
import { pullModel } from "../api/client";
import { RequestError } from "../api/problem";
import type { ModelEntry, Progress } from "../api/types";
import { Dialog } from "../controls";
import { bytes, count } from "../format";
import { models, refreshModels } from "./models";

interface Props {
  chosen: string;
  onChoose: (id: string) => void;
  onClose: () => void;
}

/** The models of the server: search, choose, download. */
export function ModelsDialog({ chosen, onChoose, onClose }: Props) {
  const [query, setQuery] = useState("");
  const wanted = query.trim().toLowerCase();
  const list = models.value.filter(({ id }) => id.toLowerCase().includes(wanted));
  return (
    <Dialog title="Models" onClose={onClose}>
      <input
        type="search"
        class="wide"
        placeholder="Search"
        aria-label="Search models"
        value={query}
        onInput={(event) => setQuery(event.currentTarget.value)}
      />
      <ul class="models" aria-label="Models">
        {list.map((entry) => (
          <li key={entry.id}>
            <button
              type="button"
              aria-pressed={entry.id === chosen}
              onClick={() => {
                onChoose(entry.id);
                onClose();
              }}
            >
              <span class="name">{entry.id}</span>
              <span class="soft">{describe(entry)}</span>
            </button>
          </li>
        ))}
      </ul>
      {list.length === 0 && <p class="soft">The server has no model of that name.</p>}
      <Download />
    </Dialog>
  );
}

function describe({ welte }: ModelEntry): string {
  const parts = [];
  if (welte?.loaded !== undefined) parts.push(welte.loaded ? "loaded" : "not loaded");
  if (welte?.context) parts.push(`${count(welte.context)} positions`);
  return parts.join(" · ");
}

/** Downloads a model from the hub. It goes on at the server if the page is closed. */
function Download() {
  const [name, setName] = useState("");
  const [progress, setProgress] = useState<Progress>();
  const [note, setNote] = useState("");
  const control = useRef(new AbortController());
  const run = async () => {
    setNote("");
    setProgress({ status: "starting" });
    try {
      await pullModel(name.trim(), control.current.signal, setProgress);
      setNote(`${name.trim()} is there.`);
      setName("");
      await refreshModels();
    } catch (error) {
      const problem = error instanceof RequestError ? error.problem : { title: String(error), detail: undefined };
      setNote(problem.detail ?? problem.title);
    }
    setProgress(undefined);
  };
  return (
    <form
      class="download"
      onSubmit={(event) => {
        event.preventDefault();
        void run();
      }}
    >
      <h3>Download from the hub</h3>
      <div class="row">
        <input
          aria-label="Name on the hub"
          placeholder="ORG/NAME:Q4_K_M"
          value={name}
          onInput={(event) => setName(event.currentTarget.value)}
        />
        <button type="submit" class="primary" disabled={name.trim() === "" || progress !== undefined}>
          Download
        </button>
      </div>
      {progress && (
        <div aria-live="polite">
          <progress aria-label="Download" value={progress.total ? (progress.completed ?? 0) : undefined} max={progress.total} />
          <p class="soft">
            {progress.status}
            {progress.total ? `, ${bytes(progress.completed ?? 0)} of ${bytes(progress.total)}` : ""}
          </p>
        </div>
      )}
      {note && <p role="status">{note}</p>}
    </form>
  );
}
