/* A conversation of two turns, an answer with a schema, and a stream that is cancelled: chat MODEL */
#include <stdio.h>
#include <string.h>
#include <welte.h>

static int32_t print(const char *text, void *user) {
    *(size_t *)user += strlen(text);
    fputs(text, stdout);
    fflush(stdout);
    return 0;
}

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, welte_last_error());
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: chat MODEL\n");
        return 2;
    }
    welte_model *model = NULL;
    if (welte_model_load(argv[1], "{\"context\": 512}", NULL, NULL, &model) != WELTE_OK)
        return failed("load");

    welte_session *session = NULL;
    const char *options = "{\"max_tokens\": 40, \"temperature\": 0}";
    if (welte_session_new(model, NULL, options, &session) != WELTE_OK)
        return failed("session");
    const char *turns[] = {"Tell me a story about a fox.", "What happened then?"};
    for (int i = 0; i < 2; i++) {
        size_t bytes = 0;
        printf("> %s\n", turns[i]);
        if (welte_session_say(session, turns[i], print, &bytes, NULL) != WELTE_OK)
            return failed("say");
        printf("\n(%zu bytes)\n", bytes);
    }
    welte_session_free(session);

    char *response = NULL;
    const char *request =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"How old is the fox?\"}], \"max_tokens\": 40,"
        " \"logprobs\": true, \"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"fox\","
        " \"schema\": {\"type\": \"object\", \"properties\": {\"age\": {\"type\": \"integer\"}},"
        " \"required\": [\"age\"]}}}}";
    if (welte_chat(model, request, NULL, NULL, &response) != WELTE_OK)
        return failed("chat");
    puts(response);
    welte_string_free(response);

    welte_stream *stream = NULL;
    request = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}";
    if (welte_stream_open(model, "/v1/chat/completions", request, &stream) != WELTE_OK)
        return failed("stream");
    /* The stream goes on without its model's handle. */
    welte_model_free(model);
    char *event = NULL;
    if (welte_stream_next(stream, &event) != WELTE_OK)
        return failed("next");
    puts(event);
    welte_string_free(event);
    welte_stream_cancel(stream);
    if (welte_stream_next(stream, &event) != WELTE_CANCELLED)
        return failed("a cancelled stream went on");
    welte_stream_free(stream);
    return 0;
}
