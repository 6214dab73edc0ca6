// A chat from JavaScript, streamed, through koffi: node chat.cjs LIBRARY MODEL PROMPT
"use strict";
const koffi = require("koffi");

const [library, path, prompt] = process.argv.slice(2);
if (!prompt) {
    console.error("usage: node chat.cjs LIBRARY MODEL PROMPT");
    process.exit(2);
}
const welte = koffi.load(library);
const [OK, END] = [0, 8];
koffi.opaque("welte_model");
koffi.opaque("welte_stream");
const free = welte.func("void welte_string_free(void *text)");
// Its text becomes a string of JavaScript, and the original is freed.
koffi.disposable("welte_text", "str", free);
const error = welte.func("const char *welte_last_error()");
const load = welte.func(
    "int welte_model_load(const char *source, const char *options, void *progress, void *user, _Out_ welte_model **model)",
);
const freeModel = welte.func("void welte_model_free(welte_model *model)");
const open = welte.func(
    "int welte_stream_open(welte_model *model, const char *path, const char *body, _Out_ welte_stream **stream)",
);
const next = welte.func("int welte_stream_next(welte_stream *stream, _Out_ welte_text *event)");
const freeStream = welte.func("void welte_stream_free(welte_stream *stream)");

function check(what, code) {
    if (code !== OK) throw new Error(`${what}: ${error()}`);
}

const model = [null];
check("load", load(path, JSON.stringify({ context: 512 }), null, null, model));
const stream = [null];
const messages = [{ role: "user", content: prompt }];
const body = JSON.stringify({ messages, max_tokens: 40, temperature: 0 });
check("stream", open(model[0], "/v1/chat/completions", body, stream));
for (;;) {
    const event = [null];
    const code = next(stream[0], event);
    if (code === END) break;
    check("next", code);
    for (const choice of JSON.parse(event[0]).choices ?? []) {
        process.stdout.write(choice.delta?.content ?? "");
    }
}
process.stdout.write("\n");
freeStream(stream[0]);
freeModel(model[0]);
