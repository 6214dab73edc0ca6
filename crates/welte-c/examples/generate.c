/* Continues a text: generate MODEL PROMPT */
#include <stdio.h>
#include <welte.h>

static int32_t print(const char *text, void *user) {
    (void)user;
    fputs(text, stdout);
    fflush(stdout);
    return 0;
}

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, welte_last_error());
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: generate MODEL PROMPT\n");
        return 2;
    }
    char *plan = NULL;
    if (welte_model_plan(argv[1], "{\"context\": 512}", &plan) != WELTE_OK)
        return failed("plan");
    fprintf(stderr, "plan: %s\n", plan);
    welte_string_free(plan);

    welte_model *model = NULL;
    if (welte_model_load(argv[1], "{\"context\": 512}", NULL, NULL, &model) != WELTE_OK)
        return failed("load");

    uint32_t *tokens = NULL;
    size_t count = 0;
    if (welte_tokenize(model, argv[2], true, &tokens, &count) != WELTE_OK)
        return failed("tokenize");
    fprintf(stderr, "the prompt has %zu tokens\n", count);

    fputs(argv[2], stdout);
    char *response = NULL;
    const char *options = "{\"max_tokens\": 60, \"temperature\": 0}";
    if (welte_generate_tokens(model, tokens, count, options, print, NULL, &response) != WELTE_OK)
        return failed("generate");
    puts("");
    welte_string_free(response);
    welte_tokens_free(tokens, count);

    /* Mistakes have a code and a text. */
    welte_code code = welte_generate(model, "A", "{\"temprature\": 1}", NULL, NULL, NULL);
    if (code != WELTE_REQUEST)
        return failed("a misspelt option was taken");
    fprintf(stderr, "as expected: %s\n", welte_last_error());
    welte_model_free(model);
    return 0;
}
