/* SPDX-License-Identifier: Apache-2.0
 * check.h - what a sample does when something is not as it says: a sentence on standard error, and exit status 1.
 */
#ifndef CHECK_H
#define CHECK_H
#include <npu.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every call can fail, and says why. */
#define CHECK(call) check((call), #call)
static inline void check(npu_result_t result, const char *call)
{
    npu_error_detail_t detail = {.size = sizeof detail};

    if (result == NPU_SUCCESS)
        return;
    fprintf(stderr, "%.*s: %s", (int)strcspn(call, "("), call, npu_get_error_string(result));
    if (npu_get_last_error_detail(&detail) == NPU_SUCCESS && detail.result == result)
        fprintf(stderr, " (%s)", detail.message);
    fprintf(stderr, "\n");
    exit(1);
}

/* What the sample claims to show, checked. */
#define CLAIM(condition, sentence)                                \
    do {                                                          \
        if (!(condition)) {                                       \
            fprintf(stderr, "this is not so: %s\n", (sentence));  \
            exit(1);                                              \
        }                                                         \
    } while (0)

/* The host's position on the device's clock, in microseconds. */
static inline double now_us(void)
{
    uint64_t time_ps = 0;

    CHECK(npu_get_time_ps(&time_ps));
    return (double)time_ps * 1e-6;
}

#endif
