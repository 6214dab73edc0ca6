// The engine's worker. It takes one task after the other, because the engine waits for the GPU in only one place at a time.
import { download, find, list, remove, saved } from "./models.js";

let engine;
let tasks = Promise.resolve();
let downloading;

onmessage = ({ data }) => {
  if (data.task === "stop") {
    downloading?.abort();
    engine?.stop();
    return;
  }
  tasks = tasks.then(() => run(data)).catch((error) => {
    // WebAssembly that has trapped cannot go on.
    const broken = error instanceof WebAssembly.RuntimeError;
    const message = error.name === "AbortError" ? "The download was stopped; get it again to go on." : (error.message ?? String(error));
    postMessage({ event: "problem", message, broken });
  });
};

async function run(data) {
  switch (data.task) {
    case "list":
      break;
    case "remove":
      await remove(data.name);
      break;
    case "load": {
      engine ??= await start();
      downloading = new AbortController();
      try {
        const [name, file] = await fileOf(data, downloading.signal);
        postMessage({ event: "open", name });
        engine.open(name, file, data.context ?? 0);
        await engine.load();
      } finally {
        downloading = undefined;
        await tellModels();
      }
      return;
    }
    default: {
      engine ??= await start();
      const messages = data.messages ?? [{ role: "user", content: data.prompt }];
      engine.ask(JSON.stringify(messages), data.most, data.temperature, data.seed);
      return engine.generate();
    }
  }
  await tellModels();
}

async function tellModels() {
  // Some browsers keep nothing in private windows.
  postMessage({ event: "models", models: await list().catch(() => []) });
}

/** The model's name and file: one at hand, one that this browser keeps, one of the hub, or one beside the page. */
async function fileOf({ name, file, hub, keep }, signal) {
  if (file || !keep) {
    return [name, file ?? (await fetchWhole(name, signal))];
  }
  const kept = await saved(name);
  if (kept) {
    return [name, kept];
  }
  const source = await find(name, hub, signal);
  const progress = (done, total) => postMessage({ event: "download", done, total });
  return [source.name, await download(source, progress, signal)];
}

async function start() {
  if (!navigator.gpu) {
    throw new Error("This browser has no WebGPU, or does not offer it to this page.");
  }
  if (!WebAssembly.Suspending) {
    throw new Error("This browser cannot suspend WebAssembly (JavaScript Promise Integration). Chrome and Edge can since version 137.");
  }
  const module = await import("./welte_browser.js");
  const wasm = await module.default();
  module.listen((event) => postMessage(JSON.parse(event)));
  return {
    open: module.open,
    ask: module.ask,
    stop: module.stop,
    load: WebAssembly.promising(wasm.load),
    generate: WebAssembly.promising(wasm.generate),
  };
}

async function fetchWhole(name, signal) {
  const response = await fetch(name, { signal });
  if (!response.ok) {
    throw new Error(`${name}: the server answers ${response.status}`);
  }
  const total = Number(response.headers.get("content-length"));
  const parts = [];
  let done = 0;
  for (const reader = response.body.getReader(); ; ) {
    const part = await reader.read();
    if (part.done) {
      return new Blob(parts);
    }
    parts.push(part.value);
    done += part.value.length;
    postMessage({ event: "download", done, total });
  }
}
