// The engine in a tab: WELTE_BROWSER is a folder that tools/browser made. Chromium runs the kernels on its software adapter.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { basename, extname, join } from "node:path";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";

const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".wasm": "application/wasm" };
const FLAGS = ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan"];

let browser, server, url;

// A hub with one model, the bundled one. It cuts the first download off, and notes where each begins.
const LISTED = [
  { path: "README.md", size: 5 },
  { path: "mmproj-tiny-Q8_0.gguf", size: 5 },
  { path: "tiny-Q4_K_M-00001-of-00002.gguf", size: 5 },
];
const begun = [];

async function hub(request, response) {
  const model = await readFile(join(process.env.WELTE_BROWSER, "demo.gguf"));
  if (request.url.startsWith("/api/models/test/tiny/tree/main")) {
    response.writeHead(200, { "content-type": "application/json" });
    return response.end(JSON.stringify([...LISTED, { path: "tiny-Q8_0.gguf", size: model.length }]));
  }
  if (request.url !== "/test/tiny/resolve/main/tiny-Q8_0.gguf") {
    return response.writeHead(404).end();
  }
  const [, range] = /bytes=(\d+)-/.exec(request.headers.range ?? "") ?? [];
  const from = Number(range ?? 0);
  begun.push(from);
  response.writeHead(range ? 206 : 200, { "content-length": model.length - from });
  if (begun.length > 1) {
    return response.end(model.subarray(from));
  }
  response.write(model.subarray(0, 2_000_000), () => setTimeout(() => response.destroy(), 500));
}

before(async () => {
  server = createServer(async (request, response) => {
    if (/^\/(api|test)\//.test(request.url)) {
      return hub(request, response);
    }
    const name = basename(new URL(request.url, "http://page").pathname) || "index.html";
    try {
      const content = await readFile(join(process.env.WELTE_BROWSER, name));
      response.writeHead(200, { "content-type": TYPES[extname(name)] ?? "application/octet-stream", "content-length": content.length });
      response.end(content);
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  url = `http://127.0.0.1:${server.address().port}/`;
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
});

after(async () => {
  await browser?.close();
  server?.close();
});

/** Runs a test on the page. Afterwards the console must be empty. */
function check(name, work, expected = []) {
  test(name, { timeout: 300_000 }, async () => {
    const page = await browser.newPage({ viewport: { width: 1400, height: 950 } });
    page.setDefaultTimeout(240_000);
    const problems = [];
    page.on("pageerror", (error) => problems.push(String(error)));
    page.on("console", (message) => {
      if (["error", "warning"].includes(message.type())) problems.push(message.text());
    });
    try {
      await page.goto(`${url}?hub=${url.slice(0, -1)}`);
      await work(page);
      assert.deepEqual(problems.filter((problem) => !expected.some((known) => known.test(problem))), []);
    } finally {
      await page.close();
    }
  });
}

const ready = (page) => page.locator("#send:enabled").waitFor();
const answer = (page) => page.locator("#chat .assistant").last();

/** Sends a message and gives the answer. */
async function ask(page, text, tokens) {
  await page.getByLabel("Tokens").fill(String(tokens));
  await page.getByLabel("Message").fill(text);
  await page.getByRole("button", { name: "Send" }).click();
  await page.locator("#speed", { hasText: "per second" }).waitFor();
  return answer(page).innerText();
}

const STORY = "Tell me a story about a fox.";

check("the bundled model tells a story, twice the same, beside its table", async (page) => {
  await ready(page);
  assert.match(await page.locator("#status").innerText(), /^demo.gguf: 51 commands, /);
  const table = page.frameLocator("#table");
  await table.getByText("rope_append").first().waitFor();
  const stories = [];
  for (let i = 0; i < 2; i += 1) {
    await page.getByLabel("Temperature").fill("0");
    stories.push(await ask(page, STORY, 24));
    await page.getByRole("button", { name: "New chat" }).click();
    assert.equal(await page.locator("#chat p").count(), 0);
  }
  assert.match(stories[0], /fox/i);
  assert.equal(stories[1], stories[0]);
});

check("a conversation goes on, and what was known is not read again", async (page) => {
  await ready(page);
  await page.getByLabel("Temperature").fill("0");
  const first = await ask(page, STORY, 24);
  let speed = await page.locator("#speed").innerText();
  const [, begin] = /^24 tokens at \d+\.\d per second; prompt of (\d+) at \d+\.\d per second$/.exec(speed);
  console.log(speed);
  await ask(page, "Who was in the story?", 12);
  speed = await page.locator("#speed").innerText();
  const [, read, known] = /prompt of (\d+) at \d+\.\d per second, after (\d+) that were known$/.exec(speed);
  assert.ok(Number(known) + Number(read) > Number(begin) + 24, speed);
  assert.ok(Number(known) >= Number(begin), speed);
  assert.deepEqual(await page.locator("#chat .user").allInnerTexts(), [STORY, "Who was in the story?"]);
  assert.equal(await page.locator("#chat .assistant").first().innerText(), first);
  if (process.env.WELTE_PICTURE) await page.screenshot({ path: process.env.WELTE_PICTURE });
});

check("a sampled story is its seed's, and another one for another seed", async (page) => {
  await ready(page);
  const stories = [];
  for (const seed of ["1", "1", "2"]) {
    await page.getByLabel("Temperature").fill("1");
    await page.getByLabel("Seed").fill(seed);
    stories.push(await ask(page, STORY, 12));
    await page.getByRole("button", { name: "New chat" }).click();
  }
  assert.equal(stories[1], stories[0]);
  assert.notEqual(stories[2], stories[0]);
});

check("an answer can be stopped, and another one follows", async (page) => {
  await ready(page);
  await page.getByLabel("Tokens").fill("1500");
  await page.getByRole("button", { name: "Send" }).click();
  await page.locator("#chat .assistant", { hasText: /\w/ }).waitFor();
  await page.getByRole("button", { name: "Stop" }).click();
  await ready(page);
  const [, tokens] = /^(\d+) tokens/.exec(await page.locator("#speed").innerText());
  assert.ok(Number(tokens) < 1500);
  await ask(page, "And then?", 4);
  assert.match(await page.locator("#speed").innerText(), /^4 tokens/);
});

check("a file that is not a model is refused by name, and the page goes on", async (page) => {
  await ready(page);
  await page.setInputFiles("#file", { name: "notes.gguf", mimeType: "text/plain", buffer: Buffer.from("not a model") });
  await page.locator("#status.problem", { hasText: "notes.gguf: is not a GGUF file" }).waitFor();
});

const get = async (page, name) => {
  await page.getByLabel("From the hub").fill(name);
  await page.getByRole("button", { name: "Get", exact: true }).click();
};
const kept = (page) => page.getByRole("list", { name: "Kept models" }).getByRole("listitem");

check(
  "a model of the hub is kept, a download that was cut off goes on, and a kept one needs no hub",
  async (page) => {
    await ready(page);
    assert.equal(await kept(page).count(), 0);
    const wrong = [
      ["tiny", /write ORG\/NAME/],
      ["test/other", /test\/other: it does not exist/],
      ["test/tiny:Q5_0", /no such GGUF file; the repository has tiny-Q4_K_M-00001-of-00002.gguf, tiny-Q8_0.gguf$/],
      ["test/tiny", /is one of several parts/],
    ];
    for (const [name, problem] of wrong) {
      await get(page, name);
      await page.locator("#status.problem", { hasText: problem }).waitFor();
    }
    const name = `${url}test/tiny/resolve/main/tiny-Q8_0.gguf`;
    begun.length = 0;
    await get(page, "test/tiny:Q8_0");
    await kept(page).getByText("unfinished").waitFor();
    assert.ok(await page.locator("#send").isEnabled(), "the model before is still there");
    await page.getByRole("button", { name: `Go on ${name}` }).click();
    await page.locator("#status", { hasText: `${name}: 51 commands` }).waitFor();
    assert.equal(begun.length, 2);
    assert.equal(begun[0], 0);
    assert.ok(begun[1] > 0, "the second download begins where the first one ended");
    await page.getByLabel("Temperature").fill("0");
    const story = await ask(page, STORY, 12);
    assert.match(story, /\w/);

    await page.reload();
    await ready(page);
    await page.getByRole("button", { name: `Load ${name}` }).click();
    await page.locator("#status", { hasText: `${name}: 51 commands` }).waitFor();
    await page.getByLabel("Temperature").fill("0");
    assert.equal(await ask(page, STORY, 12), story);
    assert.equal(begun.length, 2);

    await page.getByRole("button", { name: `Remove ${name}` }).click();
    await kept(page).waitFor({ state: "detached" });
  },
  [/Failed to load resource/],
);
