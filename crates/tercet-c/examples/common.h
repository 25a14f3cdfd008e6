// What the examples share: a check of each call.
#ifndef COMMON_H
#define COMMON_H

#include <stdio.h>
#include <stdlib.h>

#include "tercet.h"

// Prints the error of a failed call and ends the program.
static inline void check(TercetStatus status, TercetError *error) {
    if (status == TERCET_STATUS_OK) {
        return;
    }
    fprintf(stderr, "%s: %s\n", tercet_status_name(status), tercet_error_message(error));
    tercet_free(error);
    exit(1);
}

// Opens the device of the environment variable TERCET_DEVICE, or the CPU.
static inline TercetDevice *open_device(void) {
    const char *name = getenv("TERCET_DEVICE");
    TercetDevice *device = NULL;
    TercetError *error = NULL;
    check(tercet_device_open(name != NULL ? name : "cpu", &device, &error), error);
    return device;
}

// Ends a program: nothing may be left.
static inline int finish(void) {
    size_t left = tercet_live_handles();
    if (left != 0) {
        fprintf(stderr, "%zu handles were not freed\n", left);
    }
    return left != 0;
}

#endif
