/*
 * The C API of Tercet. Generated from crates/tercet-c by cbindgen; do not edit.
 *
 * Status and errors. A function that can fail returns a TercetStatus and takes `TercetError **error` last, which may
 * be NULL. After a failure, `*error` is a new error to read with `tercet_error_message` and to free with `tercet_free`.
 * After a success it is NULL. A failed call has no effect, and its results are NULL or zero. No panic leaves the
 * library: it becomes TERCET_STATUS_INTERNAL.
 *
 * Handles. All handles are opaque and freed with `tercet_free`. They are numbers that the library looks up, so a handle
 * that was freed, freed twice, or is of another type is TERCET_STATUS_HANDLE, never undefined behaviour.
 *
 * Pointers. Pointers to memory of the caller are NULL where that is allowed, or valid during the call for as many
 * elements as the call says. Texts are UTF-8 with a zero byte at the end. Memory that the library returns belongs to a
 * handle, is constant, and is valid until that handle is freed.
 *
 * Options. Options start with `struct_size`, and all other fields zero are the defaults:
 * `TercetGenerateOptions options = {.struct_size = sizeof options};`. Later versions add fields at the end.
 *
 * Threads. All functions can be called from all threads at once. Calls that use one session, generator, embedder or
 * recognizer wait for each other. A thread that calls the library needs 2 MiB of stack. After `fork`, a child process
 * must not call the library.
 */


#ifndef TERCET_H
#define TERCET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * Version of the binary interface. Programs that were compiled for a version run with every library of that version.
 * New functions, status codes and option fields do not change it.
 */
#define TERCET_ABI_VERSION 1

/**
 * The result of a call. Later versions may add codes.
 */
enum TercetStatus
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * The call succeeded.
   */
  TERCET_STATUS_OK = 0,
  /**
   * A pointer that must not be NULL is NULL.
   */
  TERCET_STATUS_NULL = 1,
  /**
   * A handle was freed, is not from this library, or is of another type.
   */
  TERCET_STATUS_HANDLE = 2,
  /**
   * An argument is invalid: a number out of range, an unknown constant, options that exclude each other.
   */
  TERCET_STATUS_ARGUMENT = 3,
  /**
   * A text is not UTF-8.
   */
  TERCET_STATUS_UTF8 = 4,
  /**
   * The device is unknown, not in this build, or not on this machine.
   */
  TERCET_STATUS_DEVICE = 5,
  /**
   * A graph in text form is invalid.
   */
  TERCET_STATUS_GRAPH = 6,
  /**
   * The device cannot run the graph.
   */
  TERCET_STATUS_COMPILE = 7,
  /**
   * A tensor has another dtype, shape or number of bytes than expected.
   */
  TERCET_STATUS_TYPE = 8,
  /**
   * A name is unknown, or a required one is missing: an input, output, parameter or state.
   */
  TERCET_STATUS_NAME = 9,
  /**
   * A run failed, for example because an index is out of range or the device was lost.
   */
  TERCET_STATUS_RUN = 10,
  /**
   * A model file is invalid, or of another kind.
   */
  TERCET_STATUS_MODEL = 11,
  /**
   * A file or a model does not exist.
   */
  TERCET_STATUS_NOT_FOUND = 12,
  /**
   * The model or this build does not support what was asked for.
   */
  TERCET_STATUS_UNSUPPORTED = 13,
  /**
   * Memory is not sufficient.
   */
  TERCET_STATUS_MEMORY = 14,
  /**
   * A callback called a function of the same handle.
   */
  TERCET_STATUS_BUSY = 15,
  /**
   * A callback asked to stop, and there is no partial result.
   */
  TERCET_STATUS_CANCELLED = 16,
  /**
   * A bug in Tercet; the message has the details.
   */
  TERCET_STATUS_INTERNAL = 17,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum TercetStatus TercetStatus;
#else
typedef int32_t TercetStatus;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Element types. Functions take them as `int32_t`, so that an unknown number is an error.
 */
enum TercetDtype
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * No dtype: unknown, or the default of an option.
   */
  TERCET_DTYPE_NONE = 0,
  /**
   * IEEE 754 binary32.
   */
  TERCET_DTYPE_F32 = 1,
  /**
   * IEEE 754 binary16.
   */
  TERCET_DTYPE_F16 = 2,
  /**
   * The upper half of a binary32.
   */
  TERCET_DTYPE_BF16 = 3,
  /**
   * IEEE 754 binary64.
   */
  TERCET_DTYPE_F64 = 4,
  /**
   * 32-bit signed integer.
   */
  TERCET_DTYPE_I32 = 5,
  /**
   * 32-bit unsigned integer.
   */
  TERCET_DTYPE_U32 = 6,
  /**
   * 64-bit signed integer.
   */
  TERCET_DTYPE_I64 = 7,
  /**
   * 8-bit signed integer.
   */
  TERCET_DTYPE_I8 = 8,
  /**
   * 8-bit unsigned integer.
   */
  TERCET_DTYPE_U8 = 9,
  /**
   * One byte, 0 or 1.
   */
  TERCET_DTYPE_BOOL = 10,
  /**
   * 16-bit signed integer.
   */
  TERCET_DTYPE_I16 = 11,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum TercetDtype TercetDtype;
#else
typedef int32_t TercetDtype;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Roles of the values of a session. Functions take them as `int32_t`.
 */
enum TercetRole
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * Given to each run.
   */
  TERCET_ROLE_INPUT = 0,
  /**
   * Computed by each run.
   */
  TERCET_ROLE_OUTPUT = 1,
  /**
   * Set once, before the first run.
   */
  TERCET_ROLE_PARAM = 2,
  /**
   * Persists between runs.
   */
  TERCET_ROLE_STATE = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum TercetRole TercetRole;
#else
typedef int32_t TercetRole;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Why a generation ended.
 */
enum TercetFinish
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * The model ended the text.
   */
  TERCET_FINISH_END = 0,
  /**
   * A stop text was generated.
   */
  TERCET_FINISH_STOP = 1,
  /**
   * The maximum number of tokens was reached.
   */
  TERCET_FINISH_LENGTH = 2,
  /**
   * The context is full.
   */
  TERCET_FINISH_CONTEXT = 3,
  /**
   * The callback or `tercet_generator_stop` stopped it.
   */
  TERCET_FINISH_CANCELLED = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum TercetFinish TercetFinish;
#else
typedef int32_t TercetFinish;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * A device that compiles and runs graphs and models.
 */
typedef struct TercetDevice TercetDevice;

/**
 * The devices of this machine.
 */
typedef struct TercetDeviceList TercetDeviceList;

/**
 * A compiled sentence encoder with its tokenizer.
 */
typedef struct TercetEmbedder TercetEmbedder;

/**
 * An error with its status and message.
 */
typedef struct TercetError TercetError;

/**
 * A generated text.
 */
typedef struct TercetGeneration TercetGeneration;

/**
 * A compiled language model with its tokenizer.
 */
typedef struct TercetGenerator TercetGenerator;

/**
 * A compiled speech recognition model.
 */
typedef struct TercetRecognizer TercetRecognizer;

/**
 * A compiled graph with its parameters and states, or an ONNX model.
 */
typedef struct TercetSession TercetSession;

/**
 * A tensor on the host: dtype, shape and elements, which never change.
 */
typedef struct TercetTensor TercetTensor;

/**
 * A transcript with its segments.
 */
typedef struct TercetTranscript TercetTranscript;

/**
 * A device in a list. The texts are valid until the list is freed.
 */
typedef struct {
  /**
   * Name for `tercet_device_open`.
   */
  const char *name;
  /**
   * Description, or the reason why the device cannot be used.
   */
  const char *description;
  /**
   * Whether the device can be used.
   */
  bool usable;
  /**
   * Whether this is a GPU emulated on the CPU: correct, but slow.
   */
  bool emulated;
} TercetDeviceInfo;

/**
 * Options of opening a language model or an encoder. All zeros, except `struct_size`, are the defaults.
 */
typedef struct {
  /**
   * `sizeof(TercetModelOptions)`.
   */
  size_t struct_size;
  /**
   * Maximum tokens of prompt and answer, or of a text to embed; 0 for the model's maximum, as far as memory allows.
   */
  size_t context;
  /**
   * A TercetDtype of floats to compute in; TERCET_DTYPE_NONE for f32 with matmul inputs in 16 bits where that is
   * faster.
   */
  int32_t dtype;
  /**
   * Must be 0.
   */
  int32_t reserved;
} TercetModelOptions;

/**
 * Options of an embedding call. All zeros, except `struct_size`, are the defaults.
 */
typedef struct {
  /**
   * `sizeof(TercetEmbedOptions)`.
   */
  size_t struct_size;
  /**
   * If not 0, texts that are too long are truncated; otherwise they are an error.
   */
  int32_t truncate;
  /**
   * Must be 0.
   */
  int32_t reserved;
} TercetEmbedOptions;

/**
 * Called on the thread of the call, after each batch, with the number of texts that are done. The call stops if it
 * returns false. It must not throw or jump out of the call, or call functions of the same handle.
 */
typedef bool (*TercetProgressCallback)(size_t done, size_t total, void *user);

/**
 * Options of a generation. All zeros, except `struct_size`, are the defaults: greedy decoding until the model ends the
 * text or the context is full.
 */
typedef struct {
  /**
   * `sizeof(TercetGenerateOptions)`.
   */
  size_t struct_size;
  /**
   * Maximum number of tokens to generate; 0 for no limit but the context.
   */
  size_t max_tokens;
  /**
   * Divisor of the logits; 0 for greedy decoding.
   */
  double temperature;
  /**
   * Keeps only this number of most likely tokens; 0 keeps all.
   */
  size_t top_k;
  /**
   * Keeps the smallest set of tokens with at least this total probability; 0 and 1 keep all.
   */
  double top_p;
  /**
   * Minimum probability relative to the most likely token; 0 keeps all.
   */
  double min_p;
  /**
   * Repetition penalty; 0 and 1 disable it.
   */
  double repetition_penalty;
  /**
   * Subtracted from the logit of each token that was generated before.
   */
  double presence_penalty;
  /**
   * Subtracted from the logit of a token once for each time it was generated.
   */
  double frequency_penalty;
  /**
   * Seed of sampling.
   */
  uint64_t seed;
  /**
   * Texts that end the generation and are not part of the result; NULL if `stop_count` is 0.
   */
  const char *const *stop;
  /**
   * Number of texts in `stop`.
   */
  size_t stop_count;
  /**
   * JSON schema that the text must match, or NULL. At most one of the three constraints may be set.
   */
  const char *json_schema;
  /**
   * Regular expression that the whole text must match, or NULL.
   */
  const char *regex;
  /**
   * Grammar of the text in GBNF or Lark notation, or NULL.
   */
  const char *grammar;
  /**
   * If not 0, the tokens that end a text are ignored.
   */
  int32_t ignore_end;
  /**
   * Must be 0.
   */
  int32_t reserved;
} TercetGenerateOptions;

/**
 * Progress of a generation. The text is valid during the callback.
 */
typedef struct {
  /**
   * New text, UTF-8 in whole characters with a zero byte at the end; empty while the prompt is processed.
   */
  const char *text;
  /**
   * Bytes of the text, without the zero byte.
   */
  size_t text_bytes;
  /**
   * Number of tokens of the prompt.
   */
  size_t prompt_tokens;
  /**
   * Number of tokens of the prompt that are processed.
   */
  size_t prompt_done;
  /**
   * Number of generated tokens.
   */
  size_t tokens;
} TercetGenerateEvent;

/**
 * Called on the thread of the call, after each part of the prompt and each token. Generation stops if it returns
 * false. It must not throw or jump out of the call. It may call the library, except functions of the same generator
 * other than `tercet_generator_stop`.
 */
typedef bool (*TercetGenerateCallback)(const TercetGenerateEvent *event, void *user);

/**
 * A message of a conversation.
 */
typedef struct {
  /**
   * "system", "developer", "user", "assistant" or "tool".
   */
  const char *role;
  /**
   * Text of the message.
   */
  const char *content;
} TercetMessage;

/**
 * The contents of a generation. The pointers are valid until the generation is freed.
 */
typedef struct {
  /**
   * The text, UTF-8 with a zero byte at the end.
   */
  const char *text;
  /**
   * Bytes of the text, without the zero byte.
   */
  size_t text_bytes;
  /**
   * Ids of the generated tokens.
   */
  const uint32_t *tokens;
  /**
   * Number of generated tokens.
   */
  size_t token_count;
  /**
   * Number of tokens of the prompt.
   */
  size_t prompt_tokens;
  /**
   * A TercetFinish.
   */
  int32_t finish;
} TercetGenerationView;

/**
 * Options of a transcription. All zeros, except `struct_size`, are the defaults.
 */
typedef struct {
  /**
   * `sizeof(TercetTranscribeOptions)`.
   */
  size_t struct_size;
  /**
   * Language code such as "en"; NULL detects the language.
   */
  const char *language;
  /**
   * If not 0, the text is translated to English.
   */
  int32_t translate;
  /**
   * If not 0, segments have times from the model.
   */
  int32_t timestamps;
  /**
   * If not 0, each window is prompted with the text before it.
   */
  int32_t condition_on_previous;
  /**
   * If not 0, windows are decoded greedily once; otherwise poor ones again at higher temperatures.
   */
  int32_t without_fallback;
  /**
   * Seed of the higher temperatures.
   */
  uint64_t seed;
} TercetTranscribeOptions;

/**
 * A segment of a transcript.
 */
typedef struct {
  /**
   * Start in seconds.
   */
  double start;
  /**
   * End in seconds.
   */
  double end;
  /**
   * Text, UTF-8 with a zero byte at the end.
   */
  const char *text;
} TercetSegment;

/**
 * Progress of a transcription. The pointers are valid during the callback.
 */
typedef struct {
  /**
   * Seconds of audio that are done.
   */
  double done;
  /**
   * Total seconds of audio.
   */
  double seconds;
  /**
   * Segments that are new since the last call.
   */
  const TercetSegment *segments;
  /**
   * Number of new segments.
   */
  size_t segment_count;
} TercetTranscribeEvent;

/**
 * Called on the thread of the call, after each window of audio. The transcription stops if it returns false, and the
 * transcript has the segments so far. It must not throw or jump out of the call, or call functions of the same handle.
 */
typedef bool (*TercetTranscribeCallback)(const TercetTranscribeEvent *event, void *user);

/**
 * The contents of a transcript. The pointers are valid until the transcript is freed.
 */
typedef struct {
  /**
   * The whole text, UTF-8 with a zero byte at the end.
   */
  const char *text;
  /**
   * Language code; NULL for models of one language.
   */
  const char *language;
  /**
   * Length of the audio in seconds.
   */
  double seconds;
  /**
   * Segments in order.
   */
  const TercetSegment *segments;
  /**
   * Number of segments.
   */
  size_t segment_count;
} TercetTranscriptView;

/**
 * Maximum size of a symbol of a graph, such as the number of rows.
 */
typedef struct {
  /**
   * Name of the symbol.
   */
  const char *symbol;
  /**
   * Maximum size.
   */
  size_t max;
} TercetBound;

/**
 * Name and type of a value of a session. The pointers are valid until the session is freed.
 */
typedef struct {
  /**
   * Name.
   */
  const char *name;
  /**
   * Type as text, such as "f32[rows, 3]".
   */
  const char *type_text;
  /**
   * A TercetDtype; TERCET_DTYPE_NONE if the file does not tell it or tensors do not have it.
   */
  int32_t dtype;
  /**
   * Number of axes; -1 if the file does not tell it.
   */
  int32_t rank;
  /**
   * Sizes, outermost first; -1 for a symbol or an unknown size. NULL if the rank is -1.
   */
  const int64_t *sizes;
  /**
   * Whether a run may leave out the input, because the file has a default.
   */
  bool optional;
} TercetPort;

/**
 * A tensor with the name of an input.
 */
typedef struct {
  /**
   * Name of the input.
   */
  const char *name;
  /**
   * The tensor, which the call does not free.
   */
  const TercetTensor *tensor;
} TercetNamedTensor;

/**
 * Called once, on any thread, when the library no longer reads borrowed memory.
 */
typedef void (*TercetReleaseCallback)(void *user);

/**
 * The contents of a tensor. The pointers are valid until the tensor is freed.
 */
typedef struct {
  /**
   * A TercetDtype.
   */
  int32_t dtype;
  /**
   * Number of axes.
   */
  size_t rank;
  /**
   * Sizes of the axes, outermost first.
   */
  const size_t *shape;
  /**
   * Elements in row-major order, aligned for the dtype.
   */
  const void *data;
  /**
   * Number of bytes of the elements.
   */
  size_t bytes;
} TercetTensorView;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Version of the library, such as "0.2.0": a text that stays valid.
 */
const char *tercet_version(void);

/**
 * `TERCET_ABI_VERSION` of the library. A program should compare it with that of its header.
 */
uint32_t tercet_abi_version(void);

/**
 * Frees any handle. NULL is allowed and has no effect.
 *
 * Memory that was read from the handle becomes invalid. Calls of other threads that use the handle complete first or
 * fail with TERCET_STATUS_HANDLE; both are safe.
 *
 * Returns TERCET_STATUS_HANDLE, without any effect, if the handle was already freed or is not a handle.
 */
TercetStatus tercet_free(const void *handle);

/**
 * Number of live handles of the process, to find leaks in tests.
 */
size_t tercet_live_handles(void);

/**
 * Lists the devices of this machine, best first. Free the list with `tercet_free`.
 */
TercetStatus tercet_devices(TercetDeviceList **list, TercetError **error);

/**
 * Reads a list of devices: `*devices` points to `*count` elements, which are valid until the list is freed.
 */
TercetStatus tercet_device_list_read(const TercetDeviceList *list,
                                     const TercetDeviceInfo **devices,
                                     size_t *count,
                                     TercetError **error);

/**
 * Opens a device by name: "auto" (also for NULL) for the best one, "cpu", or a name of `tercet_devices` such as
 * "vulkan" or "vulkan:1". No device falls back to another.
 *
 * Errors: TERCET_STATUS_DEVICE with the known names, the missing feature or hardware.
 *
 * Threads: a device can be used by several threads at once. Free it with `tercet_free`; sessions and models that use
 * it keep what they need.
 */
TercetStatus tercet_device_open(const char *name,
                                TercetDevice **device,
                                TercetError **error);

/**
 * Name of the executor of a device, such as "cpu": a text that is valid until the device is freed. NULL if `device` is
 * not a live device.
 */
const char *tercet_device_name(const TercetDevice *device);

/**
 * Opens a sentence encoder: a Hugging Face folder, a GGUF file, or the name of a model in a local cache. `options` may
 * be NULL; its `context` is the maximum number of tokens of a text.
 *
 * Errors: those of `tercet_generator_open`.
 *
 * Threads: calls of one embedder wait for each other. Free it with `tercet_free`.
 */
TercetStatus tercet_embedder_open(const TercetDevice *device,
                                  const char *path,
                                  const TercetModelOptions *options,
                                  TercetEmbedder **embedder,
                                  TercetError **error);

/**
 * Number of elements of an embedding; 0 if `embedder` is not a live embedder.
 */
size_t tercet_embedder_width(const TercetEmbedder *embedder);

/**
 * Maximum tokens of a text; 0 if `embedder` is not a live embedder.
 */
size_t tercet_embedder_max_tokens(const TercetEmbedder *embedder);

/**
 * Embeds texts: `*tensor` gets a new tensor of F32 and shape `[text_count, width]`, with rows of unit length if the
 * model normalizes. `options`, `callback` and `user` may be NULL. Free the tensor with `tercet_free`.
 *
 * Errors: TERCET_STATUS_ARGUMENT for a text that is too long, TERCET_STATUS_CANCELLED if the callback returned false,
 * TERCET_STATUS_BUSY in a callback of the same embedder.
 */
TercetStatus tercet_embed(const TercetEmbedder *embedder,
                          const char *const *texts,
                          size_t text_count,
                          const TercetEmbedOptions *options,
                          TercetProgressCallback callback,
                          void *user,
                          TercetTensor **tensor,
                          TercetError **error);

/**
 * Status of an error; TERCET_STATUS_HANDLE if `error` is not a live error.
 */
TercetStatus tercet_error_status(const TercetError *error);

/**
 * Message of an error in one line: what is wrong, where, and how to fix it. The text is valid until the error is
 * freed. Returns a fixed text if `error` is not a live error.
 */
const char *tercet_error_message(const TercetError *error);

/**
 * Name of a status, such as "TERCET_STATUS_OK": a text that stays valid. "unknown status" for other numbers.
 */
const char *tercet_status_name(int32_t status);

/**
 * Opens a language model: a GGUF file, a Hugging Face folder, or the name of a model in a local cache. `options` may
 * be NULL. The weights stay mapped from the files, which must not change while the generator lives.
 *
 * Errors: TERCET_STATUS_NOT_FOUND, TERCET_STATUS_MODEL for an invalid file or another kind of model,
 * TERCET_STATUS_UNSUPPORTED, TERCET_STATUS_MEMORY if the requested context does not fit.
 *
 * Threads: generations of one generator wait for each other; open several for parallel ones. Free it with
 * `tercet_free`.
 */
TercetStatus tercet_generator_open(const TercetDevice *device,
                                   const char *path,
                                   const TercetModelOptions *options,
                                   TercetGenerator **generator,
                                   TercetError **error);

/**
 * Maximum tokens of prompt and answer of a generator; 0 if `generator` is not a live generator.
 */
size_t tercet_generator_context(const TercetGenerator *generator);

/**
 * Generates text after a prompt and blocks until it is complete. Special tokens that the prompt spells are recognized.
 * Each call starts with an empty context.
 *
 * `options` may be NULL. `callback` gets the text piece by piece with `user`; it may be NULL. `generation` gets the
 * whole text; it may be NULL. Free the generation with `tercet_free`.
 *
 * Errors: TERCET_STATUS_ARGUMENT for options out of range or a prompt that exceeds the context,
 * TERCET_STATUS_BUSY in a callback of the same generator.
 */
TercetStatus tercet_generate(const TercetGenerator *generator,
                             const char *prompt,
                             const TercetGenerateOptions *options,
                             TercetGenerateCallback callback,
                             void *user,
                             TercetGeneration **generation,
                             TercetError **error);

/**
 * Generates the answer to a conversation. The chat template of the model formats the messages (ChatML if the model has
 * none). Special tokens that messages spell are ordinary text. All else is as for `tercet_generate`.
 *
 * Errors: those of `tercet_generate`; TERCET_STATUS_ARGUMENT for an unknown role or no message,
 * TERCET_STATUS_MODEL if the template fails.
 */
TercetStatus tercet_chat(const TercetGenerator *generator,
                         const TercetMessage *messages,
                         size_t message_count,
                         const TercetGenerateOptions *options,
                         TercetGenerateCallback callback,
                         void *user,
                         TercetGeneration **generation,
                         TercetError **error);

/**
 * Stops the generation that runs on a generator, which then returns its text so far with TERCET_FINISH_CANCELLED.
 * Without a running generation there is no effect.
 *
 * Threads: any thread may call it at any time, and a callback too.
 */
TercetStatus tercet_generator_stop(const TercetGenerator *generator,
                                   TercetError **error);

/**
 * Reads a generation.
 */
TercetStatus tercet_generation_read(const TercetGeneration *generation,
                                    TercetGenerationView *view,
                                    TercetError **error);

/**
 * Opens a speech recognition model: a Hugging Face folder, or the name of a model in a local cache.
 *
 * Errors: those of `tercet_generator_open`.
 *
 * Threads: calls of one recognizer wait for each other. Free it with `tercet_free`.
 */
TercetStatus tercet_recognizer_open(const TercetDevice *device,
                                    const char *path,
                                    TercetRecognizer **recognizer,
                                    TercetError **error);

/**
 * Transcribes mono samples at 16,000 Hz, nominally in [-1, 1]. `options`, `callback` and `user` may be NULL. Free the
 * transcript with `tercet_free`.
 *
 * Errors: TERCET_STATUS_MODEL for samples that are not finite, no audio, or options that the model does not support,
 * TERCET_STATUS_BUSY in a callback of the same recognizer.
 */
TercetStatus tercet_transcribe(const TercetRecognizer *recognizer,
                               const float *samples,
                               size_t sample_count,
                               const TercetTranscribeOptions *options,
                               TercetTranscribeCallback callback,
                               void *user,
                               TercetTranscript **transcript,
                               TercetError **error);

/**
 * Transcribes a WAV, FLAC or MP3 file. All else is as for `tercet_transcribe`.
 *
 * Errors: those of `tercet_transcribe`; TERCET_STATUS_NOT_FOUND, TERCET_STATUS_MODEL for an invalid file.
 */
TercetStatus tercet_transcribe_file(const TercetRecognizer *recognizer,
                                    const char *path,
                                    const TercetTranscribeOptions *options,
                                    TercetTranscribeCallback callback,
                                    void *user,
                                    TercetTranscript **transcript,
                                    TercetError **error);

/**
 * Reads a transcript.
 */
TercetStatus tercet_transcript_read(const TercetTranscript *transcript,
                                    TercetTranscriptView *view,
                                    TercetError **error);

/**
 * Compiles a graph in text form, `length` bytes of UTF-8 at `text`, for a device. `bounds` are maximum sizes of the
 * symbols of its shapes; each symbol needs one. NULL is allowed if `bound_count` is 0.
 *
 * Errors: TERCET_STATUS_GRAPH with line and column, TERCET_STATUS_COMPILE with every unsupported node.
 *
 * Threads: calls of one session wait for each other; different sessions run in parallel. Free the session with
 * `tercet_free`.
 */
TercetStatus tercet_session_from_text(const TercetDevice *device,
                                      const char *text,
                                      size_t length,
                                      const TercetBound *bounds,
                                      size_t bound_count,
                                      TercetSession **session,
                                      TercetError **error);

/**
 * Opens an ONNX model in memory, `length` bytes at `data`, which are copied. `bounds` are maximum sizes of its
 * symbols, for which the model is compiled once; without one, it is compiled for the next power of two of a size.
 *
 * Errors: TERCET_STATUS_MODEL with all unsupported nodes.
 *
 * Threads: as `tercet_session_from_text`.
 */
TercetStatus tercet_session_from_onnx(const TercetDevice *device,
                                      const void *data,
                                      size_t length,
                                      const TercetBound *bounds,
                                      size_t bound_count,
                                      TercetSession **session,
                                      TercetError **error);

/**
 * Opens a file: a graph in text form (`.tercet`) or an ONNX model (`.onnx`). External data of the model is found
 * relative to it. All else is as for `tercet_session_from_text` and `tercet_session_from_onnx`.
 *
 * Errors: those of these functions; TERCET_STATUS_NOT_FOUND, TERCET_STATUS_ARGUMENT for another extension.
 */
TercetStatus tercet_session_open(const TercetDevice *device,
                                 const char *path,
                                 const TercetBound *bounds,
                                 size_t bound_count,
                                 TercetSession **session,
                                 TercetError **error);

/**
 * Lists the values of a session with a role, a TercetRole: `*ports` points to `*count` elements in declared order,
 * which are valid until the session is freed.
 */
TercetStatus tercet_session_ports(const TercetSession *session,
                                  int32_t role,
                                  const TercetPort **ports,
                                  size_t *count,
                                  TercetError **error);

/**
 * Runs a session on inputs by name, in any order.
 *
 * `outputs` are the names of the wanted outputs, and `results` gets one new tensor for each, in the same order. With
 * `outputs` NULL, `results` gets all outputs in declared order, and `output_count` must be their number. Free each
 * tensor with `tercet_free`. If the call fails, all results are NULL.
 *
 * Errors: TERCET_STATUS_NAME for unknown or missing names, TERCET_STATUS_TYPE for a dtype or shape that the input does
 * not have, TERCET_STATUS_RUN with the node that failed. States are unchanged after an error.
 *
 * Threads: calls of one session wait for each other.
 */
TercetStatus tercet_session_run(const TercetSession *session,
                                const TercetNamedTensor *inputs,
                                size_t input_count,
                                const char *const *outputs,
                                size_t output_count,
                                TercetTensor **results,
                                TercetError **error);

/**
 * Sets a parameter for all later runs. The session shares the memory of the tensor, which may be freed.
 *
 * Errors: TERCET_STATUS_NAME, TERCET_STATUS_TYPE; TERCET_STATUS_UNSUPPORTED for ONNX models.
 */
TercetStatus tercet_session_set_param(const TercetSession *session,
                                      const char *name,
                                      const TercetTensor *tensor,
                                      TercetError **error);

/**
 * Replaces the contents of a state by a copy of a tensor.
 *
 * Errors: those of `tercet_session_set_param`.
 */
TercetStatus tercet_session_write_state(const TercetSession *session,
                                        const char *name,
                                        const TercetTensor *tensor,
                                        TercetError **error);

/**
 * Copies the contents of a state to a new tensor.
 *
 * Errors: those of `tercet_session_set_param`.
 */
TercetStatus tercet_session_read_state(const TercetSession *session,
                                       const char *name,
                                       TercetTensor **tensor,
                                       TercetError **error);

/**
 * Sets the seed of random numbers, from the next run on.
 *
 * Errors: TERCET_STATUS_UNSUPPORTED for ONNX models.
 */
TercetStatus tercet_session_set_seed(const TercetSession *session,
                                     uint64_t seed,
                                     TercetError **error);

/**
 * Sets every state to zeros, and the counter of random numbers to 0.
 *
 * Errors: TERCET_STATUS_UNSUPPORTED for ONNX models.
 */
TercetStatus tercet_session_reset(const TercetSession *session, TercetError **error);

/**
 * Bytes of one element; 0 if `dtype` is not a TercetDtype.
 */
size_t tercet_dtype_size(int32_t dtype);

/**
 * Name of a dtype in the text form, such as "f32": a text that stays valid; "none" for other numbers.
 */
const char *tercet_dtype_name(int32_t dtype);

/**
 * Creates a tensor with a copy of `bytes` bytes at `data`: the elements in row-major order, of any alignment. `shape`
 * has `rank` sizes; with rank 0 the tensor is a scalar, and `shape` may be NULL.
 *
 * Errors: TERCET_STATUS_ARGUMENT for an unknown dtype or rank, TERCET_STATUS_TYPE if `bytes` is not the size of the
 * type, TERCET_STATUS_MEMORY.
 *
 * Threads: several threads can use a tensor at once. Free it with `tercet_free`.
 */
TercetStatus tercet_tensor_new(int32_t dtype,
                               const size_t *shape,
                               size_t rank,
                               const void *data,
                               size_t bytes,
                               TercetTensor **tensor,
                               TercetError **error);

/**
 * Creates a tensor over memory of the caller without a copy. The memory must stay valid and unchanged until the
 * library calls `release` with `user`: after the tensor was freed, and after the last session that has it as a
 * parameter. With `release` NULL, the memory must stay valid and unchanged until then.
 *
 * Elements that are not aligned for the dtype, and booleans, are copied, and `release` may be called at once. If the
 * call fails, `release` is not called.
 *
 * Errors and threads: those of `tercet_tensor_new`.
 */
TercetStatus tercet_tensor_borrow(int32_t dtype,
                                  const size_t *shape,
                                  size_t rank,
                                  const void *data,
                                  size_t bytes,
                                  TercetReleaseCallback release,
                                  void *user,
                                  TercetTensor **tensor,
                                  TercetError **error);

/**
 * Reads a tensor.
 *
 * Errors: TERCET_STATUS_HANDLE, TERCET_STATUS_NULL.
 */
TercetStatus tercet_tensor_read(const TercetTensor *tensor,
                                TercetTensorView *view,
                                TercetError **error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TERCET_H */
