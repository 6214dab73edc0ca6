#!/usr/bin/env python3
"""Compares Welte in a browser tab with transformers.js (ONNX Runtime Web) in the same browser, on the same GGUF file.

    tools/browser                                                   # builds the folder of --welte-browser
    tools/compare-browser.py MODEL.gguf [--welte PATH] [--runs NAMES] [--prompt long] [--tokens N] [--rounds N] [--output FILE]

MODEL.gguf is a chat model of an architecture that both `welte quantize MODEL.gguf DIR/` and ONNX Runtime's model builder know, such as
Llama. Welte reads the file itself. For transformers.js, Welte writes it as a Hugging Face directory, and the model builder makes an ONNX
model of that, with fused attention: q4 (4 bits in blocks of 32) for WebGPU, and q8 (8 bits, dynamic), transformers.js's default, for
WebAssembly. The decoded weights are rounded again, so the texts of the two engines differ; only speeds and sizes are compared.

Every run has a browser process of its own, without caches. The page starts the engine in a worker, waits for an answer to a first prompt,
whose time includes the compilation of kernels, and measures the answer to a second one. Engines run in turns, and medians count. The
page is isolated (COOP, COEP), so that ONNX Runtime may use threads. Results are written after every run of a complete round; rows for
prompts and answers of other lengths that the file has stay in it.

    --adapter swiftshader    WebGPU on Chromium's software adapter, so on the CPU (the default)
    --adapter default        WebGPU on the machine's GPU

Needs Chromium (CHROMIUM, or /usr/bin/chromium) and npm. The packages of PyPI and npm are installed in target/compare-browser; with
--installed, those of PyPI are taken from the Python that runs the script.
"""
import argparse
import gzip
import http.server
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHON = ["onnxruntime==1.32.0", "onnxruntime-genai==0.18.0", "onnx==1.23.2", "onnx-ir==1.1.0", "torch==2.11.0", "transformers==5.24.0",
          "playwright==1.65.2"]
NPM = "@huggingface/transformers@4.3.2"
SOFTWARE = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan"]
HARDWARE = ["--enable-unsafe-webgpu", "--enable-features=Vulkan"]
# How the hub's files are named.
SUFFIXES = {"q8": "quantized"}
# Tokens of a browser's first answer, whose passes need kernels of the measured one.
WARM_UP = 2

# NAME: the engine, the device and the type of the weights.
RUNS = {
    "welte-webgpu": ("Welte", "webgpu", "gguf"),
    "peer-webgpu": ("transformers.js", "webgpu", "q4"),
    "peer-wasm": ("transformers.js", "wasm", "q8"),
    "peer-wasm-q4": ("transformers.js", "wasm", "q4"),
    "peer-webgpu-f16": ("transformers.js", "webgpu", "q4f16"),
}

PAGE = """<!doctype html><meta charset="utf-8"><title>compare</title><script type="module">
const wait = (worker, message, patience) => new Promise((resolve, reject) => {
  const begin = performance.now();
  const times = [];
  let text = "";
  const late = setTimeout(() => reject(new Error(`no answer in ${patience} s`)), patience * 1000);
  const fail = (message) => { clearTimeout(late); reject(new Error(message)); };
  worker.onerror = (event) => fail(event.message || "the worker could not start");
  worker.onmessage = ({ data }) => {
    const now = performance.now() - begin;
    if (data.event === "problem") return fail(data.message);
    if (data.event === "text") { times.push(now); text += data.text; }
    if (data.event === "model" || data.event === "end") { clearTimeout(late); resolve({ ...data, table: undefined, times, text, ms: now }); }
  };
  worker.postMessage(message);
});
let worker;
window.load = (script, message, patience) => {
  worker = new Worker(script, { type: "module" });
  return wait(worker, message, patience);
};
window.ask = (message, patience) => wait(worker, message, patience);
window.about = async () => {
  const adapter = await navigator.gpu?.requestAdapter();
  const info = adapter?.info;
  return {
    isolated: crossOriginIsolated,
    adapter: info ? [info.vendor, info.architecture, info.device, info.description].filter(Boolean).join(" ") : "none",
    f16: adapter?.features.has("shader-f16") ?? false,
  };
};
</script>"""

# Takes the messages of Welte's worker, and answers with the same events.
WORKER = """import { env, pipeline, TextStreamer } from "/npm/@huggingface/transformers/dist/transformers.min.js";
env.allowRemoteModels = false;
env.allowLocalModels = true;
env.localModelPath = "/models/";
// Every browser is a new one.
env.useBrowserCache = false;
env.useWasmCache = false;
// The same build of ONNX Runtime that transformers.js takes from its network by itself.
const wasm = env.backends.onnx.wasm;
const local = (address) => new URL("/npm/onnxruntime-web/dist/" + address.split("/").pop(), location.href).href;
wasm.wasmPaths = { mjs: local(wasm.wasmPaths.mjs), wasm: local(wasm.wasmPaths.wasm) };
let generator;
async function run(data) {
  if (data.task === "load") {
    wasm.numThreads = data.threads;
    generator = await pipeline("text-generation", data.name, { device: data.device, dtype: data.dtype });
    return postMessage({ event: "model", threads: wasm.numThreads, ort: env.backends.onnx.versions?.web });
  }
  const { tokenizer, model } = generator;
  const inputs = tokenizer.apply_chat_template(data.messages, { add_generation_prompt: true, return_dict: true });
  const prompt_tokens = inputs.input_ids.dims[1];
  const token_callback_function = (tokens) => postMessage({ event: "text", text: tokenizer.decode(tokens, {}) });
  const streamer = new TextStreamer(tokenizer, { skip_prompt: true, callback_function() {}, token_callback_function });
  const out = await model.generate({ ...inputs, max_new_tokens: data.most, do_sample: false, streamer });
  postMessage({ event: "end", prompt_tokens, cached_tokens: 0, tokens: out.dims[1] - prompt_tokens });
}
onmessage = ({ data }) => run(data).catch((error) => postMessage({ event: "problem", message: String(error?.message ?? error) }));
"""

STORY = """Write a long story in the style of an old sailor who tells it in a harbour inn on a winter evening. It begins with a storm, in which
the ship loses its mast, and a cat that belongs to nobody is found in the hold. The crew argues about the cat for three days. Describe the
captain, the cook and the boy who keeps the watch, and let each of them speak at least once. The story should end in the same inn, many years
later."""
PROMPTS = {"long": STORY, "short": "Tell a story about two storms and two cats."}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=pathlib.Path)
    p.add_argument("--welte", default="target/release/welte", help="writes the Hugging Face directory (default: %(default)s)")
    p.add_argument("--welte-browser", type=pathlib.Path, default=ROOT / "target/welte-browser", help="made by tools/browser")
    p.add_argument("--runs", default="welte-webgpu,peer-webgpu,peer-wasm", help=f"of {', '.join(RUNS)} (default: %(default)s)")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--prompt", choices=PROMPTS, default="long")
    p.add_argument("--tokens", type=int, default=64, help="of an answer (default: %(default)s)")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of transformers.js without WebGPU (default: all cores)")
    p.add_argument("--adapter", choices=["swiftshader", "default"], default="swiftshader")
    p.add_argument("--patience", type=float, default=600, metavar="S", help="for one answer (default: %(default)s s)")
    p.add_argument("--folder", type=pathlib.Path, default=ROOT / "target/compare-browser")
    p.add_argument("--installed", action="store_true")
    p.add_argument("--output", type=pathlib.Path)
    a = p.parse_args()
    a.runs = a.runs.split(",")
    for name in a.runs:
        if name not in RUNS:
            p.error(f"no run is called {name}; there are {', '.join(RUNS)}")
    if not a.model.is_file():
        p.error(f"{a.model} is not a file")
    if "welte-webgpu" in a.runs and not (a.welte_browser / "welte_browser_bg.wasm").is_file():
        p.error(f"{a.welte_browser} has no welte_browser_bg.wasm; run tools/browser, or name its folder with --welte-browser")
    return a


def install(folder, done, what, *commands):
    """Runs the commands unless they have run for the same packages."""
    if done.exists() and done.read_text() == what:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for command in commands:
        subprocess.run(list(map(str, command)), check=True)
    done.write_text(what)


def installed(a):
    """Goes on in an environment that has the packages."""
    folder = a.folder / "python"
    python = folder / "bin/python"
    install(folder, folder / "done", " ".join(PYTHON), [sys.executable, "-m", "venv", folder], [python, "-m", "pip", "install", "-q", *PYTHON])
    os.execv(python, [str(python), *sys.argv, "--installed"])


def exported(a):
    """The folder of models for transformers.js, which has the file as `model`."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    about = a.model.stat()
    models = a.folder / "models" / f"{a.model.stem}-{about.st_size}-{about.st_mtime_ns}"
    hub = models / "hub"
    done = models / "done-hub"
    if not done.exists():
        shutil.rmtree(hub, ignore_errors=True)
        hub.mkdir(parents=True)
        subprocess.run([a.welte, "quantize", a.model, f"{hub}/", "BF16"], check=True)
        done.touch()
    out = models / "model"
    (out / "onnx").mkdir(parents=True, exist_ok=True)
    for file in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(hub / file, out / file)
    for kind in {RUNS[name][2] for name in a.runs} - {"gguf"}:
        path = out / f"onnx/model_{SUFFIXES.get(kind, kind)}.onnx"
        done = models / f"done-{kind}"
        if done.exists():
            continue
        built = models / f"built-{kind}"
        shutil.rmtree(built, ignore_errors=True)
        # ONNX Runtime's WebAssembly has no kernel for rows of a quantised table of embeddings.
        options = ["shared_embeddings=false", "prune_lm_head=true"]
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", hub, "-o", built, "-c", models / "cache"]
        if kind == "q8":
            command += ["-p", "fp32", "-e", "cpu", "--extra_options", *options]
        else:
            command += ["-p", "int4", "-e", "webgpu", "--extra_options", *options, "block_size=32", f"use_webgpu_fp32={kind == 'q4'}"]
        with open(models / f"built-{kind}.log", "w") as log:
            subprocess.run(list(map(str, command)), check=True, stdout=log, stderr=subprocess.STDOUT)
        if kind == "q8":
            more = {"EnableSubgraph": False, "MatMulConstBOnly": True}
            whole = built / "quantized.onnx"
            kinds = ["MatMul", "Gather"]
            quantize_dynamic(built / "model.onnx", whole, weight_type=QuantType.QInt8, op_types_to_quantize=kinds, extra_options=more)
        else:
            whole = built / "model.onnx"
        graph = onnx.load(whole)
        # transformers.js makes the empty cache of these shapes, and takes unknown names of dimensions for 0.
        width = json.loads((hub / "config.json").read_text())["head_dim"]
        for value in [*graph.graph.input, *graph.graph.output]:
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param == "kv_cache_dim":
                    dim.dim_value = width
        # One file, as small models are published.
        onnx.save(graph, path)
        shutil.rmtree(built)
        done.touch()
    return models


class Server:
    """The pages, both engines and both models, with the headers that isolate a page."""

    def __init__(self, a, models):
        self.folders = {"welte": a.welte_browser, "npm": a.folder / "npm/node_modules", "models": models}
        self.model = a.model
        self.sent = {}
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_HEAD(self):
                self.do_GET()

            def do_GET(self):
                path = self.path.split("?")[0]
                content = server.content(path)
                self.send_response(404 if content is None else 200)
                content = content or b""
                for key, value in {
                    "Content-Type": TYPES.get(pathlib.PurePath(path).suffix, "application/octet-stream") if path != "/" else "text/html",
                    "Content-Length": len(content),
                    "Cross-Origin-Opener-Policy": "same-origin",
                    "Cross-Origin-Embedder-Policy": "require-corp",
                    "Cache-Control": "no-store",
                }.items():
                    self.send_header(key, str(value))
                self.end_headers()
                if self.command == "GET":
                    server.sent[path] = len(content)
                    try:
                        self.wfile.write(content)
                    except OSError:
                        pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/"

    def content(self, path):
        if path == "/":
            return PAGE.encode()
        if path == "/peer.js":
            return WORKER.encode()
        if path == "/model.gguf":
            return self.model.read_bytes()
        _, first, *rest = path.split("/")
        file = self.folders.get(first, pathlib.Path("/nowhere")).joinpath(*rest)
        return file.read_bytes() if ".." not in rest and file.is_file() else None

    def sizes(self):
        """MB of the model and of the engine's code, the latter also compressed, of what was sent since the last call."""
        sent, self.sent = {path: size for path, size in self.sent.items() if path not in ("/", "/favicon.ico")}, {}
        code = [path for path in sent if pathlib.PurePath(path).suffix in TYPES and not path.startswith("/models/")]
        packed = sum(len(gzip.compress(self.content(path), 9)) for path in code)
        return {
            "model_mb": sum(size for path, size in sent.items() if path not in code) / 1e6,
            "code_mb": sum(sent[path] for path in code) / 1e6,
            "packed_mb": packed / 1e6,
        }


TYPES = {".html": "text/html", ".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm", ".json": "application/json"}


def measured(a, playwright, server, name, number):
    """One browser, from its start to the second answer."""
    engine, device, kind = RUNS[name]
    flags = SOFTWARE if a.adapter == "swiftshader" else HARDWARE
    browser = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=["--no-sandbox", *flags])
    try:
        page = browser.new_page()
        said = []
        page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
        page.goto(server.url)
        about = page.evaluate("about()")
        server.sent.clear()
        if engine == "Welte":
            script, load = "/welte/worker.js", {"task": "load", "name": "/model.gguf"}
        else:
            script, load = "/peer.js", {"task": "load", "name": "model", "device": device, "dtype": kind, "threads": a.threads}
        ask = lambda told, text, tokens: page.evaluate(
            "([message, patience]) => ask(message, patience)",
            [{"messages": [{"role": "system", "content": told}, {"role": "user", "content": text.replace("\n", " ")}],
              "most": tokens, "temperature": 0, "seed": 1}, a.patience],
        )
        loaded = page.evaluate("([script, message, patience]) => load(script, message, patience)", [script, load, a.patience])
        sizes = server.sizes()
        # The system messages differ from the first words on, so that nothing of the second prompt is known.
        first = ask("You are a sailor.", "Tell a story about a storm and a cat.", WARM_UP)
        second = ask("Remember well.", PROMPTS[a.prompt], a.tokens)
        return {"about": {**about, "browser": browser.version}, "loaded": loaded, "first": first, "second": second, "sizes": sizes, "said": said}
    finally:
        browser.close()


def summary(run, tokens):
    """The figures of one run, in seconds, tokens per second and MB."""
    second = run["second"]
    if second["tokens"] != tokens:
        raise SystemExit(f"error: an answer has {second['tokens']} tokens instead of {tokens}: {second['text']!r}")
    if second["cached_tokens"] > 8:
        raise SystemExit(f"error: {second['cached_tokens']} tokens of the prompt were known")
    first = second["times"][0]
    # transformers.js shows each token. Welte shows several together, but tells when it had the first one.
    read = second.get("prompt_ms", first)
    return {
        "load": run["loaded"]["ms"] / 1e3,
        "cold": (run["loaded"]["ms"] + run["first"]["times"][0]) / 1e3,
        "read": read / 1e3,
        "first": first / 1e3,
        "answer": second["ms"] / 1e3,
        # The first token is the prompt's.
        "decode": (tokens - 1) / (second["ms"] - read) * 1e3,
        **run["sizes"],
    }


def middle(values, digits):
    rounded = [round(value, digits) for value in values]
    if len(values) == 1:
        return rounded[0]
    return {"median": round(statistics.median(values), digits), "min": min(rounded), "max": max(rounded)}


def processor():
    return next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")


def results(a, runs, refused):
    """The table as tools/charts.py reads it."""
    some = next(iter(runs.values()))[0]
    rows = []
    for name, done in runs.items():
        engine, device, kind = RUNS[name]
        figures = [summary(run, a.tokens) for run in done]
        of = lambda key, digits: middle([one[key] for one in figures], digits)
        rows.append({
            "engine": engine, "device": "WebGPU" if device == "webgpu" else f"WebAssembly, {done[0]['loaded']['threads']} threads",
            "prompt": done[0]["second"]["prompt_tokens"] + done[0]["second"]["cached_tokens"], "tokens": a.tokens, "rounds": len(done),
            "weights": a.model.name if kind == "gguf" else f"ONNX, {kind}",
            "model_mb": round(figures[0]["model_mb"], 1), "code_mb": round(figures[0]["code_mb"], 1), "packed_mb": round(figures[0]["packed_mb"], 1),
            "load": of("load", 1), "cold": of("cold", 1), "read": of("read", 2), "first": of("first", 2), "answer": of("answer", 1), "decode": of("decode", 2),
        })
    if "welte-webgpu" in runs:
        ours = [summary(run, a.tokens) for run in runs["welte-webgpu"]]
        for row, done in zip(rows, runs.values()):
            pairs = zip(ours, (summary(run, a.tokens) for run in done))
            row["ratio"] = round(statistics.median(theirs["answer"] / own["answer"] for own, theirs in pairs), 2)
    software = a.adapter == "swiftshader"
    where = "SwiftShader, Chromium's software adapter, so kernels of WebGPU run on the CPU too" if software else some["about"]["adapter"]
    column = lambda key, title, unit=None, digits=None: {"key": key, "title": title, **({"unit": unit} if unit else {}),
                                                         **({} if digits is None else {"digits": digits})}
    return {
        "title": "In a browser tab, beside transformers.js",
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{len(os.sched_getaffinity(0))} cores of: {processor()}; Chromium {some['about']['browser']}; WebGPU by {where}",
        "peer": f"{NPM.replace('@huggingface/transformers@', 'transformers.js ')} with its build of ONNX Runtime Web; the ONNX model by the model builder of "
                + PYTHON[1].replace("==", " "),
        "commands": [f"tools/compare-browser.py {a.model.name} --runs {','.join(a.runs)} --prompt {a.prompt} --tokens {a.tokens} --rounds {a.rounds}"],
        "notes": [
            "Greedy answers; engines in turns, each time in a new browser; medians of the rounds.",
            "Load: from the start of the worker, with the files from this machine, until the model is ready. Cold: until the first text of a "
            "first, short prompt, with the load and the compilation of kernels. The other times are those of a second prompt.",
            "Ratio: the time of the whole answer over Welte's, median of the rounds.",
            "First token: Welte's own report, since it shows tokens in groups of 8; first text is what the page sees. Tokens per second: those after "
            "the first token, in the time until the end.",
            "Welte in a tab has WebGPU only. transformers.js: fused attention, q4 in blocks of 32 with int8 activations where its kernels have "
            "them, embeddings in F32 as the hub's files have them; q8 with dynamic activations, its default without WebGPU.",
            *refused,
        ],
        "columns": [
            column("engine", "engine"), column("device", "device"), column("prompt", "prompt"),
            column("tokens", "tokens"), column("rounds", "rounds"), column("weights", "weights"), column("model_mb", "model", "MB", 1),
            column("code_mb", "code", "MB", 1), column("packed_mb", "gzipped", "MB", 1), column("load", "load", "s", 1),
            column("cold", "cold", "s", 1), column("read", "first token", "s", 2), column("first", "first text", "s", 2), column("answer", "answer", "s", 1),
            column("decode", "decode", "tok/s", 2), column("ratio", "time over Welte's", None, 2),
        ],
        "rows": rows,
    }


def write(path, table, kept):
    """Rows of other sizes that the file had stay in it."""
    mine = {(row["prompt"], row["tokens"]) for row in table["rows"]}
    table["rows"] = [row for row in kept["rows"] if (row["prompt"], row["tokens"]) not in mine] + table["rows"]
    table["commands"] = list(dict.fromkeys([*kept["commands"], *table["commands"]]))
    path.write_text(json.dumps(table, indent=2) + "\n")


def main():
    a = arguments()
    if not a.installed:
        installed(a)
    npm = a.folder / "npm"
    install(npm, npm / "done", NPM, ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", npm, NPM])
    server = Server(a, exported(a))
    from playwright.sync_api import Error, sync_playwright

    kept = json.loads(a.output.read_text()) if a.output and a.output.exists() else {"rows": [], "commands": []}
    runs, refused = {name: [] for name in a.runs}, []
    with sync_playwright() as playwright:
        for number in range(a.rounds):
            names = list(runs)
            for name in names if number % 2 == 0 else reversed(names):
                try:
                    run = measured(a, playwright, server, name, number)
                except Error as error:
                    # One that worked before must go on working.
                    if runs[name] or name == "welte-webgpu":
                        raise
                    del runs[name]
                    engine, device, kind = RUNS[name]
                    refused.append(f"{engine} with {device} and {kind} did not run: {str(error).splitlines()[0].removeprefix('Page.evaluate: ')}")
                    print(refused[-1], flush=True)
                    continue
                runs[name].append(run)
                (a.folder / f"{name}-{a.prompt}-{number}.json").write_text(json.dumps(run))
                if number == 0:
                    print(name, json.dumps({key: run[key] for key in ("about", "said")}), repr(run["second"]["text"]), flush=True)
                print(name, json.dumps({key: round(value, 2) for key, value in summary(run, a.tokens).items()}), flush=True)
                if a.output and all(runs.values()):
                    write(a.output, results(a, runs, refused), kept)


if __name__ == "__main__":
    main()
