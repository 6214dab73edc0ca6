/* The C interface of Welte, a language model inference engine.
 *
 * Errors. A function that can fail returns a welte_code. After any code but WELTE_OK, welte_last_error() has the text; every
 * thread has its own. Nothing panics or unwinds into the caller: a fault of ours is WELTE_INTERNAL.
 *
 * Options and requests are JSON texts with the fields of the server's APIs (docs/server.md), NULL or "" for none. Unknown
 * fields are refused by name. Responses are JSON texts as well.
 *
 * Memory. Texts are UTF-8 and end with a zero byte. What a function returns through a pointer belongs to the caller, who
 * frees it with the function named there. What the caller passes is read during the call only.
 *
 * Threads. A model may be used by several threads at the same time; it answers as many requests together as its load option
 * "slots" says, and the others wait. A stream or a session belongs to one thread at a time, except for welte_stream_cancel and
 * welte_session_cancel, which any thread may call, signal handlers too. No thread may use a handle that another one frees.
 * A model lives as long as the last of its streams and sessions, whichever is freed first. Callbacks run in the thread that
 * called, and may call every function except those that use or free the handle of the session at work. A process must not
 * fork and go on using a model in the child.
 */

#ifndef WELTE_H
#define WELTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#define WELTE_VERSION_MAJOR 0
#define WELTE_VERSION_MINOR 1

/**
 * How a call ended.
 */
typedef enum {
  /**
   * As asked.
   */
  WELTE_OK = 0,
  /**
   * An argument or an option has a value that cannot be used.
   */
  WELTE_ARGUMENT = 1,
  /**
   * The model cannot be loaded.
   */
  WELTE_MODEL = 2,
  /**
   * The model does not fit into the memory.
   */
  WELTE_MEMORY = 3,
  /**
   * The request cannot be answered as it is.
   */
  WELTE_REQUEST = 4,
  /**
   * Too many requests are waiting.
   */
  WELTE_BUSY = 5,
  /**
   * Cancelled by the caller.
   */
  WELTE_CANCELLED = 6,
  /**
   * A fault of the device or of ours.
   */
  WELTE_INTERNAL = 7,
  /**
   * The stream is over. This is not an error.
   */
  WELTE_END = 8,
} welte_code;

/**
 * A loaded model.
 */
typedef struct welte_model welte_model;

/**
 * A conversation.
 */
typedef struct welte_session welte_session;

/**
 * A response that is streamed.
 */
typedef struct welte_stream welte_stream;

/**
 * Gets the bytes of the weights that are read, and those in all. Anything but 0 ends the load.
 */
typedef int32_t (*welte_progress_fn)(uint64_t done, uint64_t total, void *user);

/**
 * Gets each piece of text as soon as it is final: whole characters. Anything but 0 ends the generation.
 */
typedef int32_t (*welte_text_fn)(const char *text, void *user);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The text of this thread's last error; empty if there was none. It is valid until the thread's next call that fails.
 */
const char *welte_last_error(void);

/**
 * The version, such as "0.1.0". It is static.
 */
const char *welte_version(void);

/**
 * Frees a text that a function returned. NULL is allowed.
 */
void welte_string_free(char *text);

/**
 * Frees tokens that a function returned, with their count. NULL is allowed.
 */
void welte_tokens_free(uint32_t *tokens, size_t count);

/**
 * Frees values that a function returned, with their count. NULL is allowed.
 */
void welte_values_free(float *values, size_t count);

/**
 * Loads a model from a GGUF file or a Hugging Face directory. The options are a JSON object with any of "activations",
 * "cache_host", "cache_positions", "chat_template", "checkpoints", "context", "cpu_experts", "cpus", "device", "embeddings", "ignore_memory",
 * "instructions", "kv_format", "lora", "lora_updates", "max_adapters", "max_rank", "mmproj", "pooling", "prefix_cache", "prefix_cache_bytes", "prompt_rows", "replay", "reranking",
 * "slots", "speculation", "steps" and "threads" (docs/library.md). The progress function may be NULL. Free the model with welte_model_free.
 */
welte_code welte_model_load(const char *source,
                            const char *options,
                            welte_progress_fn progress,
                            void *user,
                            welte_model **model);

/**
 * The memory that a model would take with these options, as JSON, read from its headers. Free it with welte_string_free.
 */
welte_code welte_model_plan(const char *source,
                            const char *options,
                            char **json);

/**
 * Frees a model. NULL is allowed.
 */
void welte_model_free(welte_model *model);

/**
 * Facts about a model, as JSON: its name, device, context, vocabulary, memory and more. Free it with welte_string_free.
 */
welte_code welte_model_info(const welte_model *model,
                            char **json);

/**
 * Continues a text. The options are the other fields of /v1/completions: "max_tokens", "temperature", "seed", "stop", "grammar",
 * "json_schema", "logprobs" and so on. The text function may be NULL. The response is JSON as that of /v1/completions; an answer
 * that the text function ended has the "finish_reason" "cancelled". `response` may be NULL, else free it with welte_string_free.
 */
welte_code welte_generate(const welte_model *model,
                          const char *prompt,
                          const char *options,
                          welte_text_fn on_text,
                          void *user,
                          char **response);

/**
 * As welte_generate, for a prompt of tokens.
 */
welte_code welte_generate_tokens(const welte_model *model,
                                 const uint32_t *tokens,
                                 size_t count,
                                 const char *options,
                                 welte_text_fn on_text,
                                 void *user,
                                 char **response);

/**
 * Answers a conversation. The request is that of /v1/chat/completions: "messages", "tools", "response_format", "logprobs" and so
 * on. The text function may be NULL; it gets the text of the answer only, while the response has the calls of tools, too. It is
 * JSON as that of /v1/chat/completions. `response` may be NULL, else free it with welte_string_free.
 */
welte_code welte_chat(const welte_model *model,
                      const char *request,
                      welte_text_fn on_text,
                      void *user,
                      char **response);

/**
 * The vectors of texts, one after the other. The options are the other fields of /v1/embeddings, such as "dimensions". Free the
 * values with welte_values_free and count * size.
 */
welte_code welte_embed(const welte_model *model,
                       const char *const *texts,
                       size_t count,
                       const char *options,
                       float **values,
                       size_t *size);

/**
 * Sends a request to any endpoint of the server, such as "POST" "/v1/rerank", without a network. The body may be NULL. Free
 * the response with welte_string_free.
 */
welte_code welte_request(const welte_model *model,
                         const char *method,
                         const char *path,
                         const char *body,
                         char **response);

/**
 * Begins a conversation, with a system message unless that is NULL. The options are the other fields of /v1/chat/completions, for
 * every answer. Free the session with welte_session_free.
 */
welte_code welte_session_new(const welte_model *model,
                             const char *system,
                             const char *options,
                             welte_session **session);

/**
 * Says something. The text function may be NULL. `answer` may be NULL, else free it with welte_string_free. After an error the
 * conversation is as before.
 */
welte_code welte_session_say(const welte_session *session,
                             const char *said,
                             welte_text_fn on_text,
                             void *user,
                             char **answer);

/**
 * The messages so far, as JSON. Free it with welte_string_free.
 */
welte_code welte_session_messages(const welte_session *session, char **json);

/**
 * Ends the answer at work, or the next one, with WELTE_CANCELLED. Any thread may call it.
 */
void welte_session_cancel(const welte_session *session);

/**
 * Frees a session. NULL is allowed.
 */
void welte_session_free(welte_session *session);

/**
 * Sends a request whose response is streamed: "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages" or another
 * endpoint that streams. Free the stream with welte_stream_free.
 */
welte_code welte_stream_open(const welte_model *model,
                             const char *path,
                             const char *body,
                             welte_stream **stream);

/**
 * Waits for the next event, which is JSON. WELTE_END: there are no more. Free the event with welte_string_free.
 */
welte_code welte_stream_next(const welte_stream *stream,
                             char **event);

/**
 * Makes welte_stream_next return WELTE_CANCELLED, now and later. Any thread may call it.
 */
void welte_stream_cancel(const welte_stream *stream);

/**
 * Ends a request and frees its stream. NULL is allowed.
 */
void welte_stream_free(welte_stream *stream);

/**
 * Encodes a text. `special`: add the tokens that the model expects around a text, and recognise control tokens. Free the tokens with
 * welte_tokens_free and their count.
 */
welte_code welte_tokenize(const welte_model *model,
                          const char *said,
                          bool special,
                          uint32_t **tokens,
                          size_t *count);

/**
 * The text of tokens. Free it with welte_string_free.
 */
welte_code welte_detokenize(const welte_model *model,
                            const uint32_t *tokens,
                            size_t count,
                            char **said);

/**
 * The text that the model's chat template makes of messages, a JSON array. Free it with welte_string_free.
 */
welte_code welte_render_chat(const welte_model *model,
                             const char *messages,
                             char **said);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* WELTE_H */
