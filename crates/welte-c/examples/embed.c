/* How similar texts are: embed MODEL TEXT TEXT */
#include <stdio.h>
#include <welte.h>

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: embed MODEL TEXT TEXT\n");
        return 2;
    }
    welte_model *model = NULL;
    float *values = NULL;
    size_t size = 0;
    if (welte_model_load(argv[1], "{\"context\": 512}", NULL, NULL, &model) != WELTE_OK ||
        welte_embed(model, (const char *const *)(argv + 2), 2, NULL, &values, &size) != WELTE_OK) {
        fprintf(stderr, "%s\n", welte_last_error());
        return 1;
    }
    double similarity = 0;
    for (size_t i = 0; i < size; i++)
        similarity += (double)values[i] * values[size + i];
    printf("%zu values each, similarity %.4f\n", size, similarity);
    welte_values_free(values, 2 * size);
    welte_model_free(model);
    return 0;
}
