// Lists the devices, runs a graph in text form on two threads, and an ONNX model if its path is given.
//
//   session [MODEL.onnx]

#include <pthread.h>
#include <string.h>

#include "common.h"

static const char *GRAPH =
    "graph {\n"
    "  %x = input{name=\"x\", ty=f32[rows, 3]}()\n"
    "  %w = param{name=\"w\", ty=f32[3]}()\n"
    "  %y = binary{f=mul}(%x, %w)\n"
    "  return %y as \"y\"\n"
    "}\n";

static TercetSession *session;

static void count_release(void *user) {
    ++*(int *)user;
}

// Runs the session on `rows` rows of ones, many times.
static void *run_rows(void *argument) {
    size_t rows = *(size_t *)argument;
    size_t shape[2] = {rows, 3};
    float *ones = malloc(rows * 3 * sizeof *ones);
    for (size_t at = 0; at < rows * 3; ++at) {
        ones[at] = 1.0f;
    }
    for (int run = 0; run < 50; ++run) {
        TercetError *error = NULL;
        TercetTensor *x = NULL;
        TercetTensor *y = NULL;
        // The tensor reads `ones` in place.
        check(tercet_tensor_borrow(TERCET_DTYPE_F32, shape, 2, ones, rows * 3 * sizeof *ones, NULL, NULL, &x,
                                   &error), error);
        TercetNamedTensor input = {"x", x};
        const char *output = "y";
        check(tercet_session_run(session, &input, 1, &output, 1, &y, &error), error);
        TercetTensorView view;
        check(tercet_tensor_read(y, &view, &error), error);
        const float *elements = view.data;
        if (view.rank != 2 || view.shape[0] != rows || elements[rows * 3 - 1] != 30.0f) {
            fprintf(stderr, "wrong result\n");
            exit(1);
        }
        tercet_free(y);
        tercet_free(x);
    }
    free(ones);
    return NULL;
}

static void print_ports(TercetSession *of, int32_t role) {
    TercetError *error = NULL;
    const TercetPort *ports = NULL;
    size_t count = 0;
    check(tercet_session_ports(of, role, &ports, &count, &error), error);
    for (size_t at = 0; at < count; ++at) {
        printf("%s %s: %s\n", role == TERCET_ROLE_INPUT ? "input" : "output", ports[at].name, ports[at].type_text);
    }
}

static void run_onnx(TercetDevice *device, const char *path) {
    TercetError *error = NULL;
    TercetSession *model = NULL;
    check(tercet_session_open(device, path, NULL, 0, &model, &error), error);
    print_ports(model, TERCET_ROLE_INPUT);
    print_ports(model, TERCET_ROLE_OUTPUT);
    const TercetPort *ports = NULL;
    size_t count = 0;
    check(tercet_session_ports(model, TERCET_ROLE_INPUT, &ports, &count, &error), error);
    if (count == 1 && ports[0].dtype == TERCET_DTYPE_F32 && ports[0].rank == 1) {
        size_t size = ports[0].sizes[0] > 0 ? (size_t)ports[0].sizes[0] : 4;
        float *zeros = calloc(size, sizeof *zeros);
        TercetTensor *x = NULL;
        TercetTensor *y = NULL;
        check(tercet_tensor_new(TERCET_DTYPE_F32, &size, 1, zeros, size * sizeof *zeros, &x, &error), error);
        free(zeros);
        TercetNamedTensor input = {ports[0].name, x};
        check(tercet_session_run(model, &input, 1, NULL, 1, &y, &error), error);
        TercetTensorView view;
        check(tercet_tensor_read(y, &view, &error), error);
        printf("output of %zu bytes, first element %g\n", view.bytes, ((const float *)view.data)[0]);
        tercet_free(y);
        tercet_free(x);
    }
    tercet_free(model);
}

int main(int argc, char **argv) {
    if (tercet_abi_version() != TERCET_ABI_VERSION) {
        fprintf(stderr, "the library has another binary interface\n");
        return 1;
    }
    TercetError *error = NULL;
    TercetDeviceList *list = NULL;
    const TercetDeviceInfo *devices = NULL;
    size_t count = 0;
    check(tercet_devices(&list, &error), error);
    check(tercet_device_list_read(list, &devices, &count, &error), error);
    for (size_t at = 0; at < count; ++at) {
        printf("%s: %s%s\n", devices[at].name, devices[at].description, devices[at].usable ? "" : " (not usable)");
    }
    tercet_free(list);

    TercetDevice *device = open_device();
    TercetBound bound = {"rows", 64};
    check(tercet_session_from_text(device, GRAPH, strlen(GRAPH), &bound, 1, &session, &error), error);
    print_ports(session, TERCET_ROLE_INPUT);
    print_ports(session, TERCET_ROLE_OUTPUT);

    // The session keeps the memory of the parameter after the tensor is freed.
    float tens[3] = {10.0f, 20.0f, 30.0f};
    size_t shape = 3;
    int released = 0;
    TercetTensor *w = NULL;
    check(tercet_tensor_borrow(TERCET_DTYPE_F32, &shape, 1, tens, sizeof tens, count_release, &released, &w, &error),
          error);
    check(tercet_session_set_param(session, "w", w, &error), error);
    tercet_free(w);

    pthread_t threads[2];
    size_t rows[2] = {1, 64};
    for (int at = 0; at < 2; ++at) {
        pthread_create(&threads[at], NULL, run_rows, &rows[at]);
    }
    for (int at = 0; at < 2; ++at) {
        pthread_join(threads[at], NULL);
    }
    if (argc > 1) {
        run_onnx(device, argv[1]);
    }
    tercet_free(session);
    tercet_free(device);
    if (released != 1) {
        fprintf(stderr, "the memory of the parameter was released %d times\n", released);
        return 1;
    }
    printf("two threads: 50 runs each\n");
    return finish();
}
