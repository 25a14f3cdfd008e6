// Streams text of a language model: two generators on two threads, a stop from another thread, and a chat.
//
//   generate MODEL [PROMPT]

#include <pthread.h>
#include <string.h>

#include "common.h"

typedef struct {
    TercetDevice *device;
    const char *path;
    const char *prompt;
    char text[4096];
} Job;

static bool print_piece(const TercetGenerateEvent *event, void *user) {
    (void)user;
    fwrite(event->text, 1, event->text_bytes, stdout);
    fflush(stdout);
    return true;
}

// Stops after four tokens.
static bool stop_early(const TercetGenerateEvent *event, void *user) {
    TercetGenerator *generator = user;
    if (event->tokens == 4) {
        tercet_generator_stop(generator, NULL);
    }
    // A call of the own generator is an error, not a deadlock.
    if (tercet_generate(generator, "x", NULL, NULL, NULL, NULL, NULL) != TERCET_STATUS_BUSY) {
        fprintf(stderr, "a generator was called from its own callback\n");
        exit(1);
    }
    return true;
}

static void *write_text(void *argument) {
    Job *job = argument;
    TercetError *error = NULL;
    TercetGenerator *generator = NULL;
    check(tercet_generator_open(job->device, job->path, NULL, &generator, &error), error);
    TercetGenerateOptions options = {.struct_size = sizeof options, .max_tokens = 24};
    TercetGeneration *generation = NULL;
    check(tercet_generate(generator, job->prompt, &options, NULL, NULL, &generation, &error), error);
    TercetGenerationView view;
    check(tercet_generation_read(generation, &view, &error), error);
    snprintf(job->text, sizeof job->text, "%s", view.text);
    tercet_free(generation);
    tercet_free(generator);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: generate MODEL [PROMPT]\n");
        return 2;
    }
    TercetError *error = NULL;
    TercetDevice *device = open_device();
    const char *prompt = argc > 2 ? argv[2] : "fn main";

    TercetGenerator *generator = NULL;
    TercetModelOptions model = {.struct_size = sizeof model, .context = 256};
    check(tercet_generator_open(device, argv[1], &model, &generator, &error), error);
    TercetGenerateOptions options = {.struct_size = sizeof options, .max_tokens = 24};
    TercetGeneration *generation = NULL;
    TercetGenerationView view;
    printf("%s", prompt);
    check(tercet_generate(generator, prompt, &options, print_piece, NULL, &generation, &error), error);
    check(tercet_generation_read(generation, &view, &error), error);
    printf("\n-- %zu tokens after %zu, finish %d\n", view.token_count, view.prompt_tokens, view.finish);
    char *first = strdup(view.text);
    tercet_free(generation);

    // The same text on two threads.
    Job jobs[2] = {{device, argv[1], prompt, ""}, {device, argv[1], prompt, ""}};
    pthread_t threads[2];
    for (int at = 0; at < 2; ++at) {
        pthread_create(&threads[at], NULL, write_text, &jobs[at]);
    }
    for (int at = 0; at < 2; ++at) {
        pthread_join(threads[at], NULL);
        if (strcmp(jobs[at].text, first) != 0) {
            fprintf(stderr, "thread %d wrote another text: %s\n", at, jobs[at].text);
            return 1;
        }
    }
    free(first);

    check(tercet_generate(generator, prompt, NULL, stop_early, generator, &generation, &error), error);
    check(tercet_generation_read(generation, &view, &error), error);
    if (view.finish != TERCET_FINISH_CANCELLED || view.token_count != 4) {
        fprintf(stderr, "stopped after %zu tokens, finish %d\n", view.token_count, view.finish);
        return 1;
    }
    tercet_free(generation);

    TercetMessage message = {"user", "What is a lifetime?"};
    options.temperature = 0.8;
    options.seed = 7;
    options.top_p = 0.9;
    options.regex = "[a-z ]{8}";
    check(tercet_chat(generator, &message, 1, &options, NULL, NULL, &generation, &error), error);
    check(tercet_generation_read(generation, &view, &error), error);
    printf("chat: %s\n", view.text);
    if (view.text_bytes != 8) {
        fprintf(stderr, "the answer does not match the regular expression\n");
        return 1;
    }
    tercet_free(generation);
    tercet_free(generator);
    tercet_free(device);
    return finish();
}
