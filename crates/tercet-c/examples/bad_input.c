// Passes bad input to every function: each call is an error with a status and a message, and nothing crashes.

#include <stdint.h>
#include <string.h>

#include "common.h"

static int failures = 0;

#define EXPECT(wanted, call)                                                                        \
    do {                                                                                            \
        TercetError *error = NULL;                                                                  \
        TercetStatus found = (call);                                                                \
        const char *message = tercet_error_message(error);                                          \
        if (found != (wanted) || (found != TERCET_STATUS_OK && strlen(message) < 8) ||              \
            (found != TERCET_STATUS_OK && tercet_error_status(error) != found)) {                   \
            fprintf(stderr, "line %d: %s (%s), expected %s\n", __LINE__, tercet_status_name(found), \
                    message, tercet_status_name(wanted));                                           \
            ++failures;                                                                             \
        }                                                                                           \
        tercet_free(error);                                                                         \
    } while (0)

static const char *GRAPH =
    "graph {\n"
    "  %x = input{name=\"x\", ty=f32[rows, 2]}()\n"
    "  %y = unary{f=relu}(%x)\n"
    "  return %y as \"y\"\n"
    "}\n";

static void count_release(void *user) {
    ++*(int *)user;
}

static void tensors(void) {
    TercetTensor *tensor = NULL;
    float data[4] = {1, 2, 3, 4};
    size_t shape[2] = {2, 2};
    size_t huge[2] = {SIZE_MAX, SIZE_MAX};
    EXPECT(TERCET_STATUS_NULL, tercet_tensor_new(TERCET_DTYPE_F32, shape, 2, NULL, 16, &tensor, &error));
    EXPECT(TERCET_STATUS_NULL, tercet_tensor_new(TERCET_DTYPE_F32, NULL, 2, data, 16, &tensor, &error));
    EXPECT(TERCET_STATUS_NULL, tercet_tensor_new(TERCET_DTYPE_F32, shape, 2, data, 16, NULL, &error));
    EXPECT(TERCET_STATUS_ARGUMENT, tercet_tensor_new(0, shape, 2, data, 16, &tensor, &error));
    EXPECT(TERCET_STATUS_ARGUMENT, tercet_tensor_new(99, shape, 2, data, 16, &tensor, &error));
    EXPECT(TERCET_STATUS_ARGUMENT, tercet_tensor_new(INT32_MIN, shape, 2, data, 16, &tensor, &error));
    EXPECT(TERCET_STATUS_ARGUMENT, tercet_tensor_new(TERCET_DTYPE_F32, shape, SIZE_MAX, data, 16, &tensor, &error));
    EXPECT(TERCET_STATUS_TYPE, tercet_tensor_new(TERCET_DTYPE_F32, shape, 2, data, 15, &tensor, &error));
    EXPECT(TERCET_STATUS_TYPE, tercet_tensor_new(TERCET_DTYPE_F32, huge, 2, data, 16, &tensor, &error));
    EXPECT(TERCET_STATUS_TYPE, tercet_tensor_new(TERCET_DTYPE_F32, huge, 1, data, SIZE_MAX, &tensor, &error));
    if (tensor != NULL) {
        ++failures;
    }
    // A failed call does not release the memory.
    int released = 0;
    EXPECT(TERCET_STATUS_TYPE, tercet_tensor_borrow(TERCET_DTYPE_F32, shape, 2, data, 15, count_release, &released,
                                                    &tensor, &error));
    if (released != 0) {
        fprintf(stderr, "released after a failed call\n");
        ++failures;
    }
    // Elements that are not aligned are copied.
    char bytes[17];
    memcpy(bytes + 1, data, 16);
    EXPECT(TERCET_STATUS_OK, tercet_tensor_borrow(TERCET_DTYPE_F32, shape, 2, bytes + 1, 16, count_release, &released,
                                                  &tensor, &error));
    TercetTensorView view;
    EXPECT(TERCET_STATUS_OK, tercet_tensor_read(tensor, &view, &error));
    if (((const float *)view.data)[3] != 4.0f) {
        ++failures;
    }
    EXPECT(TERCET_STATUS_NULL, tercet_tensor_read(tensor, NULL, &error));
    EXPECT(TERCET_STATUS_OK, tercet_free(tensor));
    if (released != 1) {
        fprintf(stderr, "released %d times\n", released);
        ++failures;
    }
    // Freed twice, used after it was freed, and pointers that are no handles.
    if (tercet_free(tensor) != TERCET_STATUS_HANDLE || tercet_free(data) != TERCET_STATUS_HANDLE ||
        tercet_free(NULL) != TERCET_STATUS_OK || tercet_free((void *)UINTPTR_MAX) != TERCET_STATUS_HANDLE) {
        ++failures;
    }
    EXPECT(TERCET_STATUS_HANDLE, tercet_tensor_read(tensor, &view, &error));
    EXPECT(TERCET_STATUS_NULL, tercet_tensor_read(NULL, &view, &error));
    EXPECT(TERCET_STATUS_HANDLE, tercet_tensor_read((const TercetTensor *)data, &view, &error));
}

static void sessions(TercetDevice *device) {
    TercetSession *session = NULL;
    TercetBound bound = {"rows", 4};
    size_t length = strlen(GRAPH);
    EXPECT(TERCET_STATUS_NULL, tercet_session_from_text(NULL, GRAPH, length, &bound, 1, &session, &error));
    EXPECT(TERCET_STATUS_NULL, tercet_session_from_text(device, NULL, length, &bound, 1, &session, &error));
    EXPECT(TERCET_STATUS_NULL, tercet_session_from_text(device, GRAPH, length, NULL, 1, &session, &error));
    EXPECT(TERCET_STATUS_ARGUMENT,
           tercet_session_from_text(device, GRAPH, length, &bound, SIZE_MAX, &session, &error));
    EXPECT(TERCET_STATUS_ARGUMENT, tercet_session_from_text(device, GRAPH, SIZE_MAX, &bound, 1, &session, &error));
    EXPECT(TERCET_STATUS_GRAPH, tercet_session_from_text(device, GRAPH, length - 4, &bound, 1, &session, &error));
    EXPECT(TERCET_STATUS_GRAPH, tercet_session_from_text(device, NULL, 0, NULL, 0, &session, &error));
    EXPECT(TERCET_STATUS_UTF8, tercet_session_from_text(device, "graph \xff", 7, NULL, 0, &session, &error));
    EXPECT(TERCET_STATUS_COMPILE, tercet_session_from_text(device, GRAPH, length, NULL, 0, &session, &error));
    EXPECT(TERCET_STATUS_MODEL, tercet_session_from_onnx(device, "no model", 8, NULL, 0, &session, &error));
    EXPECT(TERCET_STATUS_NOT_FOUND, tercet_session_open(device, "no/such.onnx", NULL, 0, &session, &error));
    EXPECT(TERCET_STATUS_UTF8, tercet_session_open(device, "\xc3(.onnx", NULL, 0, &session, &error));
    EXPECT(TERCET_STATUS_ARGUMENT, tercet_session_open(device, ".", NULL, 0, &session, &error));
    EXPECT(TERCET_STATUS_OK, tercet_session_from_text(device, GRAPH, length, &bound, 1, &session, &error));

    const TercetPort *ports = NULL;
    size_t count = 0;
    EXPECT(TERCET_STATUS_ARGUMENT, tercet_session_ports(session, 4, &ports, &count, &error));
    EXPECT(TERCET_STATUS_ARGUMENT, tercet_session_ports(session, -1, &ports, &count, &error));
    EXPECT(TERCET_STATUS_HANDLE,
           tercet_session_ports((const TercetSession *)device, TERCET_ROLE_INPUT, &ports, &count, &error));

    float data[10] = {0};
    int32_t integers[2] = {0};
    size_t shape[2] = {1, 2}, wrong[2] = {1, 3}, large[2] = {5, 2};
    TercetTensor *x = NULL, *i = NULL, *w = NULL, *l = NULL, *y = NULL;
    EXPECT(TERCET_STATUS_OK, tercet_tensor_new(TERCET_DTYPE_F32, shape, 2, data, 8, &x, &error));
    EXPECT(TERCET_STATUS_OK, tercet_tensor_new(TERCET_DTYPE_I32, shape, 2, integers, 8, &i, &error));
    EXPECT(TERCET_STATUS_OK, tercet_tensor_new(TERCET_DTYPE_F32, wrong, 2, data, 12, &w, &error));
    EXPECT(TERCET_STATUS_OK, tercet_tensor_new(TERCET_DTYPE_F32, large, 2, data, 40, &l, &error));
    TercetNamedTensor good = {"x", x}, dtype = {"x", i}, size = {"x", w}, above = {"x", l};
    TercetNamedTensor unknown = {"z", x}, no_name = {NULL, x}, no_tensor = {"x", NULL}, bad_name = {"\xff", x};
    TercetNamedTensor twice[2] = {good, good}, stale = {"x", (const TercetTensor *)session};
    const char *output = "y", *other = "z", *bad_output = "\xff";
    EXPECT(TERCET_STATUS_TYPE, tercet_session_run(session, &dtype, 1, &output, 1, &y, &error));
    EXPECT(TERCET_STATUS_TYPE, tercet_session_run(session, &size, 1, &output, 1, &y, &error));
    EXPECT(TERCET_STATUS_TYPE, tercet_session_run(session, &above, 1, &output, 1, &y, &error));
    EXPECT(TERCET_STATUS_NAME, tercet_session_run(session, &unknown, 1, &output, 1, &y, &error));
    EXPECT(TERCET_STATUS_NAME, tercet_session_run(session, NULL, 0, &output, 1, &y, &error));
    EXPECT(TERCET_STATUS_NAME, tercet_session_run(session, twice, 2, &output, 1, &y, &error));
    EXPECT(TERCET_STATUS_NAME, tercet_session_run(session, &good, 1, &other, 1, &y, &error));
    EXPECT(TERCET_STATUS_NULL, tercet_session_run(session, &no_name, 1, &output, 1, &y, &error));
    EXPECT(TERCET_STATUS_NULL, tercet_session_run(session, &no_tensor, 1, &output, 1, &y, &error));
    EXPECT(TERCET_STATUS_NULL, tercet_session_run(session, &good, 1, &output, 1, NULL, &error));
    EXPECT(TERCET_STATUS_NULL, tercet_session_run(session, NULL, 1, &output, 1, &y, &error));
    EXPECT(TERCET_STATUS_UTF8, tercet_session_run(session, &bad_name, 1, &output, 1, &y, &error));
    EXPECT(TERCET_STATUS_UTF8, tercet_session_run(session, &good, 1, &bad_output, 1, &y, &error));
    EXPECT(TERCET_STATUS_HANDLE, tercet_session_run(session, &stale, 1, &output, 1, &y, &error));
    EXPECT(TERCET_STATUS_ARGUMENT, tercet_session_run(session, &good, SIZE_MAX, &output, 1, &y, &error));
    EXPECT(TERCET_STATUS_ARGUMENT, tercet_session_run(session, &good, 1, &output, SIZE_MAX, &y, &error));
    EXPECT(TERCET_STATUS_ARGUMENT, tercet_session_run(session, &good, 1, NULL, 0, NULL, &error));
    EXPECT(TERCET_STATUS_NAME, tercet_session_set_param(session, "w", x, &error));
    EXPECT(TERCET_STATUS_NAME, tercet_session_read_state(session, "s", &y, &error));
    if (y != NULL) {
        ++failures;
    }
    // The session works after all errors.
    EXPECT(TERCET_STATUS_OK, tercet_session_run(session, &good, 1, NULL, 1, &y, &error));
    EXPECT(TERCET_STATUS_OK, tercet_free(y));
    EXPECT(TERCET_STATUS_OK, tercet_free(x));
    EXPECT(TERCET_STATUS_HANDLE, tercet_session_run(session, &good, 1, &output, 1, &y, &error));
    tercet_free(i);
    tercet_free(w);
    tercet_free(l);
    tercet_free(session);
    EXPECT(TERCET_STATUS_HANDLE, tercet_session_run(session, NULL, 0, &output, 1, &y, &error));
}

static void models(TercetDevice *device, const char *path) {
    TercetGenerator *generator = NULL;
    TercetEmbedder *embedder = NULL;
    TercetRecognizer *recognizer = NULL;
    EXPECT(TERCET_STATUS_NOT_FOUND, tercet_generator_open(device, "no/such.gguf", NULL, &generator, &error));
    EXPECT(TERCET_STATUS_NOT_FOUND, tercet_embedder_open(device, "no/such", NULL, &embedder, &error));
    EXPECT(TERCET_STATUS_NULL, tercet_generator_open(device, NULL, NULL, &generator, &error));
    EXPECT(TERCET_STATUS_MODEL, tercet_recognizer_open(device, path, &recognizer, &error));
    TercetModelOptions model = {.struct_size = 1};
    EXPECT(TERCET_STATUS_ARGUMENT, tercet_generator_open(device, path, &model, &generator, &error));
    model.struct_size = SIZE_MAX;
    EXPECT(TERCET_STATUS_ARGUMENT, tercet_generator_open(device, path, &model, &generator, &error));
    model.struct_size = sizeof model;
    model.dtype = TERCET_DTYPE_I32;
    EXPECT(TERCET_STATUS_ARGUMENT, tercet_generator_open(device, path, &model, &generator, &error));
    model.dtype = TERCET_DTYPE_NONE;
    model.context = SIZE_MAX;
    EXPECT(TERCET_STATUS_MEMORY, tercet_generator_open(device, path, &model, &generator, &error));
    model.context = 32;
    EXPECT(TERCET_STATUS_OK, tercet_generator_open(device, path, &model, &generator, &error));

    TercetGeneration *generation = NULL;
    TercetGenerateOptions options = {.struct_size = sizeof options, .max_tokens = 2};
    EXPECT(TERCET_STATUS_NULL, tercet_generate(generator, NULL, &options, NULL, NULL, &generation, &error));
    EXPECT(TERCET_STATUS_UTF8, tercet_generate(generator, "a\xff", &options, NULL, NULL, &generation, &error));
    options.temperature = -1.0;
    EXPECT(TERCET_STATUS_ARGUMENT, tercet_generate(generator, "fn", &options, NULL, NULL, &generation, &error));
    options.temperature = 0.0;
    options.stop_count = SIZE_MAX;
    EXPECT(TERCET_STATUS_ARGUMENT, tercet_generate(generator, "fn", &options, NULL, NULL, &generation, &error));
    options.stop_count = 1;
    EXPECT(TERCET_STATUS_NULL, tercet_generate(generator, "fn", &options, NULL, NULL, &generation, &error));
    options.stop_count = 0;
    options.json_schema = "{";
    EXPECT(TERCET_STATUS_ARGUMENT, tercet_generate(generator, "fn", &options, NULL, NULL, &generation, &error));
    options.regex = "a";
    EXPECT(TERCET_STATUS_ARGUMENT, tercet_generate(generator, "fn", &options, NULL, NULL, &generation, &error));
    options.json_schema = NULL;
    options.regex = "(";
    EXPECT(TERCET_STATUS_ARGUMENT, tercet_generate(generator, "fn", &options, NULL, NULL, &generation, &error));
    options.regex = NULL;
    char prompt[2048];
    memset(prompt, 'x', sizeof prompt - 1);
    prompt[sizeof prompt - 1] = 0;
    EXPECT(TERCET_STATUS_ARGUMENT, tercet_generate(generator, prompt, &options, NULL, NULL, &generation, &error));
    EXPECT(TERCET_STATUS_ARGUMENT, tercet_chat(generator, NULL, 0, &options, NULL, NULL, &generation, &error));
    EXPECT(TERCET_STATUS_NULL, tercet_chat(generator, NULL, 1, &options, NULL, NULL, &generation, &error));
    TercetMessage message = {"robot", "Hi"};
    EXPECT(TERCET_STATUS_ARGUMENT, tercet_chat(generator, &message, 1, &options, NULL, NULL, &generation, &error));
    // Options of a later version: zeros are accepted, other values are not.
    struct {
        TercetGenerateOptions options;
        uint64_t later;
    } longer = {{.struct_size = sizeof longer, .max_tokens = 2}, 0};
    EXPECT(TERCET_STATUS_OK, tercet_generate(generator, "fn", &longer.options, NULL, NULL, NULL, &error));
    longer.later = 1;
    EXPECT(TERCET_STATUS_ARGUMENT, tercet_generate(generator, "fn", &longer.options, NULL, NULL, NULL, &error));
    if (generation != NULL) {
        ++failures;
    }
    TercetTensor *rows = NULL;
    EXPECT(TERCET_STATUS_HANDLE,
           tercet_embed((TercetEmbedder *)generator, NULL, 0, NULL, NULL, NULL, &rows, &error));
    EXPECT(TERCET_STATUS_OK, tercet_generator_stop(generator, &error));
    EXPECT(TERCET_STATUS_OK, tercet_free(generator));
    EXPECT(TERCET_STATUS_HANDLE, tercet_generator_stop(generator, &error));
    EXPECT(TERCET_STATUS_HANDLE, tercet_generate(generator, "fn", NULL, NULL, NULL, NULL, &error));
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: bad_input MODEL\n");
        return 2;
    }
    TercetDevice *device = NULL;
    EXPECT(TERCET_STATUS_DEVICE, tercet_device_open("abacus", &device, &error));
    EXPECT(TERCET_STATUS_UTF8, tercet_device_open("\xff", &device, &error));
    EXPECT(TERCET_STATUS_NULL, tercet_device_open("cpu", NULL, &error));
    // Without a place for the error, the status is the same.
    if (tercet_device_open("abacus", &device, NULL) != TERCET_STATUS_DEVICE || tercet_device_name(NULL) != NULL) {
        ++failures;
    }
    EXPECT(TERCET_STATUS_OK, tercet_device_open("cpu", &device, &error));
    tensors();
    sessions(device);
    models(device, argv[1]);
    tercet_free(device);
    if (tercet_dtype_size(-5) != 0 || strcmp(tercet_status_name(12345), "unknown status") != 0) {
        ++failures;
    }
    printf("%d failures\n", failures);
    return finish() || failures != 0;
}
