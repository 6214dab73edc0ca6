// The AI SDK with its providers for Anthropic and OpenAI: node test-ai-sdk.mjs URL KEY MODEL. NODE_PATH is where npm put them.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const require = createRequire(import.meta.url);
const { streamText, generateText, tool, stepCountIs } = require("ai");
const { createAnthropic } = require("@ai-sdk/anthropic");
const { createOpenAI } = require("@ai-sdk/openai");
const { z } = require("zod");
const [url, apiKey, name] = process.argv.slice(2);

const anthropic = createAnthropic({ baseURL: `${url}/v1`, apiKey });
const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey });
for (const [kind, model] of [["anthropic", anthropic(name)], ["chat", openai.chat(name)], ["responses", openai.responses(name)]]) {
  for (const streamed of [false, true]) {
    const asked = [];
    const weather = tool({
      description: "The weather of a city.",
      inputSchema: z.object({ city: z.string() }),
      execute: async ({ city }) => (asked.push(city), "sunny"),
    });
    const errors = [];
    const ask = {
      model, prompt: "What is the weather in Paris? Use the tool.", tools: { get_weather: weather },
      stopWhen: stepCountIs(3), maxOutputTokens: 200, maxRetries: 0, onError: ({ error }) => errors.push(error),
    };
    const result = streamed ? streamText(ask) : await generateText(ask);
    const text = await result.text;
    assert.deepEqual(errors, [], kind);
    assert.deepEqual(asked, ["Paris"], `${kind}, streamed: ${streamed}`);
    assert.ok(text.length > 0, kind);
  }
}
