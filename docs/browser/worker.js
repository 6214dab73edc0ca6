// The engine's worker. It takes one task after the other, because the engine waits for the GPU in only one place at a time.
let engine;
let tasks = Promise.resolve();

onmessage = ({ data }) => {
  if (data.task === "stop") {
    engine?.stop();
    return;
  }
  tasks = tasks.then(() => run(data)).catch((error) => {
    // WebAssembly that has trapped cannot go on.
    const broken = error instanceof WebAssembly.RuntimeError;
    postMessage({ event: "problem", message: error.message ?? String(error), broken });
  });
};

async function run(data) {
  engine ??= await start();
  if (data.task === "load") {
    engine.open(data.name, data.file ?? (await download(data.name)));
    await engine.load();
  } else {
    engine.ask(data.prompt, data.most, data.temperature, data.seed);
    await engine.generate();
  }
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

async function download(name) {
  const response = await fetch(name);
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
