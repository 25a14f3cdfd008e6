// Prints the segments of a recording.
//
//   transcribe MODEL AUDIO

#include "common.h"

static bool print_segments(const TercetTranscribeEvent *event, void *user) {
    (void)user;
    for (size_t at = 0; at < event->segment_count; ++at) {
        const TercetSegment *segment = &event->segments[at];
        printf("[%.2f - %.2f]%s\n", segment->start, segment->end, segment->text);
    }
    return true;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: transcribe MODEL AUDIO\n");
        return 2;
    }
    TercetError *error = NULL;
    TercetDevice *device = open_device();
    TercetRecognizer *recognizer = NULL;
    check(tercet_recognizer_open(device, argv[1], &recognizer, &error), error);
    TercetTranscribeOptions options = {.struct_size = sizeof options, .without_fallback = 1};
    TercetTranscript *transcript = NULL;
    check(tercet_transcribe_file(recognizer, argv[2], &options, print_segments, NULL, &transcript, &error), error);
    TercetTranscriptView view;
    check(tercet_transcript_read(transcript, &view, &error), error);
    printf("%.1f s, %zu segments\n", view.seconds, view.segment_count);
    tercet_free(transcript);
    tercet_free(recognizer);
    tercet_free(device);
    return finish();
}
