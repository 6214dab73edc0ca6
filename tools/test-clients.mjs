// Runs OpenAI's client for JavaScript against a server: node test-clients.mjs URL KEY. NODE_PATH is where npm put the client.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const { default: OpenAI, BadRequestError, NotFoundError } = createRequire(import.meta.url)("openai");
const [url, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const messages = [{ role: "user", content: "Tell me a story about a fox." }];
const ask = { model: "demo", messages, max_tokens: 24, temperature: 0 };

const models = await client.models.list();
assert.deepEqual(models.data.map(({ id }) => id), ["demo"]);

const whole = await client.chat.completions.create(ask);
const text = whole.choices[0].message.content;
assert.equal(whole.choices[0].finish_reason, "length");
assert.ok(text.length > 20, text);

let streamed = "";
let usage;
for await (const chunk of await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } })) {
  streamed += chunk.choices[0]?.delta.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(streamed, text);
assert.equal(usage.completion_tokens, 24);

// Leaving in the middle of a stream ends the request.
const left = await client.chat.completions.create({ ...ask, max_tokens: 500, stream: true });
for await (const _ of left) break;

const completion = await client.completions.create({ model: "demo", prompt: ["Once", "The fox"], max_tokens: 4 });
assert.equal(completion.choices.length, 2);

await assert.rejects(client.chat.completions.create({ ...ask, colour: 1 }), (error) => {
  return error instanceof BadRequestError && error.param === "colour";
});
await assert.rejects(client.chat.completions.create({ ...ask, model: "other" }), NotFoundError);
