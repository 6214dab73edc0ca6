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

before(async () => {
  server = createServer(async (request, response) => {
    const name = basename(request.url) || "index.html";
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
function check(name, work) {
  test(name, { timeout: 300_000 }, async () => {
    const page = await browser.newPage({ viewport: { width: 1400, height: 950 } });
    page.setDefaultTimeout(240_000);
    const problems = [];
    page.on("pageerror", (error) => problems.push(String(error)));
    page.on("console", (message) => {
      if (["error", "warning"].includes(message.type())) problems.push(message.text());
    });
    try {
      await page.goto(url);
      await work(page);
      assert.deepEqual(problems, []);
    } finally {
      await page.close();
    }
  });
}

const tell = (page) => page.getByRole("button", { name: "Tell", exact: true });
const ready = (page) => page.locator("#tell:enabled").waitFor();

check("the bundled model tells a story, twice the same, beside its table", async (page) => {
  await ready(page);
  assert.match(await page.locator("#status").innerText(), /^demo.gguf: 51 commands, /);
  const table = page.frameLocator("#table");
  await table.getByText("rope_append").first().waitFor();
  const stories = [];
  for (let i = 0; i < 2; i += 1) {
    await page.getByLabel("Temperature").fill("0");
    await page.getByLabel("Tokens").fill("24");
    await tell(page).click();
    await page.locator("#speed", { hasText: "per second" }).waitFor();
    stories.push(await page.locator("#answer").innerText());
  }
  assert.match(stories[0], /fox/i);
  assert.equal(stories[1], stories[0]);
  const speed = await page.locator("#speed").innerText();
  assert.match(speed, /^24 tokens at \d+\.\d per second; prompt of \d+ at \d+\.\d per second$/);
  console.log(speed);
  if (process.env.WELTE_PICTURE) await page.screenshot({ path: process.env.WELTE_PICTURE });
});

check("a sampled story is its seed's, and another one for another seed", async (page) => {
  await ready(page);
  const stories = [];
  for (const seed of ["1", "1", "2"]) {
    await page.getByLabel("Temperature").fill("1");
    await page.getByLabel("Seed").fill(seed);
    await page.getByLabel("Tokens").fill("12");
    await tell(page).click();
    await page.locator("#speed", { hasText: /^12 tokens/ }).waitFor();
    stories.push(await page.locator("#answer").innerText());
    await ready(page);
  }
  assert.equal(stories[1], stories[0]);
  assert.notEqual(stories[2], stories[0]);
});

check("an answer can be stopped, and another one follows", async (page) => {
  await ready(page);
  await page.getByLabel("Tokens").fill("1500");
  await tell(page).click();
  await page.locator("#answer", { hasText: /\w/ }).waitFor();
  await page.getByRole("button", { name: "Stop" }).click();
  await ready(page);
  const [, tokens] = /^(\d+) tokens/.exec(await page.locator("#speed").innerText());
  assert.ok(Number(tokens) < 1500);
  await page.getByLabel("Tokens").fill("4");
  await tell(page).click();
  await page.locator("#speed", { hasText: /^4 tokens/ }).waitFor();
});

check("a file that is not a model is refused by name, and the page goes on", async (page) => {
  await ready(page);
  await page.setInputFiles("#file", { name: "notes.gguf", mimeType: "text/plain", buffer: Buffer.from("not a model") });
  await page.locator("#status.problem", { hasText: "notes.gguf: is not a GGUF file" }).waitFor();
});
