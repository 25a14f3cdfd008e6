// Prints the similarity of texts to the first one.
//
//   embed MODEL TEXT...

#include <math.h>

#include "common.h"

static bool show_progress(size_t done, size_t total, void *user) {
    (void)user;
    fprintf(stderr, "%zu of %zu\n", done, total);
    return true;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: embed MODEL TEXT...\n");
        return 2;
    }
    TercetError *error = NULL;
    TercetDevice *device = open_device();
    TercetEmbedder *embedder = NULL;
    check(tercet_embedder_open(device, argv[1], NULL, &embedder, &error), error);
    size_t count = (size_t)argc - 2;
    TercetEmbedOptions options = {.struct_size = sizeof options, .truncate = 1};
    TercetTensor *embeddings = NULL;
    check(tercet_embed(embedder, (const char *const *)argv + 2, count, &options, show_progress, NULL, &embeddings,
                       &error), error);
    TercetTensorView view;
    check(tercet_tensor_read(embeddings, &view, &error), error);
    const float *rows = view.data;
    size_t width = tercet_embedder_width(embedder);
    if (view.rank != 2 || view.shape[0] != count || view.shape[1] != width) {
        fprintf(stderr, "wrong shape\n");
        return 1;
    }
    for (size_t row = 0; row < count; ++row) {
        double product = 0.0, norm_first = 0.0, norm = 0.0;
        for (size_t at = 0; at < width; ++at) {
            product += rows[at] * rows[row * width + at];
            norm_first += rows[at] * rows[at];
            norm += rows[row * width + at] * rows[row * width + at];
        }
        printf("%.4f  %s\n", product / sqrt(norm_first * norm), argv[row + 2]);
    }
    tercet_free(embeddings);
    tercet_free(embedder);
    tercet_free(device);
    return finish();
}
