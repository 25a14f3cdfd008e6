// The N-API module under `index.js`: thin functions over tercet.h. All long calls run on threads of libuv and return
// promises. Handles of the library are numbers in JavaScript: a stale or wrong one is an error of the library.

#include <node_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tercet.h"

// A piece of text on its way to the main thread; the last one has no text.
typedef struct {
    size_t bytes;
    char text[];
} Piece;

// A call on a thread of libuv. `execute` sees no JavaScript values; `finish` turns the result into one.
typedef struct Task {
    void (*execute)(struct Task *);
    napi_value (*finish)(napi_env, struct Task *);
    napi_async_work work;
    napi_deferred deferred;
    // Pieces of text, and the end of a generation, in order.
    napi_threadsafe_function events;
    // The last piece, allocated first so that the promise always settles.
    Piece *end;
    // Uses of this task on the main thread.
    int uses;
    TercetStatus status;
    TercetError *error;
    // Memory of the arguments.
    void **owned;
    size_t owned_count;

    const void *handle;
    char *text;
    size_t text_bytes;
    TercetBound *bounds;
    size_t bound_count;
    TercetNamedTensor *inputs;
    size_t input_count;
    const char **names;
    size_t name_count;
    TercetMessage *messages;
    size_t message_count;
    float *samples;
    size_t sample_count;
    TercetModelOptions model;
    TercetEmbedOptions embed;
    TercetGenerateOptions generate;
    TercetTranscribeOptions transcribe;
    // A new handle, or an array of tensors.
    void *result;
    TercetTensor **results;
} Task;

static napi_value undefined(napi_env env) {
    napi_value value = NULL;
    napi_get_undefined(env, &value);
    return value;
}

static napi_value fail(napi_env env, const char *reason) {
    bool pending = false;
    napi_is_exception_pending(env, &pending);
    if (!pending) {
        napi_throw_type_error(env, "ERR_INVALID_ARG_TYPE", reason);
    }
    return NULL;
}

static napi_value number(napi_env env, double value) {
    napi_value result = NULL;
    napi_create_double(env, value, &result);
    return result;
}

static napi_value string(napi_env env, const char *text, size_t bytes) {
    napi_value result = NULL;
    napi_create_string_utf8(env, text, bytes, &result);
    return result;
}

static void set(napi_env env, napi_value object, const char *name, napi_value value) {
    napi_set_named_property(env, object, name, value);
}

// An error of the library, which this call frees; its code is the name of the status.
static napi_value error_value(napi_env env, TercetStatus status, TercetError *error) {
    napi_value result = NULL;
    napi_create_error(env, string(env, tercet_status_name(status), NAPI_AUTO_LENGTH),
                      string(env, tercet_error_message(error), NAPI_AUTO_LENGTH), &result);
    tercet_free(error);
    return result;
}

static napi_value throw_error(napi_env env, TercetStatus status, TercetError *error) {
    napi_throw(env, error_value(env, status, error));
    return NULL;
}

// The handle in a number; NULL, which the library rejects, for all else.
static void *handle_of(napi_env env, napi_value value) {
    double found = 0;
    if (napi_get_value_double(env, value, &found) != napi_ok || !(found >= 0 && found < 9007199254740992.0)) {
        return NULL;
    }
    return (void *)(uintptr_t)found;
}

static napi_value handle_value(napi_env env, const void *handle) {
    return number(env, (double)(uintptr_t)handle);
}

static void *own(Task *task, void *memory) {
    void **owned = realloc(task->owned, (task->owned_count + 1) * sizeof *owned);
    if (memory == NULL || owned == NULL) {
        free(memory);
        return NULL;
    }
    task->owned = owned;
    owned[task->owned_count++] = memory;
    return memory;
}

// A copy of a JavaScript string, or NULL if the value is none. A zero character inside would end the text early, so it
// is refused.
static char *text_of(napi_env env, Task *task, napi_value value, size_t *bytes) {
    size_t length = 0;
    if (napi_get_value_string_utf8(env, value, NULL, 0, &length) != napi_ok) {
        return NULL;
    }
    char *text = own(task, malloc(length + 1));
    if (text == NULL || napi_get_value_string_utf8(env, value, text, length + 1, &length) != napi_ok ||
        memchr(text, 0, length) != NULL) {
        return NULL;
    }
    if (bytes != NULL) {
        *bytes = length;
    }
    return text;
}

static bool is_type(napi_env env, napi_value value, napi_valuetype type) {
    napi_valuetype found;
    return napi_typeof(env, value, &found) == napi_ok && found == type;
}

// A property of an object, or NULL if it is undefined or null.
static napi_value property(napi_env env, napi_value object, const char *name) {
    napi_value value = NULL;
    if (!is_type(env, object, napi_object) || napi_get_named_property(env, object, name, &value) != napi_ok ||
        is_type(env, value, napi_undefined) || is_type(env, value, napi_null)) {
        return NULL;
    }
    return value;
}

static bool read_double(napi_env env, napi_value object, const char *name, double *place) {
    napi_value value = property(env, object, name);
    return value == NULL || napi_get_value_double(env, value, place) == napi_ok;
}

static bool read_size(napi_env env, napi_value object, const char *name, size_t *place) {
    double found = (double)*place;
    if (!read_double(env, object, name, &found) || !(found >= 0 && found < 9007199254740992.0)) {
        return false;
    }
    *place = (size_t)found;
    return true;
}

static bool read_flag(napi_env env, napi_value object, const char *name, int32_t *place) {
    napi_value value = property(env, object, name);
    bool found = false;
    if (value == NULL) {
        return true;
    }
    if (napi_get_value_bool(env, value, &found) != napi_ok) {
        return false;
    }
    *place = found;
    return true;
}

static bool read_text(napi_env env, Task *task, napi_value object, const char *name, const char **place) {
    napi_value value = property(env, object, name);
    if (value == NULL) {
        return true;
    }
    *place = text_of(env, task, value, NULL);
    return *place != NULL;
}

// An array of strings.
static bool read_texts(napi_env env, Task *task, napi_value array, const char ***texts, size_t *count) {
    uint32_t length = 0;
    if (napi_get_array_length(env, array, &length) != napi_ok) {
        return false;
    }
    const char **list = own(task, calloc(length + 1, sizeof *list));
    if (list == NULL) {
        return false;
    }
    for (uint32_t at = 0; at < length; ++at) {
        napi_value value = NULL;
        napi_get_element(env, array, at, &value);
        list[at] = text_of(env, task, value, NULL);
        if (list[at] == NULL) {
            return false;
        }
    }
    *texts = list;
    *count = length;
    return true;
}

static Task *new_task(void (*execute)(Task *), napi_value (*finish)(napi_env, Task *)) {
    Task *task = calloc(1, sizeof *task);
    if (task != NULL) {
        task->execute = execute;
        task->finish = finish;
        task->uses = 1;
    }
    return task;
}

static void release_task(napi_env env, Task *task) {
    if (--task->uses > 0) {
        return;
    }
    for (size_t at = 0; at < task->input_count; ++at) {
        tercet_free(task->inputs[at].tensor);
    }
    for (size_t at = 0; task->results != NULL && at < task->name_count; ++at) {
        tercet_free(task->results[at]);
    }
    for (size_t at = 0; at < task->owned_count; ++at) {
        free(task->owned[at]);
    }
    if (task->work != NULL) {
        napi_delete_async_work(env, task->work);
    }
    free(task->owned);
    free(task);
}

// Resolves or rejects the promise.
static void settle(napi_env env, Task *task) {
    if (task->status != TERCET_STATUS_OK) {
        napi_reject_deferred(env, task->deferred, error_value(env, task->status, task->error));
        return;
    }
    napi_value value = task->finish(env, task);
    bool pending = false;
    napi_is_exception_pending(env, &pending);
    if (pending || value == NULL) {
        napi_value reason = NULL;
        if (pending) {
            napi_get_and_clear_last_exception(env, &reason);
        } else {
            napi_create_error(env, string(env, "TERCET_STATUS_MEMORY", NAPI_AUTO_LENGTH),
                              string(env, "the result does not fit in memory", NAPI_AUTO_LENGTH), &reason);
        }
        napi_reject_deferred(env, task->deferred, reason);
        return;
    }
    napi_resolve_deferred(env, task->deferred, value);
}

static Piece *new_piece(const char *text, size_t bytes) {
    Piece *piece = malloc(sizeof *piece + bytes);
    if (piece != NULL) {
        piece->bytes = bytes;
        memcpy(piece->text, text, bytes);
    }
    return piece;
}

// Sends a piece to the main thread. Without memory it is left out; the result has the whole text.
static void send_piece(Task *task, Piece *piece) {
    if (piece != NULL && napi_call_threadsafe_function(task->events, piece, napi_tsfn_blocking) != napi_ok) {
        free(piece);
    }
}

static void execute_task(napi_env env, void *data) {
    (void)env;
    Task *task = data;
    task->execute(task);
    if (task->events != NULL) {
        send_piece(task, task->end);
    }
}

static void complete_task(napi_env env, napi_status status, void *data) {
    (void)status;
    Task *task = data;
    if (task->events == NULL) {
        settle(env, task);
    } else {
        napi_release_threadsafe_function(task->events, napi_tsfn_release);
    }
    release_task(env, task);
}

static void call_listener(napi_env env, napi_value listener, void *context, void *data) {
    Task *task = context;
    Piece *piece = data;
    // Without an environment the thread is ending.
    if (env != NULL && piece == task->end) {
        settle(env, task);
        release_task(env, task);
    } else if (env != NULL) {
        napi_value text = string(env, piece->text, piece->bytes);
        napi_call_function(env, undefined(env), listener, 1, &text, NULL);
    }
    free(piece);
}

// Starts a task and returns its promise. `listener` gets the pieces of a generation, or is NULL.
static napi_value start(napi_env env, Task *task, napi_value listener) {
    napi_value promise = NULL;
    napi_value name = string(env, "tercet", NAPI_AUTO_LENGTH);
    if (listener != NULL) {
        task->end = new_piece("", 0);
        if (task->end == NULL || napi_create_threadsafe_function(env, listener, NULL, name, 0, 1, NULL, NULL, task,
                                                                 call_listener, &task->events) != napi_ok) {
            free(task->end);
            release_task(env, task);
            return fail(env, "expected a function for pieces of text");
        }
        // One use until the work is complete, and one until the end is delivered.
        task->uses = 2;
    }
    napi_create_promise(env, &task->deferred, &promise);
    napi_create_async_work(env, NULL, name, execute_task, complete_task, task, &task->work);
    napi_queue_async_work(env, task->work);
    return promise;
}

static napi_value finish_handle(napi_env env, Task *task) {
    return handle_value(env, task->result);
}

#define ARGUMENTS(count)                                          \
    size_t given = (count);                                       \
    napi_value arguments[count] = {NULL};                         \
    napi_get_cb_info(env, info, &given, arguments, NULL, NULL)

#define REFUSE(reason)               \
    do {                             \
        release_task(env, task);     \
        return fail(env, (reason));  \
    } while (0)

#define NEW_TASK(execute, finish)                      \
    Task *task = new_task((execute), (finish));        \
    if (task == NULL) {                                \
        return fail(env, "memory is not sufficient");  \
    }

// version() -> string
static napi_value version(napi_env env, napi_callback_info info) {
    (void)info;
    return string(env, tercet_version(), NAPI_AUTO_LENGTH);
}

// liveHandles() -> number
static napi_value live_handles(napi_env env, napi_callback_info info) {
    (void)info;
    return number(env, (double)tercet_live_handles());
}

// free(handle) -> boolean: whether the handle was live
static napi_value free_handle(napi_env env, napi_callback_info info) {
    ARGUMENTS(1);
    napi_value freed = NULL;
    napi_get_boolean(env, tercet_free(handle_of(env, arguments[0])) == TERCET_STATUS_OK, &freed);
    return freed;
}

static void execute_devices(Task *task) {
    task->status = tercet_devices((TercetDeviceList **)&task->result, &task->error);
}

static napi_value finish_devices(napi_env env, Task *task) {
    const TercetDeviceInfo *devices = NULL;
    size_t count = 0;
    napi_value list = NULL;
    tercet_device_list_read(task->result, &devices, &count, NULL);
    napi_create_array_with_length(env, count, &list);
    for (size_t at = 0; at < count; ++at) {
        napi_value device = NULL, usable = NULL, emulated = NULL;
        napi_create_object(env, &device);
        napi_get_boolean(env, devices[at].usable, &usable);
        napi_get_boolean(env, devices[at].emulated, &emulated);
        set(env, device, "name", string(env, devices[at].name, NAPI_AUTO_LENGTH));
        set(env, device, "description", string(env, devices[at].description, NAPI_AUTO_LENGTH));
        set(env, device, "usable", usable);
        set(env, device, "emulated", emulated);
        napi_set_element(env, list, (uint32_t)at, device);
    }
    tercet_free(task->result);
    return list;
}

// devices() -> Promise<object[]>
static napi_value devices(napi_env env, napi_callback_info info) {
    (void)info;
    NEW_TASK(execute_devices, finish_devices);
    return start(env, task, NULL);
}

static void execute_device(Task *task) {
    task->status = tercet_device_open(task->text, (TercetDevice **)&task->result, &task->error);
}

// openDevice(name) -> Promise<handle>
static napi_value open_device(napi_env env, napi_callback_info info) {
    ARGUMENTS(1);
    NEW_TASK(execute_device, finish_handle);
    task->text = text_of(env, task, arguments[0], NULL);
    if (task->text == NULL) {
        REFUSE("the name of a device is a string");
    }
    return start(env, task, NULL);
}

static void execute_session_open(Task *task) {
    task->status = tercet_session_open(task->handle, task->text, task->bounds, task->bound_count,
                                       (TercetSession **)&task->result, &task->error);
}

static void execute_session_text(Task *task) {
    task->status = tercet_session_from_text(task->handle, task->text, task->text_bytes, task->bounds,
                                            task->bound_count, (TercetSession **)&task->result, &task->error);
}

// The bounds in an array of [symbol, max].
static bool read_bounds(napi_env env, Task *task, napi_value array) {
    uint32_t length = 0;
    if (napi_get_array_length(env, array, &length) != napi_ok) {
        return false;
    }
    task->bounds = own(task, calloc(length + 1, sizeof *task->bounds));
    if (task->bounds == NULL) {
        return false;
    }
    for (uint32_t at = 0; at < length; ++at) {
        napi_value pair = NULL, symbol = NULL, max = NULL;
        double found = -1;
        napi_get_element(env, array, at, &pair);
        if (napi_get_element(env, pair, 0, &symbol) != napi_ok || napi_get_element(env, pair, 1, &max) != napi_ok ||
            napi_get_value_double(env, max, &found) != napi_ok || !(found >= 0 && found < 9007199254740992.0)) {
            return false;
        }
        task->bounds[at].symbol = text_of(env, task, symbol, NULL);
        task->bounds[at].max = (size_t)found;
        if (task->bounds[at].symbol == NULL) {
            return false;
        }
    }
    task->bound_count = length;
    return true;
}

// openSession(device, text, bounds, isPath) -> Promise<handle>
static napi_value open_session(napi_env env, napi_callback_info info) {
    ARGUMENTS(4);
    bool is_path = false;
    napi_get_value_bool(env, arguments[3], &is_path);
    NEW_TASK(is_path ? execute_session_open : execute_session_text, finish_handle);
    task->handle = handle_of(env, arguments[0]);
    task->text = text_of(env, task, arguments[1], &task->text_bytes);
    if (task->text == NULL || !read_bounds(env, task, arguments[2])) {
        REFUSE("expected a string, and bounds as numbers by symbol");
    }
    return start(env, task, NULL);
}

// ports(session, role) -> object[]
static napi_value ports(napi_env env, napi_callback_info info) {
    ARGUMENTS(2);
    int32_t role = -1;
    napi_get_value_int32(env, arguments[1], &role);
    const TercetPort *found = NULL;
    size_t count = 0;
    TercetError *error = NULL;
    TercetStatus status = tercet_session_ports(handle_of(env, arguments[0]), role, &found, &count, &error);
    if (status != TERCET_STATUS_OK) {
        return throw_error(env, status, error);
    }
    napi_value list = NULL;
    napi_create_array_with_length(env, count, &list);
    for (size_t at = 0; at < count; ++at) {
        napi_value port = NULL, shape = NULL, optional = NULL;
        napi_create_object(env, &port);
        napi_get_boolean(env, found[at].optional, &optional);
        set(env, port, "name", string(env, found[at].name, NAPI_AUTO_LENGTH));
        set(env, port, "type", string(env, found[at].type_text, NAPI_AUTO_LENGTH));
        set(env, port, "dtype", string(env, tercet_dtype_name(found[at].dtype), NAPI_AUTO_LENGTH));
        set(env, port, "optional", optional);
        if (found[at].rank >= 0) {
            napi_create_array_with_length(env, (size_t)found[at].rank, &shape);
            for (int32_t axis = 0; axis < found[at].rank; ++axis) {
                napi_set_element(env, shape, (uint32_t)axis, number(env, (double)found[at].sizes[axis]));
            }
        } else {
            napi_get_null(env, &shape);
        }
        set(env, port, "shape", shape);
        napi_set_element(env, list, (uint32_t)at, port);
    }
    return list;
}

// The dtype with this name.
static int32_t dtype_of(const char *name) {
    for (int32_t dtype = TERCET_DTYPE_F32; dtype <= TERCET_DTYPE_I16; ++dtype) {
        if (strcmp(tercet_dtype_name(dtype), name) == 0) {
            return dtype;
        }
    }
    return TERCET_DTYPE_NONE;
}

// A tensor with a copy of { name, dtype, shape, data }. Returns an error that is to be thrown.
static TercetStatus read_tensor(napi_env env, Task *task, napi_value value, TercetNamedTensor *place,
                                TercetError **error) {
    const char *name = NULL, *dtype = NULL;
    uint32_t rank = 0;
    napi_value shape = property(env, value, "shape"), data = property(env, value, "data"), buffer = NULL;
    napi_typedarray_type type;
    size_t length = 0, offset = 0, bytes = 0;
    void *elements = NULL;
    size_t sizes[64];
    if (!read_text(env, task, value, "name", &name) || !read_text(env, task, value, "dtype", &dtype) || name == NULL ||
        dtype == NULL || shape == NULL || data == NULL ||
        napi_get_array_length(env, shape, &rank) != napi_ok || rank > 64 ||
        napi_get_typedarray_info(env, data, &type, &length, &elements, &buffer, &offset) != napi_ok) {
        return TERCET_STATUS_ARGUMENT;
    }
    static const size_t WIDTHS[] = {1, 1, 1, 2, 2, 4, 4, 4, 8, 8, 8};
    bytes = (size_t)type < sizeof WIDTHS / sizeof *WIDTHS ? length * WIDTHS[type] : 0;
    for (uint32_t axis = 0; axis < rank; ++axis) {
        napi_value size = NULL;
        double found = -1;
        napi_get_element(env, shape, axis, &size);
        if (napi_get_value_double(env, size, &found) != napi_ok || !(found >= 0 && found < 9007199254740992.0)) {
            return TERCET_STATUS_ARGUMENT;
        }
        sizes[axis] = (size_t)found;
    }
    place->name = name;
    TercetTensor *tensor = NULL;
    TercetStatus status = tercet_tensor_new(dtype_of(dtype), sizes, rank, elements, bytes, &tensor, error);
    place->tensor = tensor;
    return status;
}

static void execute_run(Task *task) {
    task->status = tercet_session_run(task->handle, task->inputs, task->input_count, task->names, task->name_count,
                                      task->results, &task->error);
}

static napi_value finish_run(napi_env env, Task *task) {
    napi_value list = NULL;
    napi_create_array_with_length(env, task->name_count, &list);
    for (size_t at = 0; at < task->name_count; ++at) {
        TercetTensorView view;
        napi_value tensor = NULL, shape = NULL, buffer = NULL;
        void *memory = NULL;
        if (tercet_tensor_read(task->results[at], &view, NULL) != TERCET_STATUS_OK ||
            napi_create_arraybuffer(env, view.bytes, &memory, &buffer) != napi_ok) {
            return NULL;
        }
        if (view.bytes > 0) {
            memcpy(memory, view.data, view.bytes);
        }
        napi_create_object(env, &tensor);
        napi_create_array_with_length(env, view.rank, &shape);
        for (size_t axis = 0; axis < view.rank; ++axis) {
            napi_set_element(env, shape, (uint32_t)axis, number(env, (double)view.shape[axis]));
        }
        set(env, tensor, "name", string(env, task->names[at], NAPI_AUTO_LENGTH));
        set(env, tensor, "dtype", string(env, tercet_dtype_name(view.dtype), NAPI_AUTO_LENGTH));
        set(env, tensor, "shape", shape);
        set(env, tensor, "buffer", buffer);
        napi_set_element(env, list, (uint32_t)at, tensor);
    }
    return list;
}

// run(session, inputs, outputs) -> Promise<object[]>
static napi_value run(napi_env env, napi_callback_info info) {
    ARGUMENTS(3);
    NEW_TASK(execute_run, finish_run);
    uint32_t length = 0;
    task->handle = handle_of(env, arguments[0]);
    if (napi_get_array_length(env, arguments[1], &length) != napi_ok ||
        !read_texts(env, task, arguments[2], &task->names, &task->name_count)) {
        REFUSE("expected a list of inputs, and a list of names of outputs");
    }
    task->inputs = own(task, calloc(length + 1, sizeof *task->inputs));
    task->results = own(task, calloc(task->name_count + 1, sizeof *task->results));
    if (task->inputs == NULL || task->results == NULL) {
        REFUSE("memory is not sufficient");
    }
    for (uint32_t at = 0; at < length; ++at) {
        napi_value input = NULL;
        TercetError *error = NULL;
        napi_get_element(env, arguments[1], at, &input);
        TercetStatus status = read_tensor(env, task, input, &task->inputs[at], &error);
        if (status != TERCET_STATUS_OK && error == NULL) {
            REFUSE("an input has a name, a dtype, a shape of numbers, and data as a typed array");
        }
        if (status != TERCET_STATUS_OK) {
            release_task(env, task);
            return throw_error(env, status, error);
        }
        ++task->input_count;
    }
    return start(env, task, NULL);
}

static void execute_generator(Task *task) {
    task->status = tercet_generator_open(task->handle, task->text, &task->model, (TercetGenerator **)&task->result,
                                         &task->error);
}

static void execute_embedder(Task *task) {
    task->status = tercet_embedder_open(task->handle, task->text, &task->model, (TercetEmbedder **)&task->result,
                                        &task->error);
}

static void execute_recognizer(Task *task) {
    task->status = tercet_recognizer_open(task->handle, task->text, (TercetRecognizer **)&task->result, &task->error);
}

static napi_value open_model(napi_env env, napi_callback_info info, void (*execute)(Task *)) {
    ARGUMENTS(3);
    NEW_TASK(execute, finish_handle);
    task->handle = handle_of(env, arguments[0]);
    task->text = text_of(env, task, arguments[1], NULL);
    task->model.struct_size = sizeof task->model;
    if (task->text == NULL || !read_size(env, arguments[2], "context", &task->model.context)) {
        REFUSE("expected a path, and a context of at least 0");
    }
    return start(env, task, NULL);
}

// openGenerator(device, path, options) -> Promise<handle>, and the same for other models
static napi_value open_generator(napi_env env, napi_callback_info info) {
    return open_model(env, info, execute_generator);
}

static napi_value open_embedder(napi_env env, napi_callback_info info) {
    return open_model(env, info, execute_embedder);
}

static napi_value open_recognizer(napi_env env, napi_callback_info info) {
    return open_model(env, info, execute_recognizer);
}

static bool forward_piece(const TercetGenerateEvent *event, void *user) {
    if (event->text_bytes > 0) {
        send_piece(user, new_piece(event->text, event->text_bytes));
    }
    return true;
}

static void execute_generate(Task *task) {
    TercetGeneration **generation = (TercetGeneration **)&task->result;
    if (task->messages != NULL) {
        task->status = tercet_chat(task->handle, task->messages, task->message_count, &task->generate, forward_piece,
                                   task, generation, &task->error);
    } else {
        task->status = tercet_generate(task->handle, task->text, &task->generate, forward_piece, task, generation,
                                       &task->error);
    }
}

static napi_value finish_generate(napi_env env, Task *task) {
    static const char *FINISHES[] = {"end", "stop", "length", "context", "cancelled"};
    TercetGenerationView view;
    napi_value result = NULL, tokens = NULL;
    tercet_generation_read(task->result, &view, NULL);
    napi_create_object(env, &result);
    napi_create_array_with_length(env, view.token_count, &tokens);
    for (size_t at = 0; at < view.token_count; ++at) {
        napi_set_element(env, tokens, (uint32_t)at, number(env, view.tokens[at]));
    }
    set(env, result, "text", string(env, view.text, view.text_bytes));
    set(env, result, "tokens", tokens);
    set(env, result, "promptTokens", number(env, (double)view.prompt_tokens));
    set(env, result, "finish", string(env, FINISHES[view.finish], NAPI_AUTO_LENGTH));
    tercet_free(task->result);
    return result;
}

static bool read_messages(napi_env env, Task *task, napi_value array) {
    uint32_t length = 0;
    if (napi_get_array_length(env, array, &length) != napi_ok) {
        return false;
    }
    task->messages = own(task, calloc(length + 1, sizeof *task->messages));
    if (task->messages == NULL) {
        return false;
    }
    for (uint32_t at = 0; at < length; ++at) {
        napi_value message = NULL;
        napi_get_element(env, array, at, &message);
        if (!read_text(env, task, message, "role", &task->messages[at].role) ||
            !read_text(env, task, message, "content", &task->messages[at].content) ||
            task->messages[at].role == NULL || task->messages[at].content == NULL) {
            return false;
        }
    }
    task->message_count = length;
    return true;
}

static bool read_generate(napi_env env, Task *task, napi_value from) {
    TercetGenerateOptions *to = &task->generate;
    to->struct_size = sizeof *to;
    napi_value stop = property(env, from, "stop");
    if (stop != NULL && !read_texts(env, task, stop, (const char ***)&to->stop, &to->stop_count)) {
        return false;
    }
    size_t seed = 0;
    bool ok = read_size(env, from, "maxTokens", &to->max_tokens) && read_size(env, from, "topK", &to->top_k) &&
              read_size(env, from, "seed", &seed) && read_double(env, from, "temperature", &to->temperature) &&
              read_double(env, from, "topP", &to->top_p) && read_double(env, from, "minP", &to->min_p) &&
              read_double(env, from, "repetitionPenalty", &to->repetition_penalty) &&
              read_double(env, from, "presencePenalty", &to->presence_penalty) &&
              read_double(env, from, "frequencyPenalty", &to->frequency_penalty) &&
              read_text(env, task, from, "jsonSchema", &to->json_schema) &&
              read_text(env, task, from, "regex", &to->regex) && read_text(env, task, from, "grammar", &to->grammar) &&
              read_flag(env, from, "ignoreEnd", &to->ignore_end);
    to->seed = seed;
    return ok;
}

// generate(generator, prompt or messages, options, listener) -> Promise<object>
static napi_value generate(napi_env env, napi_callback_info info) {
    ARGUMENTS(4);
    NEW_TASK(execute_generate, finish_generate);
    task->handle = handle_of(env, arguments[0]);
    task->text = text_of(env, task, arguments[1], NULL);
    if (task->text == NULL && !read_messages(env, task, arguments[1])) {
        REFUSE("expected a prompt as a string without zero characters, or messages with `role` and `content`");
    }
    if (!read_generate(env, task, arguments[2])) {
        REFUSE("an option has the wrong type; index.d.ts lists the options");
    }
    return start(env, task, arguments[3]);
}

// stop(generator)
static napi_value stop(napi_env env, napi_callback_info info) {
    ARGUMENTS(1);
    TercetError *error = NULL;
    TercetStatus status = tercet_generator_stop(handle_of(env, arguments[0]), &error);
    return status == TERCET_STATUS_OK ? undefined(env) : throw_error(env, status, error);
}

static void execute_embed(Task *task) {
    task->status = tercet_embed(task->handle, task->names, task->name_count, &task->embed, NULL, NULL,
                                (TercetTensor **)&task->result, &task->error);
}

static napi_value finish_embed(napi_env env, Task *task) {
    TercetTensorView view;
    napi_value buffer = NULL;
    void *memory = NULL;
    tercet_tensor_read(task->result, &view, NULL);
    if (napi_create_arraybuffer(env, view.bytes, &memory, &buffer) == napi_ok && view.bytes > 0) {
        memcpy(memory, view.data, view.bytes);
    }
    tercet_free(task->result);
    return buffer;
}

// embed(embedder, texts, options) -> Promise<ArrayBuffer>
static napi_value embed(napi_env env, napi_callback_info info) {
    ARGUMENTS(3);
    NEW_TASK(execute_embed, finish_embed);
    task->handle = handle_of(env, arguments[0]);
    task->embed.struct_size = sizeof task->embed;
    if (!read_texts(env, task, arguments[1], &task->names, &task->name_count) ||
        !read_flag(env, arguments[2], "truncate", &task->embed.truncate)) {
        REFUSE("expected a list of strings without zero characters, and `truncate` as a boolean");
    }
    return start(env, task, NULL);
}

// embedderInfo(embedder) -> { width, maxTokens }
static napi_value embedder_info(napi_env env, napi_callback_info info) {
    ARGUMENTS(1);
    napi_value result = NULL;
    const void *embedder = handle_of(env, arguments[0]);
    napi_create_object(env, &result);
    set(env, result, "width", number(env, (double)tercet_embedder_width(embedder)));
    set(env, result, "maxTokens", number(env, (double)tercet_embedder_max_tokens(embedder)));
    return result;
}

static void execute_transcribe(Task *task) {
    TercetTranscript **transcript = (TercetTranscript **)&task->result;
    if (task->text != NULL) {
        task->status = tercet_transcribe_file(task->handle, task->text, &task->transcribe, NULL, NULL, transcript,
                                              &task->error);
    } else {
        task->status = tercet_transcribe(task->handle, task->samples, task->sample_count, &task->transcribe, NULL,
                                         NULL, transcript, &task->error);
    }
}

static napi_value finish_transcribe(napi_env env, Task *task) {
    TercetTranscriptView view;
    napi_value result = NULL, segments = NULL, language = NULL;
    tercet_transcript_read(task->result, &view, NULL);
    napi_create_object(env, &result);
    napi_get_null(env, &language);
    if (view.language != NULL) {
        language = string(env, view.language, NAPI_AUTO_LENGTH);
    }
    napi_create_array_with_length(env, view.segment_count, &segments);
    for (size_t at = 0; at < view.segment_count; ++at) {
        napi_value segment = NULL;
        napi_create_object(env, &segment);
        set(env, segment, "start", number(env, view.segments[at].start));
        set(env, segment, "end", number(env, view.segments[at].end));
        set(env, segment, "text", string(env, view.segments[at].text, NAPI_AUTO_LENGTH));
        napi_set_element(env, segments, (uint32_t)at, segment);
    }
    set(env, result, "text", string(env, view.text, NAPI_AUTO_LENGTH));
    set(env, result, "language", language);
    set(env, result, "seconds", number(env, view.seconds));
    set(env, result, "segments", segments);
    tercet_free(task->result);
    return result;
}

// transcribe(recognizer, path or samples, options) -> Promise<object>
static napi_value transcribe(napi_env env, napi_callback_info info) {
    ARGUMENTS(3);
    NEW_TASK(execute_transcribe, finish_transcribe);
    TercetTranscribeOptions *options = &task->transcribe;
    size_t seed = 0;
    task->handle = handle_of(env, arguments[0]);
    task->text = text_of(env, task, arguments[1], NULL);
    options->struct_size = sizeof *options;
    if (task->text == NULL) {
        napi_typedarray_type type;
        napi_value buffer = NULL;
        void *samples = NULL;
        size_t count = 0, offset = 0;
        if (napi_get_typedarray_info(env, arguments[1], &type, &count, &samples, &buffer, &offset) != napi_ok ||
            type != napi_float32_array) {
            REFUSE("expected a path, or samples as a Float32Array");
        }
        task->samples = own(task, malloc(count * sizeof(float) + 1));
        if (task->samples == NULL) {
            REFUSE("memory is not sufficient");
        }
        if (count > 0) {
            memcpy(task->samples, samples, count * sizeof(float));
        }
        task->sample_count = count;
    }
    if (!read_text(env, task, arguments[2], "language", &options->language) ||
        !read_flag(env, arguments[2], "translate", &options->translate) ||
        !read_flag(env, arguments[2], "timestamps", &options->timestamps) ||
        !read_flag(env, arguments[2], "conditionOnPrevious", &options->condition_on_previous) ||
        !read_flag(env, arguments[2], "withoutFallback", &options->without_fallback) ||
        !read_size(env, arguments[2], "seed", &seed)) {
        REFUSE("an option has the wrong type; index.d.ts lists the options");
    }
    options->seed = seed;
    return start(env, task, NULL);
}

NAPI_MODULE_INIT() {
    if (tercet_abi_version() != TERCET_ABI_VERSION) {
        napi_throw_error(env, NULL, "the library of Tercet has another binary interface; build the package again");
        return NULL;
    }
    const napi_property_descriptor functions[] = {
        {"version", NULL, version, NULL, NULL, NULL, napi_enumerable, NULL},
        {"liveHandles", NULL, live_handles, NULL, NULL, NULL, napi_enumerable, NULL},
        {"free", NULL, free_handle, NULL, NULL, NULL, napi_enumerable, NULL},
        {"devices", NULL, devices, NULL, NULL, NULL, napi_enumerable, NULL},
        {"openDevice", NULL, open_device, NULL, NULL, NULL, napi_enumerable, NULL},
        {"openSession", NULL, open_session, NULL, NULL, NULL, napi_enumerable, NULL},
        {"ports", NULL, ports, NULL, NULL, NULL, napi_enumerable, NULL},
        {"run", NULL, run, NULL, NULL, NULL, napi_enumerable, NULL},
        {"openGenerator", NULL, open_generator, NULL, NULL, NULL, napi_enumerable, NULL},
        {"generate", NULL, generate, NULL, NULL, NULL, napi_enumerable, NULL},
        {"stop", NULL, stop, NULL, NULL, NULL, napi_enumerable, NULL},
        {"openEmbedder", NULL, open_embedder, NULL, NULL, NULL, napi_enumerable, NULL},
        {"embed", NULL, embed, NULL, NULL, NULL, napi_enumerable, NULL},
        {"embedderInfo", NULL, embedder_info, NULL, NULL, NULL, napi_enumerable, NULL},
        {"openRecognizer", NULL, open_recognizer, NULL, NULL, NULL, napi_enumerable, NULL},
        {"transcribe", NULL, transcribe, NULL, NULL, NULL, napi_enumerable, NULL},
    };
    napi_define_properties(env, exports, sizeof functions / sizeof *functions, functions);
    return exports;
}
