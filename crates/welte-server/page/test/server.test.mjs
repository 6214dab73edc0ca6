// The page against the real server, with the bundled model. WELTE is the path of the binary.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const MODEL = fileURLToPath(new URL("../../../../models/demo.gguf", import.meta.url));
const SCRIPTED = fileURLToPath(new URL("../../../../tools/scripted-model.py", import.meta.url));
const TOOLS = fileURLToPath(new URL("mcp-server.mjs", import.meta.url));

let browser, fast, slow, calling, folder;

/** Starts a server, with the bundled model if no other is named. */
async function start(device, model = MODEL, ...more) {
  const args = ["serve", "-m", model, "--device", device, "-c", "2048", "--port", "0", "--metrics", ...more];
  const child = spawn(process.env.WELTE, args);
  const ended = new Promise((resolve) => child.on("exit", resolve));
  const url = await new Promise((resolve, reject) => {
    let log = "";
    child.stderr.on("data", (data) => {
      log += data;
      // The line may arrive in pieces.
      const found = /listening at (http:\S+)\n/.exec(log);
      if (found) resolve(found[1]);
    });
    child.on("error", reject);
    ended.then((code) => reject(new Error(`the server ended with ${code}: ${log}`)));
  });
  async function stop() {
    child.kill("SIGTERM");
    assert.equal(await ended, 0);
  }
  return { url, stop };
}

before(async () => {
  fast = await start("cpu");
  // So slow that an answer can be stopped in its middle.
  slow = await start("reference");
  folder = await mkdtemp(join(tmpdir(), "welte-tools-"));
  const [model, config] = [join(folder, "scripted.gguf"), join(folder, "mcp.json")];
  const call = '<tool_call>\n{"name": "den", "arguments": {"of": "fox"}}\n</tool_call>';
  execFileSync("python3", [SCRIPTED, model, "--answer", `I look.\n${call}`, "--answer", "Three cubs live there."]);
  await writeFile(config, JSON.stringify({ mcpServers: { woods: { command: process.execPath, args: [TOOLS] } } }));
  calling = await start("cpu", model, "--mcp-config", config);
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
});

after(async () => {
  await browser?.close();
  await fast?.stop();
  await slow?.stop();
  await calling?.stop();
  if (folder) await rm(folder, { recursive: true });
});

/** Runs a test with a fresh profile. Afterwards the console must be empty. */
function check(name, path, work, server = () => fast) {
  test(name, { timeout: 180_000 }, async () => {
    const { url } = server();
    const context = await browser.newContext({ viewport: { width: 1200, height: 800 } });
    const problems = [];
    context.on("page", (page) => {
      page.setDefaultTimeout(150_000);
      page.on("pageerror", (error) => problems.push(String(error)));
      page.on("console", (message) => {
        if (["error", "warning"].includes(message.type())) problems.push(message.text());
      });
      page.on("request", (request) => {
        if (!request.url().startsWith(url) && !request.url().startsWith("blob:")) problems.push(request.url());
      });
    });
    try {
      const page = await context.newPage();
      await page.goto(url + path);
      await work(page);
      assert.deepEqual(problems, []);
    } finally {
      await context.close();
    }
  });
}

const answer = (page) => page.locator("article.assistant").last();
const text = (page) => answer(page).locator(".markdown").innerText();

async function send(page, message) {
  await page.getByRole("textbox", { name: "Message", exact: true }).fill(message);
  await page.keyboard.press("Enter");
}

async function finished(page) {
  await page.getByRole("button", { name: "Send", exact: true }).waitFor();
  await answer(page).locator("footer").waitFor();
}

/** Limits answers in the page's settings, so that the tests are short and repeatable. */
async function configure(page, fields) {
  await page.getByRole("textbox", { name: "Message", exact: true }).waitFor();
  await page.keyboard.press("Control+,");
  for (const [label, value] of Object.entries(fields)) await page.getByLabel(label, { exact: true }).fill(value);
  await page.keyboard.press("Escape");
}

/** The number of requests that the slow server is answering. */
async function running() {
  const metrics = await (await fetch(`${slow.url}/metrics`)).text();
  return Number(/num_requests_running\{.*\} (\d+)/.exec(metrics)[1]);
}

check("an answer streams, ends with figures, and outlives a reload", "/", async (page) => {
  await configure(page, { Temperature: "0", "Longest answer": "60" });
  await send(page, "Tell me a story about a fox.");
  await finished(page);
  const first = await text(page);
  assert.match(first, /fox/i);
  assert.match(await answer(page).locator(".stats").innerText(), /tok\/s.*60 tokens.*prompt \d+, 0 cached/s);
  await send(page, "Tell me more.");
  await finished(page);
  assert.match(await answer(page).locator(".stats").innerText(), /[1-9]\d* cached/);
  await page.reload();
  await answer(page).waitFor();
  assert.equal(await page.locator("article.assistant").count(), 2);
  assert.equal(await page.locator("article.assistant .markdown").first().innerText(), first);
});

check(
  "an answer stops when asked, and frees its slot",
  "/",
  async (page) => {
    const endless = (request) => JSON.stringify({ ...request.postDataJSON(), ignore_eos: true });
    await page.route("**/v1/chat/completions", (route) => route.continue({ postData: endless(route.request()) }));
    await configure(page, { Temperature: "0" });
    await send(page, "Tell me a story about a fox.");
    await answer(page).locator(".markdown").getByText(/\w/).first().waitFor();
    assert.equal(await running(), 1);
    await page.keyboard.press("Escape");
    await finished(page);
    assert.match(await answer(page).locator(".stats").innerText(), /stopped/);
    for (let i = 0; (await running()) > 0; i += 1) {
      assert.ok(i < 200, "the request goes on");
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  },
  () => slow,
);

check(
  "a tool of an MCP server is called once the reader agrees, and the model goes on",
  "/",
  async (page) => {
    await page.getByRole("button", { name: "Tools", exact: true }).click();
    await send(page, "Who lives there?");
    const call = page.getByRole("region", { name: "Call of den" });
    await call.getByRole("button", { name: "Run den" }).waitFor();
    assert.match(await call.innerText(), /woods · waits for you[^]*"of": "fox"/);
    await call.getByRole("button", { name: "Run den" }).click();
    await finished(page);
    assert.match(await answer(page).innerText(), /I look\.[^]*woods · called[^]*Three cubs live there\./);
    await call.locator("summary").click();
    assert.match(await call.innerText(), /Cubs of the fox: 3/);
  },
  () => calling,
);

check("an edited message makes a branch, and an answer is made again", "/", async (page) => {
  await configure(page, { Temperature: "0", "Longest answer": "12" });
  await send(page, "Tell me a story about a fox.");
  await finished(page);
  const first = await text(page);
  await answer(page).getByRole("button", { name: "Answer again" }).click();
  await finished(page);
  assert.equal(await answer(page).getByRole("group", { name: "Versions" }).innerText(), "2/2");
  assert.equal(await text(page), first);
  const user = page.locator("article.user").first();
  await user.hover();
  await user.getByRole("button", { name: "Edit message" }).click();
  await page.getByRole("textbox", { name: "Edit message" }).fill("Tell me a story about a bird.");
  await page.keyboard.press("Control+Enter");
  await finished(page);
  assert.equal(await user.getByRole("group", { name: "Versions" }).innerText(), "2/2");
  await user.getByRole("button", { name: "Previous version" }).click();
  assert.equal(await text(page), first);
});

check("the engine page shows the table, the pools and the batch", "/engine", async (page) => {
  const main = page.getByRole("main");
  await main.getByText("kv 0 owned").waitFor();
  const shown = await main.innerText();
  for (const part of ["demo", "8 layers", "0 of 4 slots", "Prefix tree", "Memory plan", "weights 7.2 MiB"]) {
    assert.ok(shown.includes(part), `${part} is missing in ${shown}`);
  }
});
