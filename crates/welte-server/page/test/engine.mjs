// An imitated engine: one model, eight slots, whose sequences advance with the clock.

const LAYERS = 36;
const PAGE = 32;
const PAGES = 1024;
const SLOTS = 8;
const START = Date.now();

/** A random number from 0 to 1 that depends on its arguments only. */
function noise(...keys) {
  let x = 2166136261;
  for (const key of keys) {
    x = Math.imul(x ^ (key + 0x9e37), 2246822519);
    x = Math.imul(x ^ (x >>> 13), 3266489917);
    x ^= x >>> 16;
  }
  return (x >>> 0) / 4294967296;
}

function command(layer, part, op, format, bytes, reads, writes) {
  return { layer, part, op, format, bytes, flops: 2 * bytes, reads: [reads].flat(), writes: [writes].flat() };
}

function pass(name, rows) {
  const x = `${name}.x`;
  const list = [command(null, "embedding", "embed", "Q4_0", 1440, "tokens", x)];
  for (let layer = 0; layer < LAYERS; layer += 1) {
    list.push(
      command(layer, "qkv", "norm_matmul", "Q4_0", 8_847_360, x, `${name}.qkv`),
      command(layer, "rope and append", "rope_append", "F32", 49_152, [], [`${name}.qkv`, "kv"]),
      command(layer, "attention", "attention", null, 32_768, [`${name}.qkv`, "kv"], `${name}.attn`),
      command(layer, "attention output", "matmul_add", "Q4_0", 5_898_240, `${name}.attn`, x),
      command(layer, "gate and up", "norm_matmul_act_mul", "Q4_0", 28_016_640, x, `${name}.h`),
      command(layer, "down", "matmul_add", "Q4_0", 14_008_320, `${name}.h`, x),
    );
  }
  if (name === "prompt") list.push(command(null, "outputs", "select_rows", null, 20_480, x, "prompt.out"));
  list.push(command(null, "head", "norm_matmul", "Q6_K", 319_065_600, name === "prompt" ? "prompt.out" : x, "logits"));
  if (name === "decode") list.push(command(null, "sample", "sample", null, 607_744, "logits", "tokens"));
  const bytes = list.reduce((sum, { bytes }) => sum + bytes, 0);
  const commands = list.map((entry, index) => ({ index, ...entry, share: entry.bytes / bytes }));
  return { pass: name, rows, bytes, flops: 2 * bytes, commands };
}

export function mockTable() {
  return { passes: [pass("decode", 16), pass("prompt", 512)] };
}

/** The sequence in a slot at a time: every slot starts a new one after a while. */
function sequence(slot, now) {
  const period = 6000 + 3000 * noise(slot, 1);
  const round = Math.floor((now - START + 60_000) / period + noise(slot, 2));
  const age = ((now - START + 60_000) / period + noise(slot, 2) - round) * period;
  if (noise(slot, round, 3) < 0.15) return null;
  const shared = 640 * (1 + Math.floor(2 * noise(slot, round, 4)));
  const prompt = shared + 60 + Math.floor(900 * noise(slot, round, 5));
  const budget = 700 + Math.floor(900 * noise(slot, round, 6));
  const cached = noise(slot, round, 7) < 0.75 ? shared : 0;
  const position = cached + Math.floor(age * 2.2);
  const computed = Math.min(position, prompt);
  const made = (position - prompt) * 0.095;
  if (made >= budget) return null;
  const generated = position > prompt ? Math.floor(made) : 0;
  return { slot, round, prompt, cached, budget, age, shared, position: computed + generated, generated };
}

export function mockState(now = Date.now()) {
  const running = Array.from({ length: SLOTS }, (_, slot) => sequence(slot, now));
  const letters = Array(PAGES).fill(".");
  // The shared prefixes lie first, then what single sequences own, then what only the tree keeps.
  const prefix = { 640: [0, 20], 1280: [20, 40] };
  letters.fill("c", 0, 60);
  let next = 60;
  const branches = [
    { id: 0, parent: null, start: 0, tokens: 640, sequences: 0, idle_ms: 0 },
    { id: 1, parent: null, start: 0, tokens: 1280, sequences: 0, idle_ms: 0 },
  ];
  const slots = running.map((entry, slot) => {
    if (!entry) return { slot, state: "idle" };
    const { prompt, cached, budget, age, position, generated, round } = entry;
    const runs = [];
    if (cached > 0) {
      const [first, length] = prefix[cached];
      runs.push([first, length]);
      for (let i = first; i < first + length; i += 1) letters[i] = letters[i] === "c" ? "o" : "s";
      branches[cached === 640 ? 0 : 1].sequences += 1;
      branches.push({ id: branches.length, parent: cached === 640 ? 0 : 1, start: cached, tokens: position - cached, sequences: 1, idle_ms: 0 });
    } else {
      branches.push({ id: branches.length, parent: null, start: 0, tokens: position, sequences: 1, idle_ms: 0 });
    }
    const own = Math.ceil((position - cached) / PAGE);
    letters.fill("o", next, next + own);
    runs.push([next, own]);
    next += own;
    return {
      slot, state: position < prompt || generated === 0 ? "prompt" : "decode", request: `chatcmpl-${100 + slot + 8 * round}`,
      prompt_tokens: prompt, cached_tokens: cached, position, limit: prompt + budget,
      tokens_per_second: generated > 0 ? 205 + 8 * noise(slot, Math.floor(now / 500)) : 0, running_ms: Math.round(age),
      pages: [{ pool: 0, runs }],
    };
  });
  for (let i = 0; i < 14; i += 1) {
    const parent = noise(i, 11) < 0.7 ? Math.floor(2 * noise(i, 12)) : null;
    const start = parent === null ? 0 : branches[parent].tokens;
    const tokens = 64 + Math.floor(900 * noise(i, 13));
    letters.fill("c", next, next + Math.ceil(tokens / PAGE));
    next += Math.ceil(tokens / PAGE);
    branches.push({ id: branches.length, parent, start, tokens, sequences: 0, idle_ms: Math.round(240_000 * noise(i, 14)) });
  }
  const decoding = slots.filter(({ state }) => state === "decode").length;
  const seconds = (now - START) / 1000;
  return {
    version: "0.1.0",
    uptime_ms: now - START + 5_130_000,
    model: { id: "qwen3-4b-q4_0", architecture: "qwen3", parameters: 4_022_468_096, formats: ["Q4_0", "Q6_K"], layers: LAYERS, vocab: 151_936, context: 8192 },
    device: { kind: "cuda", name: "NVIDIA H200", replay: "persistent kernel", memory: 150_754_820_096, bandwidth: 4_280_000_000_000 },
    plan: {
      total: 7_419_187_712, available: 149_000_000_000,
      entries: [
        { name: "weights", class: "weights", bytes: 2_369_781_760 },
        { name: "kv", class: "cache", bytes: 4_831_838_208 },
        { name: "decode.x", class: "scratch decode", bytes: 655_360 },
        { name: "decode.h", class: "scratch decode", bytes: 2_490_368 },
        { name: "prompt.x", class: "scratch prompt", bytes: 20_971_520 },
        { name: "prompt.h", class: "scratch prompt", bytes: 159_383_552 },
        { name: "tables", class: "tables", bytes: 34_066_944 },
      ],
    },
    engine: { slots: SLOTS, queue: 256, page: PAGE, decode_rows: 16, prompt_rows: 512 },
    rates: {
      decode: decoding * (205 + 8 * noise(Math.floor(now / 500), 21)), prompt: slots.some(({ state }) => state === "prompt") ? 24_000 * (0.8 + 0.2 * noise(Math.floor(now / 500), 22)) : 0,
      rows: decoding, floor_share: 0.4 + 0.05 * noise(Math.floor(now / 500), 23),
    },
    slots,
    queue: [
      { request: "chatcmpl-311", prompt_tokens: 6012, priority: 0, waiting_ms: 40 + (now % 500), preempted: false },
      { request: "chatcmpl-298", prompt_tokens: 1833, priority: 0, waiting_ms: 2310 + (now % 500), preempted: true },
    ],
    pools: [{ name: "kv", kind: "attention", format: "F16", layers: LAYERS, window: 0, page_bytes: 4_718_592, pages: letters.join("") }],
    tree: {
      nodes: branches.reduce((sum, { tokens }) => sum + Math.ceil(tokens / PAGE), 0), capacity: PAGES,
      tokens: branches.reduce((sum, { tokens }) => sum + tokens, 0),
      lookups: 1204 + Math.floor(seconds), hits: 991 + Math.floor(0.8 * seconds), prompt_tokens: 1_733_120, reused_tokens: 1_204_480, evictions: 312, branches,
    },
    totals: { requests: 1204 + Math.floor(seconds), prompt_tokens: 1_733_120, generated_tokens: 612_440 + Math.floor(800 * seconds), preemptions: 3, guesses: { drafted: 9_000, accepted: 6_300, rounds: 3_000, by_position: [2_600, 2_100, 1_600, 0, 0, 0, 0, 0] } },
  };
}
