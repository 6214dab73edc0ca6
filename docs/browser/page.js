// The page: sends tasks to the engine's worker and shows its reports.
const BUNDLED = "demo.gguf";

const part = (id) => document.getElementById(id);
const mib = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;

let worker;
let loaded = false;
let working = false;

function start() {
  worker = new Worker("worker.js", { type: "module" });
  worker.onmessage = ({ data }) => reports[data.event](data);
  worker.onerror = (event) => reports.problem({ message: event.message, broken: true });
}

function status(text, isProblem = false) {
  part("status").textContent = text;
  part("status").classList.toggle("problem", isProblem);
}

function setWorking(now) {
  working = now;
  part("tell").disabled = now || !loaded;
  part("stop").disabled = !now || !loaded;
  part("file").disabled = now;
}

function load(name, file) {
  loaded = false;
  setWorking(true);
  part("progress").hidden = false;
  status(`Loading ${name}…`);
  worker.postMessage({ task: "load", name, file });
}

const reports = {
  download({ done, total }) {
    part("progress").value = total ? done / total / 2 : 0;
    status(`Downloading: ${mib(done)}`);
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
  text({ text }) {
    part("answer").textContent += text;
  },
  end({ prompt_tokens, prompt_ms, decoded, generation_ms, tokens }) {
    setWorking(false);
    const speed = (count, ms) => (ms > 0 ? (count / ms) * 1e3 : 0).toFixed(1);
    part("speed").textContent =
      `${tokens} tokens at ${speed(decoded, generation_ms)} per second; ` +
      `prompt of ${prompt_tokens} at ${speed(prompt_tokens, prompt_ms)} per second`;
  },
  problem({ message, broken }) {
    status(message, true);
    part("progress").hidden = true;
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
  if (working || !loaded) {
    return;
  }
  part("answer").textContent = "";
  part("speed").textContent = "";
  setWorking(true);
  worker.postMessage({
    task: "generate",
    prompt: part("prompt").value,
    most: part("most").valueAsNumber || 300,
    temperature: part("temperature").valueAsNumber || 0,
    seed: part("seed").valueAsNumber || 0,
  });
});
part("stop").addEventListener("click", () => worker.postMessage({ task: "stop" }));
part("file").addEventListener("change", () => {
  const [file] = part("file").files;
  if (file) {
    load(file.name, file);
  }
});

start();
load(BUNDLED);
