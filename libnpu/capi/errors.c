/* SPDX-License-Identifier: Apache-2.0
 * errors.c - the last error of each thread, and the functions of npu.h that need no Python.
 */
#include <string.h>

#include "library.h"

static __thread npu_error_detail_t detail; /* of the thread's last error */
static __thread npu_result_t last;
struct call { const char *function, *shown; uint64_t site, enqueue_site, job_id; char message[sizeof detail.message]; };
static __thread struct call calls[2]; /* the thread's, and the one of a signal's handler that has interrupted it */

static struct call *current(void) { return &calls[npu_calls() > 1]; }

static void set_text(char *field, size_t size, const char *text)
{
    size_t length = strnlen(text, size - 1);
    memcpy(field, text, length);
    memset(field + length, 0, size - length);
}

static void begin(const char *function, void *call_site)
{
    struct call *call = current();
    call->function = function;
    call->shown = strcmp(function, "npu_submit_kernel_sized") == 0 ? "npu_submit_kernel" : function; /* npu.h's macro */
    call->site = (uintptr_t)call_site;
    call->enqueue_site = call->job_id = 0;
    call->message[0] = 0;
}

static npu_result_t end(npu_result_t result)
{
    const struct call *call = current();
    npu_note(call->function, result);
    if (result >= NPU_TIMEOUT)
        return result;
    last = result;
    detail.size = sizeof detail;
    detail.result = result;
    detail.call_site = call->site;
    detail.enqueue_site = call->enqueue_site;
    detail.job_id = call->job_id;
    set_text(detail.function, sizeof detail.function, call->shown);
    set_text(detail.message, sizeof detail.message, call->message[0] ? call->message : npu_get_error_string(result));
    return result;
}

npu_result_t npu_enter(struct npu_shield *shield, const char *function, void *call_site, int starts)
{
    const char *reason;

    npu_raise_shield(shield);
    begin(function, call_site);
    if (npu_forked()) {
        npu_set_error("this process was forked from the one that uses the library; start the library after fork", 0, 0);
        return NPU_ERROR_NOT_PERMITTED;
    }
    if (npu_calls() > 1) { /* which has the locks that this one would wait for */
        npu_set_error("a signal's handler, or an exit out of one, has interrupted a call of this thread", 0, 0);
        return NPU_ERROR_NOT_PERMITTED;
    }
    reason = starts ? npu_start() : npu_obstacle();
    if (reason == NULL)
        return NPU_SUCCESS;
    npu_set_error(reason, 0, 0);
    return NPU_ERROR_NOT_INITIALIZED;
}

npu_result_t npu_leave(const struct npu_shield *shield, npu_result_t result)
{
    end(result);
    npu_lower_shield(shield);
    return result;
}

void npu_set_error(const char *message, uint64_t enqueue_site, uint64_t job_id)
{
    struct call *call = current();
    set_text(call->message, sizeof call->message, message);
    call->enqueue_site = enqueue_site;
    call->job_id = job_id;
}

uint64_t npu_call_site(void)
{
    return current()->site;
}

npu_result_t npu_get_last_error(void)
{
    npu_result_t result = last;
    npu_note(__func__, NPU_SUCCESS);
    last = NPU_SUCCESS;
    return result;
}

npu_result_t npu_peek_last_error(void)
{
    npu_note(__func__, NPU_SUCCESS);
    return last;
}

static const struct npu_result_text *find(npu_result_t result)
{
    for (size_t i = 0; i < npu_result_text_count; i++)
        if (npu_result_texts[i].result == result)
            return &npu_result_texts[i];
    return NULL;
}

const char *npu_get_error_name(npu_result_t result)
{
    const struct npu_result_text *found = find(result);
    return found ? found->name : "unknown";
}

const char *npu_get_counter_name(size_t index)
{
    return index < npu_counter_count ? npu_counter_names[index] : "unknown";
}

const char *npu_get_error_string(npu_result_t result)
{
    const struct npu_result_text *found = find(result);
    return found ? found->text : "unknown result";
}

static npu_result_t copy_detail(npu_error_detail_t *out)
{
    uint32_t size;

    /* A mistake here must not replace the error that the caller asks about, so `end` is not used. */
    if (out == NULL)
        return NPU_ERROR_NULL_POINTER;
    if (npu_copy_from_user(&size, (uintptr_t)&out->size, sizeof size) < 0)
        return NPU_ERROR_BAD_ADDRESS;
    if (size != sizeof detail)
        return NPU_ERROR_INVALID_SIZE;
    detail.size = sizeof detail;
    return npu_copy_to_user((uintptr_t)out, &detail, sizeof detail) < 0 ? NPU_ERROR_BAD_ADDRESS : NPU_SUCCESS;
}

npu_result_t npu_get_last_error_detail(npu_error_detail_t *out)
{
    npu_result_t result = copy_detail(out);
    npu_note(__func__, result);
    return result;
}

npu_result_t npu_get_version(uint32_t *version)
{
    uint32_t value = NPU_VERSION_MAJOR << 16 | NPU_VERSION_MINOR;

    begin(__func__, __builtin_return_address(0));
    if (version == NULL)
        return end(NPU_ERROR_NULL_POINTER);
    return end(npu_copy_to_user((uintptr_t)version, &value, sizeof value) < 0 ? NPU_ERROR_BAD_ADDRESS : NPU_SUCCESS);
}
