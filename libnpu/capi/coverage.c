/* SPDX-License-Identifier: Apache-2.0
 * coverage.c - which results of which functions a process has seen: for tests, off unless NPU_COVERAGE names a file.
 *
 * A line "function result" is appended there when a pair comes for the first time, so that nothing is lost however the process ends.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "library.h"

enum { PAIRS = 4096 }; /* more than npu.h has; what comes when it is full is written again and again */

static int file = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { const char *function; npu_result_t result; } seen[PAIRS];
static int seen_count;

__attribute__((constructor)) static void open_file(void)
{
    const char *path = secure_getenv("NPU_COVERAGE");

    if (path != NULL)
        file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
}

void npu_note(const char *function, npu_result_t result)
{
    char line[128];
    int i = 0;

    if (file < 0)
        return;
    pthread_mutex_lock(&lock);
    while (i < seen_count && (seen[i].function != function || seen[i].result != result))
        i++;
    if (i == seen_count) {
        if (seen_count < PAIRS) {
            seen[i].function = function;
            seen[i].result = result;
            seen_count++;
        }
        if (write(file, line, (size_t)snprintf(line, sizeof line, "%s %s\n", function, npu_get_error_name(result))) < 0)
            file = -1;
    }
    pthread_mutex_unlock(&lock);
}
