// Takes the pictures of the documentation: `node test/pictures.mjs FOLDER`.
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { chromium } from "playwright-core";
import { startMock } from "./mock.mjs";

const folder = process.argv[2];
if (!folder) throw new Error("name the folder for the pictures");
await mkdir(folder, { recursive: true });

const QUESTION = "How do I read a file line by line in Rust without allocating a string for each line?";
const ANSWER = `Reuse **one buffer**: \`read_line\` appends to a \`String\` that you clear for each line.

\`\`\`rust
use std::fs::File;
use std::io::{self, BufRead, BufReader};

fn main() -> io::Result<()> {
    let mut reader = BufReader::new(File::open("notes.txt")?);
    let mut line = String::new();
    // \`read_line\` returns 0 at the end of the file.
    while reader.read_line(&mut line)? > 0 {
        println!("{}", line.trim_end());
        line.clear();
    }
    Ok(())
}
\`\`\`

| method | allocates | line break |
|---|---|---|
| \`lines()\` | once per line | removed |
| \`read_line()\` | only to grow | kept |

Use \`read_until(b'\\n', …)\` if the file may contain invalid UTF-8.
`;

const mock = await startMock();
Object.assign(mock.behaviour, { pause: 3, answer: ANSWER, thinking: "The buffer can be reused with read_line." });
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });

async function open(options, path = "") {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  await page.goto(mock.url + path);
  return page;
}

async function ask(page, text) {
  await page.locator("#message").fill(text);
  await page.getByRole("button", { name: "Send", exact: true }).click();
  await page.getByRole("button", { name: "Send", exact: true }).waitFor();
  await page.locator("article.assistant footer").last().waitFor();
}

/** Fills the list of conversations and asks the question of the pictures. */
async function converse(page) {
  for (const text of ["Explain rotary position embeddings", "Plan three days in Freiburg", "Summarise notes.txt"]) {
    await ask(page, text);
    await page.keyboard.press("Control+Shift+O");
  }
  await ask(page, QUESTION);
  await page.waitForTimeout(300);
}

const desktop = { viewport: { width: 1200, height: 920 } };
for (const colorScheme of ["light", "dark"]) {
  const page = await open({ ...desktop, colorScheme });
  await converse(page);
  await page.screenshot({ path: join(folder, `page-chat-${colorScheme}.png`) });
}

const phone = await open({ viewport: { width: 360, height: 720 }, deviceScaleFactor: 2, isMobile: true, hasTouch: true });
await ask(phone, QUESTION);
await phone.waitForTimeout(300);
await phone.screenshot({ path: join(folder, "page-phone.png") });

const engine = await open({ viewport: { width: 1200, height: 1200 } }, "engine");
await engine.getByRole("heading", { name: "Table", exact: true }).waitFor();
// A few seconds of samples for the lines.
await engine.waitForTimeout(8000);
const height = await engine.locator(".engine-page").evaluate((e) => e.scrollHeight);
await engine.setViewportSize({ width: 1200, height });
await engine.waitForTimeout(300);
await engine.screenshot({ path: join(folder, "page-engine.png") });

await browser.close();
await mock.close();
