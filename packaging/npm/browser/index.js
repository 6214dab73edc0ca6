// The engine in a worker, behind promises.

/** Why this browser cannot run the engine. */
function problem() {
  if (!globalThis.navigator?.gpu) {
    return "This browser has no WebGPU, or does not offer it to this page.";
  }
  return WebAssembly.Suspending ? null : "This browser cannot suspend WebAssembly (JavaScript Promise Integration).";
}

export class Engine {
  static problem = problem;
  #worker = null;
  // The task at hand: what it wants to hear, and its promise's two ends.
  #task = null;
  #last = Promise.resolve();

  load(model, onProgress) {
    const isFile = typeof Blob !== "undefined" && model instanceof Blob;
    const name = isFile ? (model.name ?? "model.gguf") : new URL(model, globalThis.location?.href).href;
    const progress = (event) => onProgress?.({ done: event.done, total: event.total });
    return this.#run({ task: "load", name, file: isFile ? model : undefined }, { progress, download: progress }, "model");
  }

  async generate(prompt, { maxTokens = 300, temperature = 0, seed = 0, onText, signal } = {}) {
    let text = "";
    const hear = (event) => {
      text += event.text;
      onText?.(event.text);
    };
    const stop = () => this.#worker?.postMessage({ task: "stop" });
    signal?.addEventListener("abort", stop);
    try {
      const task = { task: "generate", prompt, most: maxTokens, temperature, seed };
      return { end: await this.#run(task, { text: hear }, "end"), text };
    } finally {
      signal?.removeEventListener("abort", stop);
    }
  }

  close() {
    this.#worker?.terminate();
    this.#worker = null;
    this.#task?.reject(new Error("the engine is closed"));
    this.#task = null;
  }

  /** One task after the other: `last` names the event that ends it. */
  #run(message, hears, last) {
    const run = () =>
      new Promise((resolve, reject) => {
        const why = problem();
        if (why) {
          return reject(new Error(why));
        }
        this.#worker ??= this.#start();
        this.#task = { hears, last, resolve, reject };
        this.#worker.postMessage(message);
      });
    const done = this.#last.then(run);
    this.#last = done.catch(() => {});
    return done;
  }

  #start() {
    const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
    const fail = (message, broken) => {
      const task = this.#task;
      this.#task = null;
      if (broken) {
        // WebAssembly that has trapped cannot go on. The next task starts anew.
        worker.terminate();
        this.#worker = null;
      }
      task?.reject(new Error(message));
    };
    worker.onerror = (event) => fail(event.message, true);
    worker.onmessage = ({ data: { event, ...facts } }) => {
      const task = this.#task;
      if (event === "problem") {
        fail(facts.message, facts.broken);
      } else if (event === task?.last) {
        this.#task = null;
        task.resolve(facts);
      } else {
        task?.hears[event]?.(facts);
      }
    };
    return worker;
  }
}
