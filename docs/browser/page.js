// The page: sends tasks to the engine's worker and shows its reports.
import { HUB } from "./models.js";

const BUNDLED = "demo.gguf";

const part = (id) => document.getElementById(id);
const mib = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;
// Another hub, or a copy of it: ?hub=ADDRESS.
const hub = new URLSearchParams(location.search).get("hub") ?? HUB;

let worker;
let loaded = false;
let working = false;
let messages = [];

function start() {
  worker = new Worker("worker.js", { type: "module" });
  worker.onmessage = ({ data }) => reports[data.event](data);
  worker.onerror = (event) => reports.problem({ message: event.message, broken: true });
  worker.postMessage({ task: "list" });
}

function status(text, isProblem = false) {
  part("status").textContent = text;
  part("status").classList.toggle("problem", isProblem);
}

function setWorking(now) {
  working = now;
  part("send").disabled = now || !loaded;
  part("stop").disabled = !now;
  for (const element of document.querySelectorAll("#new, .models :is(input, button)")) {
    element.disabled = now;
  }
}

function load(name, more = {}) {
  setWorking(true);
  part("progress").hidden = false;
  status(`Loading ${name}…`);
  worker.postMessage({ task: "load", name, context: part("context").valueAsNumber || 0, hub, ...more });
}

function get(name) {
  // Models take room that a browser may otherwise clear.
  navigator.storage.persist?.();
  load(name, { keep: true });
}

/** Begins a conversation. */
function restart() {
  messages = [];
  part("chat").replaceChildren();
  part("speed").textContent = "";
}

function show(role, content) {
  const element = document.createElement("p");
  element.className = role;
  element.textContent = content;
  part("chat").append(element);
}

const reports = {
  download({ done, total }) {
    part("progress").value = total ? done / total / 2 : 0;
    status(`Downloading: ${mib(done)}${total ? ` of ${mib(total)}` : ""}`);
  },
  open() {
    // From here on the model before is gone.
    loaded = false;
    restart();
  },
  progress({ done, total }) {
    part("progress").value = total ? 0.5 + done / total / 2 : 0;
    status(`Loading to the GPU: ${mib(done)} of ${mib(total)}`);
  },
  model({ name, device, bytes, commands, table }) {
    loaded = true;
    setWorking(false);
    part("progress").hidden = true;
    status(`${name}: ${commands} commands, ${mib(bytes)} on ${device || "your GPU"}`);
    part("table").srcdoc = table;
  },
  models({ models }) {
    const item = ({ name, bytes, partial }) => {
      const button = (label, work) => {
        const element = document.createElement("button");
        element.type = "button";
        element.textContent = label;
        element.ariaLabel = `${label} ${name}`;
        element.disabled = working;
        element.onclick = work;
        return element;
      };
      const element = document.createElement("li");
      element.append(
        `${name} (${mib(bytes)}${partial ? ", unfinished" : ""}) `,
        button(partial ? "Go on" : "Load", () => get(name)),
        button("Remove", () => worker.postMessage({ task: "remove", name })),
      );
      return element;
    };
    part("models").replaceChildren(...models.map(item));
  },
  text({ text }) {
    part("chat").lastChild.textContent += text;
  },
  end({ prompt_tokens, cached_tokens, prompt_ms, decoded, generation_ms, tokens, stop }) {
    messages.push({ role: "assistant", content: part("chat").lastChild.textContent });
    setWorking(false);
    const speed = (count, ms) => (ms > 0 ? (count / ms) * 1e3 : 0).toFixed(1);
    part("speed").textContent =
      `${tokens} tokens at ${speed(decoded, generation_ms)} per second; ` +
      `prompt of ${prompt_tokens} at ${speed(prompt_tokens, prompt_ms)} per second` +
      (cached_tokens ? `, after ${cached_tokens} that were known` : "") +
      (stop === "context" ? "; the context is full: begin a new chat" : "");
  },
  problem({ message, broken }) {
    status(message, true);
    part("progress").hidden = true;
    // A message without an answer goes back to where it was written.
    if (messages.at(-1)?.role === "user") {
      const { content } = messages.pop();
      part("prompt").value ||= content;
      part("chat").lastChild.remove();
      part("chat").lastChild.remove();
    }
    setWorking(false);
    if (broken) {
      worker.terminate();
      loaded = false;
      setWorking(false);
      start();
    }
  },
};

part("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const prompt = part("prompt").value;
  if (working || !loaded || !prompt.trim()) {
    return;
  }
  messages.push({ role: "user", content: prompt });
  show("user", prompt);
  show("assistant", "");
  part("prompt").value = "";
  part("speed").textContent = "";
  setWorking(true);
  worker.postMessage({
    task: "generate",
    messages,
    most: part("most").valueAsNumber || 300,
    temperature: part("temperature").valueAsNumber || 0,
    seed: part("seed").valueAsNumber || 0,
  });
});
part("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    part("form").requestSubmit();
  }
});
part("stop").addEventListener("click", () => worker.postMessage({ task: "stop" }));
part("new").addEventListener("click", restart);
part("hub").addEventListener("submit", (event) => {
  event.preventDefault();
  get(part("wanted").value.trim());
});
part("file").addEventListener("change", () => {
  const [file] = part("file").files;
  if (file) {
    load(file.name, { file });
  }
});

start();
load(BUNDLED);
