// Tests of the built page in Debian's chromium. Each test gets a fresh browser profile and its own server.
import assert from "node:assert/strict";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { chromium } from "playwright-core";
import { MODELS, startMock } from "./mock.mjs";

const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";

let browser, folder;

before(async () => {
  // The microphone hears this file.
  folder = await mkdtemp(join(tmpdir(), "welte-sound-"));
  const sound = join(folder, "tone.wav");
  await writeFile(sound, tone(2));
  const fake = ["--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream", `--use-file-for-fake-audio-capture=${sound}`];
  browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", ...fake] });
});
after(async () => {
  await browser.close();
  await rm(folder, { recursive: true });
});

/** A WAV file of a tone of 440 Hz at 48 kHz. */
function tone(seconds) {
  const count = 48000 * seconds;
  const file = Buffer.alloc(44 + 2 * count);
  file.write("RIFF", 0);
  file.writeUInt32LE(36 + 2 * count, 4);
  file.write("WAVEfmt ", 8);
  file.writeUInt32LE(16, 16);
  for (const [at, value] of [[20, 1], [22, 1], [32, 2], [34, 16]]) file.writeUInt16LE(value, at);
  file.writeUInt32LE(48000, 24);
  file.writeUInt32LE(96000, 28);
  file.write("data", 36);
  file.writeUInt32LE(2 * count, 40);
  for (let i = 0; i < count; i += 1) file.writeInt16LE(Math.round(12000 * Math.sin((2 * Math.PI * 440 * i) / 48000)), 44 + 2 * i);
  return file;
}

/** Runs a test with a page and a server. Afterwards the page must have had no error and no request to another host. */
function check(name, options, work) {
  test(name, { timeout: 120_000 }, async () => {
    const mock = await startMock();
    const context = await browser.newContext({ viewport: { width: 1200, height: 800 }, ...options });
    const problems = [];
    /** Console messages that the test expects: the browser logs every failed request. */
    const expected = [];
    context.on("page", (page) => {
      page.setDefaultTimeout(100_000);
      page.on("pageerror", (error) => problems.push(String(error)));
      page.on("console", (message) => {
        const text = message.text();
        const known = expected.some((pattern) => pattern.test(text));
        if (["error", "warning"].includes(message.type()) && !known) problems.push(text);
      });
      page.on("request", (request) => {
        if (!request.url().startsWith(mock.url) && !request.url().startsWith("blob:")) problems.push(request.url());
      });
    });
    try {
      const page = await context.newPage();
      await page.goto(mock.url);
      await work({ page, mock, context, expected });
      assert.deepEqual(problems, []);
    } finally {
      await context.close();
      await mock.close();
    }
  });
}

const field = (page) => page.getByRole("textbox", { name: "Message", exact: true });
const main = (page) => page.getByRole("main");
const answer = (page, n = -1) => page.locator("article.assistant").nth(n);

async function send(page, text) {
  await field(page).fill(text);
  await page.keyboard.press("Enter");
}

/** Waits until the last answer has ended. */
async function finished(page) {
  await page.getByRole("button", { name: "Send", exact: true }).waitFor();
  await answer(page).locator("footer").waitFor();
}

/** Presses a button of a conversation in the list. */
async function inList(page, title, action) {
  await page.getByRole("link", { name: title }).hover();
  await page.getByRole("button", { name: `${action} ${title}` }).click();
}

/** Whether the browser has saved a message with this text. */
function isSaved(page, text) {
  return page.evaluate(
    (text) =>
      new Promise((resolve, reject) => {
        const opened = indexedDB.open("welte");
        opened.onerror = () => reject(opened.error);
        opened.onsuccess = () => {
          const all = opened.result.transaction(["messages"]).objectStore("messages").getAll();
          all.onsuccess = () => {
            opened.result.close();
            resolve(all.result.some((message) => message.text.includes(text)));
          };
        };
      }),
    text,
  );
}

/** A promise with its resolve function. */
function gate() {
  let open;
  const promise = new Promise((resolve) => (open = resolve));
  return { promise, open };
}

/** Waits until a condition holds that the page does not show. */
async function until(condition) {
  for (let i = 0; i < 1800; i += 1) {
    if (await condition()) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  assert.fail(`not reached: ${condition}`);
}

describe("answers", () => {
  check("stream as markdown and end with figures", {}, async ({ page, mock }) => {
    await send(page, "Tell me a story about a fox.");
    await finished(page);
    const last = answer(page);
    assert.equal(await last.locator("strong").innerText(), "three things");
    assert.equal(await last.locator("ol > li").count(), 3);
    assert.equal(await last.locator("tbody tr").count(), 2);
    assert.equal(await last.locator("figure code .code-keyword").first().innerText(), "def");
    assert.match(await last.locator("figure pre").innerText(), /^def total\(items\):\n    """Sum of all prices\."""\n    return sum/);
    assert.match(await last.locator(".stats").innerText(), /1,384 tok\/s.*67 % of the floor.*tokens.*prompt \d+, 0 cached.*3\.1 ms/s);
    const { model, messages, stream, stream_options, ...rest } = mock.requests[0];
    assert.deepEqual([model, stream, stream_options, rest], [MODELS[0], true, { include_usage: true }, {}]);
    assert.deepEqual(messages, [{ role: "user", content: "Tell me a story about a fox." }]);
    assert.equal(await page.title(), "Tell me a story about a fox. · Welte");

    await send(page, "And then?");
    await finished(page);
    assert.deepEqual(mock.requests[1].messages.map(({ role }) => role), ["user", "assistant", "user"]);
    assert.match(await answer(page).locator(".stats").innerText(), /prompt \d+, ([1-9]\d*) cached, differs at \1.*\d+ of 8,192 positions/s);
  });

  check("appear while they stream, and the view stays at their end", {}, async ({ page, mock }) => {
    const lines = Array.from({ length: 120 }, (_, i) => `line ${i}`).join("\n\n");
    const { promise, open } = gate();
    Object.assign(mock.behaviour, { answer: lines, halt: { after: 200, until: promise } });
    await send(page, "count");
    await main(page).getByText("line 40", { exact: true }).waitFor();
    assert.equal(await page.getByRole("button", { name: "Stop" }).isVisible(), true);
    assert.equal(await main(page).getByText("line 119", { exact: true }).count(), 0);
    open();
    await finished(page);
    const view = page.getByRole("main");
    const gap = () => view.evaluate((e) => e.scrollHeight - e.scrollTop - e.clientHeight);
    await until(async () => (await gap()) < 5);
    await view.evaluate((e) => (e.scrollTop = 0));
    await page.getByRole("button", { name: "Go to the end" }).click();
    await until(async () => (await gap()) < 5);
  });

  check("stop when asked, and the server notices", {}, async ({ page, mock }) => {
    const { promise, open } = gate();
    mock.behaviour.halt = { after: 12, until: promise };
    await send(page, "story");
    await answer(page).getByText("A fox kept").waitFor();
    await page.getByRole("button", { name: "Stop" }).click();
    await finished(page);
    open();
    await until(() => mock.left.length === 1);
    assert.match(await answer(page).locator(".stats").innerText(), /stopped/);
    const text = await answer(page).locator(".markdown").innerText();
    assert.ok(text.startsWith("A fox kept") && text.length < 400, text);
  });

  check("fold thinking away", {}, async ({ page, mock }) => {
    mock.behaviour.thinking = "The reader wants a fox.";
    await send(page, "story");
    await finished(page);
    const thinking = answer(page).locator("details.thinking");
    // The time is missing if the thinking and the text arrived together.
    assert.match(await thinking.locator("summary").innerText(), /^Thought/);
    assert.equal(await thinking.locator("div").isVisible(), false);
    await thinking.locator("summary").click();
    assert.equal(await thinking.locator("div").innerText(), "The reader wants a fox.");
    await send(page, "more");
    await finished(page);
    assert.ok(!JSON.stringify(mock.requests[1]).includes("The reader wants"));
  });

  check("never run HTML from the model or load its pictures", {}, async ({ page, mock }) => {
    mock.behaviour.answer = [
      "<script>window.hacked = 1</script>",
      '<img src="x" onerror="window.hacked = 2">',
      "[click](javascript:window.hacked=3) and ![chart](https://example.org/leak.png?secret)",
      'inline <b onclick="window.hacked=4">bold</b>, <kbd>Esc</kbd>, a<br>b, `<i>`, &lt;u&gt; <iframe src="https://example.org/"></iframe>',
      '```html\n<script>window.hacked = 5</script>\n```',
      "# <svg onload=window.hacked=6>",
    ].join("\n\n");
    await send(page, "attack");
    await finished(page);
    const last = answer(page).locator(".markdown");
    assert.equal(await page.evaluate(() => window.hacked), undefined);
    assert.equal(await last.locator("script, img, iframe, svg:not(.icon), [onclick], [onerror]").count(), 0);
    assert.deepEqual(await last.locator("a").evaluateAll((links) => links.map((a) => [a.textContent, a.href, a.rel])), [
      ["chart", "https://example.org/leak.png?secret", "noopener noreferrer nofollow"],
    ]);
    assert.equal(await last.locator("kbd").innerText(), "Esc");
    assert.match(await last.innerText(), /<script>window\.hacked = 1<\/script>[^]*<u>/);
  });

  check("of any nesting neither break the page nor the saved conversation", {}, async ({ page, mock }) => {
    const deep = (n) => [`${">".repeat(n)} quote`, `${"- ".repeat(n)}list`, `${"<b>".repeat(n)}end${"</b>".repeat(n)}`];
    const crossed = ["<b><i>crossed</b></i>", "the last words"];
    mock.behaviour.answer = [...deep(1000), ...deep(10_000), ...crossed].join("\n\n");
    mock.behaviour.pause = 0;
    await send(page, "attack");
    await finished(page);
    await page.reload();
    await answer(page).getByText("the last words").waitFor();
    assert.match(await answer(page).innerText(), /quote[^]*list[^]*end[^]*crossed/);
    assert.equal(await answer(page).locator("b").count(), 49, "24 levels of both nested tags, and the crossed pair");
    mock.behaviour.answer = "It works.";
    await send(page, "and now?");
    await finished(page);
    assert.equal(await answer(page).locator(".markdown").innerText(), "It works.");
  });

  check("in JSON mode are asked for and shown as JSON", {}, async ({ page, mock }) => {
    await page.getByRole("button", { name: "JSON" }).click();
    await send(page, "a fox");
    await finished(page);
    assert.deepEqual(mock.requests[0].response_format, { type: "json_object" });
    assert.equal(await answer(page).locator("pre").innerText(), '{\n  "name": "fox",\n  "legs": 4,\n  "id": 12345678901234567890\n}');
  });
});

describe("versions", () => {
  check("of an edited message form branches", {}, async ({ page, mock }) => {
    mock.behaviour.answer = ({ messages }) => `Answer to ${messages.at(-1).content}.`;
    await send(page, "one");
    await finished(page);
    await send(page, "two");
    await finished(page);
    const first = page.locator("article.user").first();
    await first.hover();
    await first.getByRole("button", { name: "Edit message" }).click();
    const editor = page.getByRole("textbox", { name: "Edit message" });
    assert.equal(await editor.inputValue(), "one");
    await editor.fill("uno");
    await editor.press("Control+Enter");
    await main(page).getByText("Answer to uno.").waitFor();
    await finished(page);
    assert.deepEqual(mock.requests[2].messages.map(({ content }) => content), ["uno"]);
    assert.equal(await page.locator("article").count(), 2);
    assert.equal(await first.getByRole("group", { name: "Versions" }).innerText(), "2/2");

    await first.getByRole("button", { name: "Previous version" }).click();
    await main(page).getByText("Answer to two.").waitFor();
    assert.equal(await page.locator("article").count(), 4);
    await page.reload();
    await main(page).getByText("Answer to two.").waitFor();
    await page.locator("article.user").first().getByRole("button", { name: "Next version" }).click();
    await main(page).getByText("Answer to uno.").waitFor();
  });

  check("of an answer are made by asking again", {}, async ({ page, mock }) => {
    let n = 0;
    mock.behaviour.answer = () => `Version ${(n += 1)}.`;
    await send(page, "story");
    await finished(page);
    await answer(page).getByRole("button", { name: "Answer again" }).click();
    await main(page).getByText("Version 2.").waitFor();
    await finished(page);
    assert.deepEqual(mock.requests[0].messages, mock.requests[1].messages);
    await answer(page).getByRole("button", { name: "Previous version" }).click();
    await main(page).getByText("Version 1.").waitFor();
    await send(page, "on");
    await finished(page);
    assert.equal(mock.requests[2].messages[1].content, "Version 1.");

    const edited = page.locator("article.assistant").first();
    await edited.hover();
    await edited.getByRole("button", { name: "Edit message" }).click();
    await page.getByRole("textbox", { name: "Edit message" }).fill("Mine.");
    await page.getByRole("button", { name: "Save" }).click();
    await page.locator("article.assistant").last().locator(".markdown", { hasText: /^Mine\.$/ }).waitFor();
    assert.equal(mock.requests.length, 3);
  });

  check("are deleted and brought back", {}, async ({ page, mock }) => {
    mock.behaviour.answer = "short";
    await send(page, "one");
    await finished(page);
    await answer(page).getByRole("button", { name: "Delete message" }).click();
    await main(page).getByText("This message has no answer.").waitFor();
    await page.getByRole("button", { name: "Undo" }).click();
    await answer(page).getByText("short").waitFor();
  });
});

describe("conversations", () => {
  check("outlive a reload, also in the middle of an answer", {}, async ({ page, mock }) => {
    // The page saves while text comes.
    mock.behaviour.answer = `A fox sold three things. ${"And more. ".repeat(20_000)}`;
    mock.behaviour.pause = 20;
    await send(page, "story");
    await until(() => isSaved(page, "three things"));
    await field(page).fill("not sent yet");
    await page.reload();
    await main(page).getByText("The connection closed before the answer was complete.").waitFor();
    assert.match(await answer(page).locator(".markdown").innerText(), /three things/);
    assert.equal(await field(page).inputValue(), "not sent yet");
    delete mock.behaviour.answer;
    delete mock.behaviour.pause;
    await answer(page).getByRole("button", { name: "Try again" }).click();
    await answer(page).getByText("See the map").waitFor();
  });

  check("keep a change that was made right before a reload", {}, async ({ page, mock }) => {
    let n = 0;
    mock.behaviour.answer = () => `Version ${(n += 1)}.`;
    // A disk so slow that no change is confirmed before the page is left.
    await page.addInitScript(() => {
      const { transaction } = IDBDatabase.prototype;
      IDBDatabase.prototype.transaction = function (...args) {
        const made = transaction.apply(this, args);
        const store = made.objectStore(args[0][0]);
        const hold = () => {
          try {
            store.get("").onsuccess = hold;
          } catch {
            // The transaction has been committed.
          }
        };
        if (args[1] === "readwrite") hold();
        return made;
      };
    });
    await page.reload();
    await send(page, "story");
    await finished(page);
    await page.reload();
    await main(page).getByText("Version 1.").waitFor();
    await answer(page).getByRole("button", { name: "Answer again" }).click();
    await main(page).getByText("Version 2.").waitFor();
    await finished(page);
    await answer(page).getByRole("button", { name: "Previous version" }).click();
    await main(page).getByText("Version 1.").waitFor();
    await page.reload();
    await main(page).getByText("Version 1.").waitFor();

    const list = page.getByRole("navigation", { name: "Conversations" });
    await inList(page, "story", "Delete");
    await list.getByText("Conversations are kept in this browser.").waitFor();
    await page.reload();
    await list.getByText("Conversations are kept in this browser.").waitFor();
  });

  check("that begin before the browser has read the old ones stay", {}, async ({ page, mock }) => {
    mock.behaviour.answer = "short";
    await page.addInitScript(() => {
      const { transaction } = IDBDatabase.prototype;
      IDBDatabase.prototype.transaction = function (...args) {
        const made = transaction.apply(this, args);
        const late = (done) => made.addEventListener("complete", () => setTimeout(() => ((window.read = true), done()), 1000));
        if (args[1] === "readonly") Object.defineProperty(made, "oncomplete", { set: late });
        return made;
      };
    });
    await page.reload();
    await send(page, "early");
    await page.waitForFunction(() => window.read);
    await finished(page);
    assert.equal(await page.getByRole("link", { name: "early" }).count(), 1);
    assert.equal(await answer(page).locator(".markdown").innerText(), "short");
  });

  check("are listed, named, found and deleted", {}, async ({ page, mock }) => {
    mock.behaviour.answer = ({ messages }) => `About ${messages[0].content}.`;
    for (const text of ["foxes", "bears"]) {
      await page.getByRole("button", { name: "New conversation" }).click();
      await send(page, text);
      await finished(page);
    }
    const list = page.getByRole("navigation", { name: "Conversations" });
    assert.deepEqual(await list.locator("li > a").allInnerTexts(), ["bears", "foxes"]);
    await inList(page, "foxes", "Rename");
    await page.getByRole("textbox", { name: "Title" }).fill("A study");
    await page.keyboard.press("Enter");
    assert.deepEqual(await list.locator("li > a").allInnerTexts(), ["bears", "A study"]);
    await page.getByRole("searchbox").fill("about FOX");
    await until(async () => (await list.locator("li").count()) === 1);
    await list.getByRole("link", { name: "A study" }).click();
    await main(page).getByText("About foxes.").waitFor();
    await page.getByRole("searchbox").fill("");
    await until(async () => (await list.locator("li").count()) === 2);
    await inList(page, "A study", "Delete");
    await until(async () => (await list.locator("li").count()) === 1);
    assert.equal(await page.locator("article").count(), 0);
    await page.getByRole("button", { name: "Undo" }).click();
    await until(async () => (await list.locator("li").count()) === 2);
    await page.reload();
    await list.getByRole("link", { name: "A study" }).click();
    await main(page).getByText("About foxes.").waitFor();
  });

  check("are deleted with messages that only another tab knows, and brought back meanwhile", {}, async ({ page, mock }) => {
    mock.behaviour.answer = "short";
    // While `held` is a list, what the page reads arrives when its functions are called.
    await page.addInitScript(() => {
      const { transaction } = IDBDatabase.prototype;
      IDBDatabase.prototype.transaction = function (...args) {
        const made = transaction.apply(this, args);
        const late = (done) => made.addEventListener("complete", () => (window.held ? window.held.push(done) : done()));
        if (args[1] === "readonly") Object.defineProperty(made, "oncomplete", { set: late });
        return made;
      };
    });
    await page.reload();
    await send(page, "story");
    await finished(page);
    await until(() => isSaved(page, "short"));
    await page.evaluate(
      () =>
        new Promise((resolve) => {
          window.held = [];
          indexedDB.open("welte").onsuccess = ({ target: { result: db } }) => {
            const transaction = db.transaction(["messages"], "readwrite");
            const chat = location.hash.slice(1);
            transaction.objectStore("messages").put({ id: "other", chat, parent: "", role: "user", text: "elsewhere", created: 0 });
            transaction.oncomplete = () => (db.close(), resolve());
          };
        }),
    );
    await inList(page, "story", "Delete");
    await page.waitForFunction(() => window.held.length > 0);
    await page.getByRole("button", { name: "Undo" }).click();
    await until(() => isSaved(page, "short"));
    await page.evaluate(() => window.held.forEach((done) => done()));
    await until(async () => !(await isSaved(page, "elsewhere")));
    assert.ok(await isSaved(page, "short"));
  });

  check("show up in another tab", {}, async ({ page, mock, context }) => {
    mock.behaviour.answer = "short";
    const other = await context.newPage();
    await other.goto(mock.url);
    await send(page, "from the first tab");
    await finished(page);
    await other.getByRole("link", { name: "from the first tab" }).click();
    await answer(other).getByText("short").waitFor();
    await send(other, "from the second tab");
    await finished(other);
    await page.locator("article.user").getByText("from the second tab").waitFor();
  });

  check("begin with a suggestion, beside the name of the model that answers", {}, async ({ page, mock }) => {
    const start = page.getByRole("region", { name: "Start" });
    await start.getByText(`${MODELS[0]} answers.`).waitFor();
    const suggestions = start.getByRole("list", { name: "Suggestions" }).getByRole("button");
    assert.equal(await suggestions.count(), 4);
    const text = await suggestions.nth(1).innerText();
    await suggestions.nth(1).click();
    await finished(page);
    assert.deepEqual(mock.requests[0].messages, [{ role: "user", content: text }]);
    assert.equal(await start.count(), 0);
  });

  check("are exported one by one, with the versions that are shown", {}, async ({ page, mock }) => {
    mock.behaviour.answer = "the first answer";
    mock.behaviour.thinking = "hidden thoughts";
    await send(page, "keep: this/one?");
    await finished(page);
    mock.behaviour.answer = "the *second* answer";
    await page.keyboard.press("Alt+KeyR");
    await until(() => mock.requests.length === 2);
    await finished(page);
    await send(page, "and more");
    await finished(page);
    const [file] = await Promise.all([page.waitForEvent("download"), inList(page, "keep: this/one?", "Export")]);
    assert.equal(file.suggestedFilename(), "keep-this-one.md");
    assert.equal(
      await readFile(await file.path(), "utf8"),
      `# keep: this/one?\n\n**You**\n\nkeep: this/one?\n\n**${MODELS[0]}**\n\nthe *second* answer\n\n` +
        `**You**\n\nand more\n\n**${MODELS[0]}**\n\nthe *second* answer\n`,
    );
  });

  check("are saved to a file and restored", {}, async ({ page, mock, context }) => {
    mock.behaviour.answer = "short";
    await send(page, "keep this");
    await finished(page);
    await page.getByRole("button", { name: "Settings", exact: true }).click();
    const [file] = await Promise.all([
      page.waitForEvent("download"),
      page.getByRole("button", { name: "Save all conversations to a file" }).click(),
    ]);
    const path = await file.path();
    await page.keyboard.press("Escape");
    await inList(page, "keep this", "Delete");
    await page.getByRole("button", { name: "Settings", exact: true }).click();
    await page.locator('input[accept="application/json"]').setInputFiles(path);
    await page.getByText("1 conversation restored.").first().waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("link", { name: "keep this" }).click();
    await answer(page).getByText("short").waitFor();
    assert.equal(context.pages().length, 1);
  });
});

describe("settings", () => {
  check("reach the server, and new conversations begin with them", {}, async ({ page, mock }) => {
    mock.behaviour.answer = "short";
    await page.getByRole("button", { name: "Settings of this conversation" }).click();
    const dialog = page.getByRole("dialog", { name: "Settings" });
    await dialog.getByLabel("System prompt").fill("Be brief.");
    await dialog.getByLabel("Temperature").fill("0.5");
    await dialog.getByLabel("Seed").fill("7");
    await dialog.getByLabel("Top k").fill("-1");
    assert.equal(await dialog.getByLabel("Top k").getAttribute("aria-invalid"), "true");
    await dialog.getByLabel("Thinking").selectOption("off");
    await dialog.getByRole("button", { name: "Use for new conversations" }).click();
    await dialog.getByRole("button", { name: "Close" }).click();
    await page.getByRole("combobox", { name: "Model" }).selectOption(MODELS[1]);
    await send(page, "hello");
    await finished(page);
    const { model, messages, temperature, seed, top_k, chat_template_kwargs } = mock.requests[0];
    assert.deepEqual([model, temperature, seed, top_k, chat_template_kwargs], [MODELS[1], 0.5, 7, undefined, { enable_thinking: false }]);
    assert.deepEqual(messages[0], { role: "system", content: "Be brief." });

    await page.reload();
    await page.getByRole("button", { name: "New conversation" }).click();
    await send(page, "hello again");
    await finished(page);
    assert.deepEqual([mock.requests[1].model, mock.requests[1].temperature], [MODELS[1], 0.5]);
  });

  check("a schema that is not JSON is shown as such", {}, async ({ page, mock }) => {
    await page.getByRole("button", { name: "JSON" }).click();
    await page.getByRole("button", { name: "Settings of this conversation" }).click();
    await page.getByLabel("JSON schema").fill('{"type": ');
    await page.keyboard.press("Escape");
    await send(page, "hello");
    await main(page).getByText("The schema in the settings is not JSON.").first().waitFor();
    assert.equal(mock.requests.length, 0);
  });
});

describe("models", () => {
  const dialog = (page) => page.getByRole("dialog", { name: "Models" });

  check("are searched and chosen", {}, async ({ page, mock }) => {
    await page.getByRole("button", { name: "Models", exact: true }).click();
    const entries = dialog(page).getByRole("list", { name: "Models" }).getByRole("button");
    await entries.nth(1).waitFor();
    assert.deepEqual(await entries.allInnerTexts(), [`${MODELS[0]}\nloaded · 8,192 positions`, `${MODELS[1]}\nnot loaded · 2,048 positions`]);
    await dialog(page).getByRole("searchbox").fill("STORIES");
    assert.equal(await entries.count(), 1);
    await entries.first().click();
    await until(async () => (await dialog(page).count()) === 0);
    await send(page, "hello");
    await finished(page);
    assert.equal(mock.requests[0].model, MODELS[1]);
  });

  check("are downloaded, with progress", {}, async ({ page, mock, expected }) => {
    expected.push(/status of 403/);
    const { promise, open } = gate();
    await page.getByRole("button", { name: "Models", exact: true }).click();
    const pull = async (name) => {
      await dialog(page).getByRole("textbox", { name: "Name on the hub" }).fill(name);
      await dialog(page).getByRole("button", { name: "Download" }).click();
    };
    mock.behaviour.pull = { status: 403, message: "the server does not manage models; start it with --models-cached" };
    await pull("org/name:Q4_K_M");
    await dialog(page).getByText("start it with --models-cached").waitFor();
    mock.behaviour.pull = [{ status: "pulling manifest" }, { error: "the hub has no such file" }];
    await pull("org/name:Q4_K_M");
    await dialog(page).getByText("the hub has no such file").waitFor();
    const half = { status: "pulling model.gguf", completed: 1048576, total: 2097152 };
    mock.behaviour.pull = [{ status: "pulling manifest" }, half, promise.then(() => ({ status: "success" }))];
    await pull("org/name:Q4_K_M");
    await dialog(page).getByText("pulling model.gguf, 1.0 MiB of 2.0 MiB").waitFor();
    assert.equal(await dialog(page).getByRole("progressbar").evaluate((bar) => bar.value / bar.max), 0.5);
    open();
    await dialog(page).getByText("org/name:Q4_K_M is there.").waitFor();
    await dialog(page).getByRole("list", { name: "Models" }).getByRole("button", { name: "org/name:Q4_K_M" }).waitFor();
  });
});

describe("files", () => {
  check("are attached, shown and sent", {}, async ({ page, mock }) => {
    mock.behaviour.answer = "short";
    const input = page.locator(".composer input[type=file]");
    await input.setInputFiles([
      { name: "notes.txt", mimeType: "text/plain", buffer: Buffer.from("line one\r\nline two\n") },
      { name: "noise.bin", mimeType: "application/octet-stream", buffer: Buffer.from([0x89, 0x50, 0x4e, 0x47, 0, 255]) },
      { name: "large.txt", mimeType: "text/plain", buffer: Buffer.alloc((1 << 20) + 1, "a") },
    ]);
    await page.getByText("noise.bin is not a text file in UTF-8. large.txt is larger than 1 MiB.").first().waitFor();
    const files = page.getByRole("list", { name: "Attached files" });
    assert.equal(await files.locator("li").count(), 1);
    await input.setInputFiles([{ name: "b.txt", mimeType: "text/plain", buffer: Buffer.from("b") }]);
    await page.getByRole("button", { name: "Remove b.txt" }).click();
    await send(page, "What is this?");
    await finished(page);
    assert.equal(mock.requests[0].messages[0].content, "File notes.txt:\n```\nline one\nline two\n```\n\nWhat is this?");
    const shown = page.locator("article.user details");
    await shown.locator("summary").click();
    assert.equal(await shown.locator("pre").innerText(), "line one\nline two\n");
  });
});

describe("images", () => {
  check("are attached, sent, and shown again after a reload", {}, async ({ page, mock }) => {
    mock.behaviour.answer = "short";
    const one = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    const buffer = Buffer.from(one, "base64");
    await page.locator(".composer input[type=file]").setInputFiles([
      { name: "red.png", mimeType: "image/png", buffer },
      { name: "blue.png", mimeType: "image/png", buffer },
    ]);
    const attached = page.getByRole("list", { name: "Attached files" });
    await attached.locator("img").nth(1).waitFor();
    await page.getByRole("button", { name: "Remove blue.png" }).click();
    await send(page, "What is this?");
    await finished(page);
    assert.deepEqual(mock.requests[0].messages[0].content, [
      { type: "image_url", image_url: { url: `data:image/png;base64,${one}` } },
      { type: "text", text: "What is this?" },
    ]);
    const shown = page.locator("article.user img[alt='red.png']");
    await page.reload();
    await shown.waitFor();
    assert.equal(await shown.evaluate((image) => image.naturalWidth), 1);
  });
});

describe("sounds", () => {
  /** Opens the page again, now that the server hears. */
  async function listening(page, mock, behaviour) {
    Object.assign(mock.behaviour, { answer: "short" }, behaviour);
    await page.reload();
    await field(page).waitFor();
  }
  const button = (page, name) => page.getByRole("button", { name, exact: true });
  /** Records for a while. */
  async function record(page, name) {
    await button(page, name).click();
    await button(page, "Stop recording").waitFor();
    await page.waitForTimeout(800);
    await button(page, "Stop recording").click();
  }
  /** A file of 16 bits at 16 kHz with a tone in it. */
  function isTone(file) {
    assert.deepEqual([file.toString("latin1", 0, 4), file.readUInt32LE(24), file.readUInt16LE(22), file.readUInt16LE(34)], ["RIFF", 16000, 1, 16]);
    const samples = Array.from({ length: (file.length - 44) / 2 }, (_, i) => file.readInt16LE(44 + 2 * i));
    assert.ok(samples.length > 4000, `${samples.length} samples`);
    assert.ok(Math.max(...samples) > 3000, `at most ${Math.max(...samples)}`);
  }

  check("are recorded, sent to a model that hears, and played again after a reload", {}, async ({ page, mock }) => {
    await listening(page, mock, { hears: true });
    await record(page, "Record a sound");
    const attached = page.getByRole("list", { name: "Attached files" });
    await attached.getByText(/recording-.*\.wav/).waitFor();
    await send(page, "What do you hear?");
    await finished(page);
    const [sound, text] = mock.requests[0].messages[0].content;
    assert.deepEqual(text, { type: "text", text: "What do you hear?" });
    assert.deepEqual([sound.type, sound.input_audio.format], ["input_audio", "wav"]);
    isTone(Buffer.from(sound.input_audio.data, "base64"));
    await page.reload();
    const player = page.locator("article.user audio");
    await player.waitFor();
    const playable = (audio) =>
      new Promise((resolve) => {
        audio.onloadedmetadata = () => resolve(audio.duration);
        audio.onerror = () => resolve(0);
        audio.load();
      });
    assert.ok((await player.evaluate(playable)) > 0.2);
  });

  check("are attached as files only if the model hears", {}, async ({ page, mock }) => {
    const file = { name: "a.mp3", mimeType: "audio/mpeg", buffer: Buffer.from("ID3") };
    const picker = page.locator(".composer input[type=file]");
    await field(page).waitFor();
    assert.equal(await button(page, "Record a sound").count(), 0);
    assert.equal(await button(page, "Dictate").count(), 0);
    await picker.setInputFiles([file]);
    await page.getByText("a.mp3 is a sound, and this model does not hear.").first().waitFor();
    await listening(page, mock, { hears: true });
    await picker.setInputFiles([file]);
    await page.getByRole("button", { name: "Remove a.mp3" }).waitFor();
    await button(page, "Send").click();
    await finished(page);
    assert.deepEqual(mock.requests[0].messages[0].content, [{ type: "input_audio", input_audio: { data: "SUQz", format: "mp3" } }]);
  });

  check("become text if only a model of speech hears", {}, async ({ page, mock, expected }) => {
    await listening(page, mock, { speech: " The fox said it." });
    assert.equal(await page.getByLabel("Model", { exact: true }).locator("option").count(), MODELS.length);
    await field(page).fill("Note:");
    await record(page, "Dictate");
    await page.waitForFunction(() => document.querySelector("#message").value === "Note: The fox said it.");
    assert.equal(mock.heard[0].model, "whisper-tiny");
    isTone(mock.heard[0].file);
    assert.equal(mock.requests.length, 0);
    expected.push(/503/);
    mock.behaviour.speech = null;
    await record(page, "Dictate");
    await page.getByText(/could not be written down: the answer takes too long/i).first().waitFor();
    assert.equal(await field(page).inputValue(), "Note: The fox said it.");
    await button(page, "Dictate").waitFor();
  });
});

describe("tools", () => {
  const den = { name: "den", description: "who lives there", parameters: { type: "object", properties: { of: { type: "string" } } } };
  const LOOK = "I look.";
  /** Asks for calls of `name` until the conversation has as many results as there are arguments. */
  const calling = (name, ...texts) => (settings) => {
    const done = settings.messages.filter(({ role }) => role === "tool").length;
    return texts.slice(done, done + 1).map((text) => ({ id: `call_${done}`, name, arguments: text }));
  };
  /** Opens the page again, now that the server has tools. */
  async function withTools({ page, mock }, behaviour) {
    const answer = (settings) => (behaviour.calls(settings).length > 0 ? LOOK : "Three cubs live there.");
    Object.assign(mock.behaviour, { tools: { "the woods": [den] }, answer, pause: 0 }, behaviour);
    await page.reload();
    return page.getByRole("button", { name: "Tools", exact: true });
  }
  const call = (page, n = -1) => page.getByRole("region", { name: "Call of den" }).nth(n);

  check("are off at first, and each call is shown and waits for the reader", {}, async ({ page, mock }) => {
    assert.equal(await page.getByRole("button", { name: "Tools", exact: true }).count(), 0);
    const { promise, open } = gate();
    const toggle = await withTools({ page, mock }, {
      calls: calling("den", '{"of": "fox"}'),
      called: () => promise.then(() => ({ output: "Three cubs\n<b>and</b> a vixen." })),
      thinking: "Foxes have dens.",
    });
    await toggle.waitFor();
    mock.behaviour.calls = () => [];
    await send(page, "Hello");
    await finished(page);
    assert.equal(mock.requests[0].tools, undefined);
    mock.behaviour.calls = calling("den", '{"of": "fox"}');
    await toggle.click();
    assert.equal(await toggle.getAttribute("aria-pressed"), "true");
    await send(page, "Who lives there?");
    await call(page).getByRole("button", { name: "Run den" }).waitFor();
    assert.match(await call(page).innerText(), /den\s+the woods · waits for you[^]*"of": "fox"/);
    assert.equal(await answer(page).getByText(LOOK).isVisible(), true);
    assert.deepEqual([mock.called, mock.requests.length], [[], 2]);
    assert.deepEqual(mock.requests[1].tools, [{ type: "function", function: den }]);
    await call(page).getByRole("button", { name: "Run den" }).click();
    await call(page).getByText("the woods · running").waitFor();
    open();
    await finished(page);
    assert.deepEqual(mock.called, [{ server: "the woods", name: "den", arguments: '{"of": "fox"}' }]);
    assert.deepEqual(mock.requests[2].messages.slice(-3), [
      { role: "user", content: "Who lives there?" },
      {
        role: "assistant", content: LOOK, reasoning_content: "Foxes have dens.",
        tool_calls: [{ id: "call_0", type: "function", function: { name: "den", arguments: '{"of": "fox"}' } }],
      },
      { role: "tool", tool_call_id: "call_0", content: "Three cubs\n<b>and</b> a vixen." },
    ]);

    await page.reload();
    await answer(page).getByText("Three cubs live there.").waitFor();
    assert.match(await call(page).innerText(), /the woods · called/);
    await call(page).locator("summary").click();
    assert.match(await call(page).innerText(), /Three cubs\n<b>and<\/b> a vixen\./);
    mock.behaviour.calls = () => [];
    await send(page, "Thanks");
    await finished(page);
    assert.deepEqual(mock.requests[3].messages.map(({ role }) => role), ["user", "assistant", "user", "assistant", "tool", "assistant", "user"]);
  });

  check("are not called if the reader declines, and what a tool says went wrong is passed on", {}, async ({ page, mock }) => {
    const toggle = await withTools({ page, mock }, { calls: calling("den", "{}", '{"of": "owl"}'), called: () => ({ error: "Nobody." }) });
    await toggle.click();
    await send(page, "Who lives there?");
    await page.getByRole("button", { name: "Decline den" }).click();
    await page.getByRole("button", { name: "Run den" }).click();
    await finished(page);
    assert.deepEqual(mock.called.map(({ arguments: text }) => text), ['{"of": "owl"}']);
    const said = mock.requests[2].messages.filter(({ role }) => role === "tool").map(({ content }) => content);
    assert.deepEqual(said, ["The user declined this call.", "Nobody."]);
    assert.match(await call(page, 0).innerText(), /declined/);
    assert.match(await call(page, 1).innerText(), /failed/);
  });

  check("are not called once the answer is stopped or the page was closed", {}, async ({ page, mock }) => {
    const toggle = await withTools({ page, mock }, { calls: calling("den", "{}") });
    await toggle.click();
    await send(page, "Who lives there?");
    await page.getByRole("button", { name: "Run den" }).waitFor();
    await page.keyboard.press("Escape");
    await finished(page);
    assert.match(await answer(page).innerText(), /not called[^]*stopped/);
    await answer(page).getByRole("button", { name: "Answer again" }).click();
    await page.getByRole("button", { name: "Run den" }).waitFor();
    await page.reload();
    await answer(page).getByText(/The connection closed/).waitFor();
    assert.match(await call(page).innerText(), /not called/);
    assert.deepEqual([await page.getByRole("button", { name: "Run den" }).count(), mock.called], [0, []]);
  });

  check("of the same name are told apart, and one that does not exist ends the answer", {}, async ({ page, mock }) => {
    const toggle = await withTools({ page, mock }, {
      tools: { hills: [den], woods: [den] }, calls: calling("woods__den", "{}"), called: () => ({ output: "Cubs." }),
    });
    await toggle.click();
    await send(page, "Who lives there?");
    await page.getByRole("button", { name: "Run den" }).click();
    await finished(page);
    assert.deepEqual(mock.called, [{ server: "woods", name: "den", arguments: "{}" }]);
    mock.behaviour.calls = () => [{ id: "call_9", name: "lair", arguments: "{}" }];
    await send(page, "And there?");
    await answer(page).getByText("The model called a tool that does not exist.").waitFor();
    assert.equal(mock.called.length, 1);
  });
});

describe("problems", () => {
  const FAILED = /Failed to load resource/;

  check("a busy server: the page counts down and tries again", {}, async ({ page, mock, expected }) => {
    expected.push(FAILED);
    // Long enough to be seen counting on a busy machine.
    mock.behaviour.error = { status: 429, message: "the queue is full", headers: { "retry-after": "30" } };
    await send(page, "story");
    const last = answer(page);
    await last.getByText("The server is busy.").waitFor();
    await last.getByText("the queue is full").waitFor();
    assert.equal(await last.getByRole("button", { name: /Try again in [1-9]\d? s/ }).isDisabled(), true);
    delete mock.behaviour.error;
    await last.getByRole("button", { name: "Try again", exact: true }).click();
    await finished(page);
    assert.equal(await page.locator("article").count(), 2);
    assert.equal(await page.getByRole("group", { name: "Versions" }).count(), 0);
  });

  check("a key is asked for and kept", {}, async ({ page, mock, expected }) => {
    expected.push(FAILED);
    await page.getByRole("combobox", { name: "Model" }).waitFor();
    mock.behaviour.key = "secret";
    await send(page, "story");
    await answer(page).getByText("The server asks for an API key.").waitFor();
    await page.getByLabel("API key").fill("secret");
    await page.keyboard.press("Enter");
    await finished(page);
    assert.match(await answer(page).innerText(), /A fox kept/);
    await page.reload();
    await page.getByRole("combobox", { name: "Model" }).waitFor();
    mock.behaviour.key = "another";
    await page.getByRole("button", { name: "New conversation" }).click();
    await page.reload();
    await main(page).getByLabel("API key").fill("another");
    await page.keyboard.press("Enter");
    await page.getByRole("combobox", { name: "Model" }).waitFor();
  });

  check("a server that is gone, and comes back", {}, async ({ page, context, expected }) => {
    expected.push(FAILED);
    await context.setOffline(true);
    await send(page, "story");
    await answer(page).getByText("The server cannot be reached.").waitFor();
    await context.setOffline(false);
    await answer(page).getByRole("button", { name: "Try again" }).click();
    await finished(page);
    assert.equal(await page.locator("article").count(), 2);
  });

  check("an answer that breaks off keeps its text", {}, async ({ page, mock }) => {
    mock.behaviour.cut = 12;
    await send(page, "story");
    await answer(page).getByText("The connection closed before the answer was complete.").waitFor();
    assert.match(await answer(page).locator(".markdown").innerText(), /^A fox kept/);
    delete mock.behaviour.cut;
    mock.behaviour.fail = 12;
    await answer(page).getByRole("button", { name: "Try again" }).click();
    await answer(page).getByText("the device failed: a kernel got stuck").waitFor();
    assert.match(await answer(page).locator(".markdown").innerText(), /^A fox kept/);
  });

  check("a refused request shows the server's message", {}, async ({ page, mock, expected }) => {
    expected.push(FAILED);
    mock.behaviour.error = { status: 400, message: "the prompt has 9000 tokens, the context 8192" };
    await send(page, "story");
    await answer(page).getByText("The server refused the request (status 400).").waitFor();
    await answer(page).getByText("the prompt has 9000 tokens, the context 8192").waitFor();
  });
});

describe("appearance", () => {
  const background = (page) => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
  const luminance = (color) => color.match(/\d+/g).slice(0, 3).reduce((sum, x) => sum + Number(x), 0) / 3;

  check("follows the system's dark theme, or the reader's choice", { colorScheme: "dark" }, async ({ page }) => {
    assert.ok(luminance(await background(page)) < 60);
    await page.getByRole("button", { name: "Theme: like the system" }).click();
    assert.ok(luminance(await background(page)) > 200);
    await page.reload();
    await page.getByRole("button", { name: "Theme: light" }).waitFor();
    assert.ok(luminance(await background(page)) > 200);
  });

  const phone = { viewport: { width: 360, height: 640 }, isMobile: true, hasTouch: true };
  check("fits a phone", phone, async ({ page }) => {
    const fits = () => page.evaluate(() => document.documentElement.scrollWidth <= 360 && document.querySelector("main").scrollWidth <= 360);
    await page.getByRole("list", { name: "Suggestions" }).waitFor();
    assert.ok(await fits());
    await send(page, "Tell me a story about a fox.");
    await finished(page);
    assert.ok(await fits());
    const scrolled = await answer(page).locator("pre").evaluate((pre) => ((pre.scrollLeft = 40), pre.scrollLeft));
    assert.equal(scrolled, 40, "long lines of code must scroll");
    await page.getByRole("button", { name: "Show conversations" }).tap();
    await page.getByRole("link", { name: "Tell me a story" }).waitFor();
    await until(() => page.evaluate(() => document.activeElement.getAttribute("aria-label") === "Hide conversations"));
    await page.getByRole("button", { name: "New conversation" }).first().tap();
    await until(async () => !(await page.getByRole("navigation").isVisible()));
    assert.equal(await page.locator("article").count(), 0);
    assert.ok(await fits());
    await page.goto(new URL("engine", page.url()).href);
    await page.getByRole("heading", { name: "Page pools" }).waitFor();
    assert.ok(await fits());
  });
});

describe("keyboard and screen readers", () => {
  check("everything works without a mouse", {}, async ({ page, mock }) => {
    const { keyboard } = page;
    const focused = () => page.evaluate(() => document.activeElement.getAttribute("aria-label") ?? document.activeElement.textContent);
    await until(async () => (await focused()) === "Message");
    const { promise, open } = gate();
    mock.behaviour.halt = { after: 12, until: promise };
    await keyboard.type("first line");
    await keyboard.press("Shift+Enter");
    await keyboard.type("second line");
    await keyboard.press("Enter");
    await answer(page).getByText("A fox").waitFor();
    assert.equal(mock.requests[0].messages[0].content, "first line\nsecond line");
    await keyboard.press("Escape");
    await finished(page);
    open();

    await keyboard.press("ArrowUp");
    await until(async () => (await focused()) === "Edit message");
    await keyboard.press("Escape");
    await until(async () => (await focused()) === "Message");
    await keyboard.press("Alt+KeyR");
    await main(page).getByText("See the map").waitFor();
    await finished(page);

    await page.locator("article").first().evaluate((e) => e.closest("main").focus());
    await keyboard.press("?");
    await page.getByRole("dialog", { name: "Keyboard shortcuts" }).waitFor();
    await keyboard.press("Escape");
    await until(async () => (await page.getByRole("dialog").count()) === 0);
    await keyboard.press("/");
    await until(async () => (await focused()) === "Message");
    await keyboard.press("Control+k");
    await until(async () => (await focused()) === "Search conversations");
    await keyboard.press("Control+b");
    await until(async () => (await focused()) === "Show conversations");
    assert.equal(await page.getByRole("navigation").isVisible(), false);
    await keyboard.press("Enter");
    await until(async () => (await focused()) === "Hide conversations");
    await keyboard.press("Control+,");
    await page.getByRole("dialog", { name: "Settings" }).waitFor();
    await keyboard.press("Escape");
    await keyboard.press("Control+Shift+O");
    await until(async () => (await page.locator("article").count()) === 0);

    // The first stop of the page leads to the message field.
    await page.reload();
    await field(page).waitFor();
    await page.getByRole("link", { name: "Welte" }).focus();
    await keyboard.press("Shift+Tab");
    assert.equal((await focused()).trim(), "Go to the message field");
    await keyboard.press("Enter");
    await until(async () => (await focused()) === "Message");
  });

  check("the focus follows the switch between versions", {}, async ({ page, mock }) => {
    mock.behaviour.answer = "short";
    await send(page, "one");
    await finished(page);
    for (let i = 0; i < 2; i += 1) {
      await page.keyboard.press("Alt+KeyR");
      await until(() => mock.requests.length === i + 2);
      await finished(page);
    }
    const group = answer(page).getByRole("group", { name: "Versions" });
    await group.getByRole("button", { name: "Previous version" }).focus();
    await page.keyboard.press("Enter");
    const focused = () => page.evaluate(() => document.activeElement.getAttribute("aria-label"));
    await until(async () => (await group.innerText()) === "2/3" && (await focused()) === "Previous version");
    await page.keyboard.press("Enter");
    await until(async () => (await group.innerText()) === "1/3" && (await focused()) === "Next version");
  });

  check("the focus moves before another key can arrive", {}, async ({ page, mock }) => {
    mock.behaviour.answer = "short";
    await send(page, "story");
    await finished(page);
    await page.keyboard.press("Alt+KeyR");
    await until(() => mock.requests.length === 2);
    await finished(page);
    /** Presses a button and tells what has the focus and is selected after the page's microtasks, before a frame or a timer. */
    const press = (name) =>
      page.evaluate(async (name) => {
        document.querySelector(`[aria-label="${name}"]:enabled`).click();
        await null;
        const { activeElement: e } = document;
        return [e.getAttribute("aria-label") ?? e.tagName, e.value?.slice(e.selectionStart, e.selectionEnd)];
      }, name);
    assert.deepEqual(await press("Previous version"), ["Next version", ""]);
    assert.deepEqual(await press("Edit message"), ["Edit message", ""]);
    await page.keyboard.press("Escape");
    assert.deepEqual(await press("Rename story"), ["Title", "story"]);
    await page.keyboard.press("Escape");
    await page.getByRole("link", { name: "Welte" }).focus();
    assert.deepEqual(await press("Hide conversations"), ["Show conversations", ""]);
    assert.deepEqual(await press("Settings of this conversation"), ["Close", ""]);
  });

  check("answers are announced, and all controls have names", {}, async ({ page }) => {
    await send(page, "story");
    await finished(page);
    const log = page.getByRole("log");
    await until(async () => (await log.innerText()).endsWith("The answer is complete."));
    const texts = await log.locator("p").allInnerTexts();
    assert.equal(texts[0], "The answer has begun.");
    assert.ok(texts.some((text) => text.startsWith("A fox kept a small shop")), texts.join("|"));
    assert.ok(texts.includes("item, price; honey, 4; candles, 2"), texts.join("|"));
    assert.ok(texts.includes("Code block."), texts.join("|"));
    const nameless = await page.locator("button, input:not([hidden]), textarea, select, a").evaluateAll((controls) =>
      controls
        .filter((e) => !(e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length))
        .map((e) => e.outerHTML),
    );
    assert.deepEqual(nameless, []);
    assert.equal(await page.getByRole("article", { name: "You" }).count(), 1);
    assert.equal(await page.getByRole("article", { name: MODELS[0] }).count(), 1);
    assert.equal(await page.getByRole("heading", { level: 1 }).innerText(), "story");
  });
});

describe("the engine page", () => {
  check("shows the engine at work while an answer streams", {}, async ({ page, mock }) => {
    const { promise, open } = gate();
    mock.behaviour.hold = promise;
    await send(page, "story");
    await answer(page).getByText("reading the prompt").waitFor();
    await page.getByRole("link", { name: "Engine" }).click();
    assert.equal(new URL(page.url()).pathname, "/engine");
    for (const name of ["Running batch", "Page pools", "Prefix tree", "Memory plan", "Table"]) {
      await page.getByRole("heading", { name, exact: true }).waitFor();
    }
    assert.equal(await page.locator("table.batch tbody tr").count(), 8);
    await page.getByRole("img", { name: /^Map of 1,024 pages: \d+ owned, \d+ shared, \d+ cached, \d+ free$/ }).waitFor();
    await page.getByRole("img", { name: "Roll of the decode pass: 219 commands in 7 lanes" }).waitFor();
    const figures = page.getByRole("region", { name: "Figures" });
    await figures.getByText("by position: 87 %, 70 %, 53 %").waitFor();
    const before = await figures.innerText();
    await until(async () => (await figures.innerText()) !== before);

    await main(page).getByText("layers 0 to 35 (36 times)").waitFor();
    assert.equal(await page.locator("table.commands tbody tr").count(), 10);
    await page.getByLabel("Show equal layers once").uncheck();
    assert.equal(await page.locator("table.commands tbody tr").count(), 219);
    await page.getByRole("button", { name: "prompt", exact: true }).click();
    assert.equal(await page.locator("table.commands tbody tr").count(), 219);

    await page.locator("table.batch tbody tr").first().hover();
    await until(async () => (await page.locator("rect.marked").count()) > 0);

    open();
    await page.getByRole("link", { name: "Chat" }).click();
    await answer(page).getByText("See the map").waitFor();
    await finished(page);
  });

  check("marks the pages of a sequence that begins where the reader points", {}, async ({ page, mock }) => {
    mock.behaviour.idle = true;
    await page.goto(`${mock.url}engine`);
    const row = page.locator("table.batch tbody tr").first();
    await row.hover();
    assert.equal(await page.locator("rect.marked").count(), 0);
    mock.behaviour.idle = false;
    await until(async () => (await page.locator("rect.marked").count()) > 0);
    await page.getByRole("heading", { name: "Engine", exact: true }).hover();
    await until(async () => (await page.locator("rect.marked").count()) === 0);

    mock.behaviour.idle = true;
    await page.locator("table.batch tbody tr.idle:first-child").waitFor();
    await row.focus();
    mock.behaviour.idle = false;
    await until(async () => (await page.locator("rect.marked").count()) > 0);
  });

  check("says when the server is gone", {}, async ({ page, mock, context, expected }) => {
    expected.push(/Failed to load resource/);
    await page.goto(`${mock.url}engine`);
    await page.getByRole("heading", { name: "Running batch" }).waitFor();
    await context.setOffline(true);
    await main(page).getByText("The server cannot be reached.").waitFor();
    await context.setOffline(false);
    await until(async () => (await page.locator(".problem").count()) === 0);
  });

  check("asks for the key", {}, async ({ page, mock, expected }) => {
    expected.push(/Failed to load resource/);
    mock.behaviour.key = "secret";
    await page.goto(`${mock.url}engine`);
    await page.getByLabel("API key").fill("secret");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Running batch" }).waitFor();
  });

  check("a server without engine endpoints still chats", {}, async ({ page, mock, expected }) => {
    expected.push(/Failed to load resource/);
    mock.behaviour.state = false;
    await page.reload();
    await send(page, "story");
    await finished(page);
    assert.match(await answer(page).innerText(), /A fox kept/);
  });
});
