/* expect.h - what the programs here share: each call says which result it must have.
 *
 * A call with another result is reported on standard error, and the program goes on; `finish()` is its exit status. Every program is run
 * with a folder of blobs as its argument (blobs.py): load(name) loads one, kernel_of(name) its only kernel.
 */
#ifndef EXPECT_H
#define EXPECT_H
#include "ledger.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BAD ((void *)16)                         /* an address that no process has */
#define MADE_UP(type) ((type)(uintptr_t)0x12345) /* a handle that nobody gave out */

static int failures;
static const char *blob_folder;

static inline npu_result_t expect_result(npu_result_t found, npu_result_t wanted, const char *call, const char *file, int line)
{
    if (!compared(found, wanted)) {
        npu_error_detail_t detail = {.size = sizeof detail};
        const char *why = found < NPU_TIMEOUT && compared(npu_get_last_error_detail(&detail), NPU_SUCCESS) ? detail.message : "";
        failures++;
        fprintf(stderr, "%s:%d: %s gave %s, not %s: %s\n", file, line, call, npu_get_error_name(found), npu_get_error_name(wanted), why);
    }
    return found;
}
#define expect(result, call) expect_result((call), (result), #call, __FILE__, __LINE__)
#define OK(call) expect(NPU_SUCCESS, call)

/* Whether a call has this result, for loops: when it has another, the program compares that one with `expect`. */
static inline int is(npu_result_t wanted, npu_result_t found)
{
    return found == wanted && compared(found, wanted);
}

/* A statement about what was computed or written. */
#define claim(truth) ((truth) ? (void)0 : (void)(failures++, fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #truth)))

static inline void begin(char **argv)
{
    blob_folder = argv[1];
    if (OK(npu_init(NPU_INIT_CHECK)) != NPU_SUCCESS)
        exit(1);
}

static inline int finish(void)
{
    OK(npu_shutdown());
    return failures != 0;
}

static inline const char *blob_path(const char *name)
{
    static char path[4096];

    snprintf(path, sizeof path, "%s/%s.blob", blob_folder, name);
    return path;
}

static inline npu_blob_t load(const char *name)
{
    npu_blob_t blob = NULL;

    OK(npu_load_blob(&blob, blob_path(name)));
    return blob;
}

static inline npu_kernel_t kernel_of(npu_blob_t blob)
{
    npu_kernel_t kernel = NULL;

    OK(npu_get_kernel(&kernel, blob, NULL));
    return kernel;
}

static inline void *allocate(size_t size)
{
    void *memory = NULL;

    OK(npu_malloc(&memory, size, 0));
    return memory;
}

static inline npu_stream_t new_stream(void)
{
    npu_stream_t stream = NULL;

    OK(npu_create_stream(&stream));
    return stream;
}

/* A handle that was valid. */
static inline npu_stream_t stale_stream(void)
{
    npu_stream_t stream = new_stream();

    OK(npu_destroy_stream(stream));
    return stream;
}

/* Device memory that was freed. */
static inline void *stale_memory(size_t size)
{
    void *memory = allocate(size);

    OK(npu_free(memory));
    return memory;
}
#endif
