/* SPDX-License-Identifier: Apache-2.0
 * stress.c - random valid and invalid calls of every function of npu.h, from a seed.
 *
 *     stress SEED CALLS THREADS BLOBS [TRACE]
 *
 * Each thread has handles and memory of its own, live and dead ones, and shares others that main makes before; any thread may destroy those. It prints
 * one line for each thread, a digest of all results and outputs, and then what is left: a context in which something is left cannot be destroyed.
 * With TRACE, a path, parts of the device's trace go to TRACE.1 ... TRACE.8. All that depends on where the system puts memory stays out of the digest.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <inttypes.h>
#include <npu.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define BAD ((void *)16) /* an address that no process has */
enum { SLOTS = 5, SHARED = 12, PAGES = 4, MAX_THREADS = 8, HOST_BYTES = 8192, PARTS = 8 };
enum kind { STREAM, EVENT, NOTIFY, BLOB, KERNEL, CMDLIST, GRAPH, EXEC, CONTEXT, MEMORY, PINNED, REGISTERED, MAPPING, KINDS };

struct slot {
    void *value;     /* what C has of it */
    int live;
    int context;     /* slot of its context, -1: the primary one */
    void *parent;    /* what it ends with: memory of a mapping, blob of a kernel */
};
struct thread {
    uint64_t state, digest;
    int current;     /* slot of its current context */
    int index, calls, successes, strange;
    struct slot slots[KINDS][SLOTS];
    void *dead[KINDS][SLOTS];
    unsigned char *regions;    /* SLOTS * PAGES pages that can be registered */
    char host[HOST_BYTES];
    void *out[4];
    npu_op_record_t records[4];
    pthread_t id;
};

static struct thread threads[MAX_THREADS];
static int thread_count, calls_each;
static const char *blob_folder, *trace_path;
static struct slot shared[KINDS][SHARED];
static void *read_only;
static char blob_names[4][512];

static uint64_t next(struct thread *t, uint64_t bound)
{
    t->state = t->state * 6364136223846793005u + 1442695040888963407u;
    return (t->state >> 33) % bound;
}

static void note(struct thread *t, uint64_t value)
{
    t->digest = (t->digest ^ value) * 1099511628211u;
}

/* ---- arguments ------------------------------------------------------------------------------------- */

static void *odd(struct thread *t)
{
    switch (next(t, 5)) {
    case 0: return NULL;
    case 1: return BAD;
    case 2: return t->host + next(t, 64);
    case 3: return (void *)(uintptr_t)(t->state * 0x9e3779b97f4a7c15u);
    default: return read_only;
    }
}

/* Something of a kind: mostly live, sometimes dead, another's, or made up. */
static void *any(struct thread *t, enum kind kind)
{
    uint64_t choice = next(t, 100), slot = next(t, SLOTS);
    if (choice < 80) {
        int here = choice < 65 && kind != CONTEXT; /* in the current context */
        for (int i = 0; i < SLOTS; i++, slot = (slot + 1) % SLOTS)
            if (t->slots[kind][slot].live && (!here || t->slots[kind][slot].context == t->current))
                return t->slots[kind][slot].value;
        return kind == STREAM ? NULL : t->dead[kind][slot];
    }
    if (choice < 87)
        return shared[kind][next(t, SHARED)].value;
    if (choice < 92)
        return t->dead[kind][slot];
    if (choice < 95)
        return t->slots[next(t, KINDS)][slot].value;
    if (choice < 96) /* a generation that has not come yet; another thread may be the one whom it comes to */
        return (char *)t->slots[kind][slot].value + ((uint64_t)1 << (thread_count == 1 ? 32 : 62));
    return kind == STREAM && choice == 96 ? NULL : odd(t);
}

/* Something to destroy. An address that was freed may have become another thread's memory, which stays. */
static void *victim(struct thread *t, enum kind kind)
{
    void *value = any(t, kind);
    if (thread_count == 1 || kind < MEMORY)
        return value;
    for (int i = 0; i < SLOTS; i++)
        if (t->slots[kind][i].live && t->slots[kind][i].value == value)
            return value;
    for (int i = t->index; i < SHARED; i += thread_count) /* of what is shared, each thread has its part to free */
        if (shared[kind][i].live && shared[kind][i].value == value)
            return value;
    return t->host;
}

/* Memory: a place in a buffer of any kind, pageable memory, or what is no memory. */
static char *place(struct thread *t)
{
    static const enum kind kinds[] = {MEMORY, MEMORY, MEMORY, MEMORY, PINNED, PINNED, REGISTERED, MAPPING};
    if (next(t, 4) == 0)
        return t->host + next(t, 4096);
    char *found = any(t, kinds[next(t, 8)]);
    return found == NULL || next(t, 3) == 0 ? found : found + next(t, 8) * 128;
}

static uint64_t size(struct thread *t) { return next(t, 10) ? next(t, 6000) : next(t, 2) ? UINT64_MAX - next(t, 3) : 0; }
static void *output(struct thread *t) { return next(t, 16) ? t->out : odd(t) == NULL ? NULL : next(t, 2) ? BAD : read_only; }
static uint32_t flags(struct thread *t) { return next(t, 10) ? 0 : (uint32_t)next(t, 5); }

static void arguments(struct thread *t, npu_arg_t args[3])
{
    static uint32_t kinds[] = {NPU_ARG_BUFFER, NPU_ARG_BUFFER, NPU_ARG_BUFFER, NPU_ARG_BUFFER, NPU_ARG_INT, NPU_ARG_FLOAT, 7};
    for (int i = 0; i < 3; i++) {
        void *memory = next(t, 4) ? any(t, MEMORY) : place(t);
        args[i] = (npu_arg_t){next(t, 3) ? NPU_ARG_BUFFER : kinds[next(t, 7)], next(t, 40) == 0, (uintptr_t)memory};
        if (args[i].kind == NPU_ARG_BUFFER && next(t, 2))
            args[i].value = (args[i].value & ~(uint64_t)4095) + 64 * next(t, 8);
        if (args[i].kind != NPU_ARG_BUFFER)
            args[i].value = next(t, 64);
    }
}

/* ---- what is made, and what goes --------------------------------------------------------------------- */

static struct slot *room(struct thread *t, enum kind kind)
{
    for (int i = 0; i < SLOTS; i++)
        if (!t->slots[kind][i].live)
            return &t->slots[kind][i];
    return NULL;
}

static int context_of(struct thread *t, void *stream)
{
    for (int i = 0; i < SLOTS; i++)
        if (stream != NULL && t->slots[STREAM][i].value == stream)
            return t->slots[STREAM][i].context;
    return stream == NULL ? t->current : -1; /* main makes what is shared in the primary context */
}

static void made(struct slot *slot, void *value, int context, void *parent) { *slot = (struct slot){value, 1, context, parent}; }

static void end(struct thread *t, enum kind kind, struct slot *slot)
{
    if (!slot->live)
        return;
    slot->live = 0;
    t->dead[kind][next(t, SLOTS)] = slot->value;
    for (int i = 0; i < SLOTS; i++) {
        if (kind == MEMORY && t->slots[MAPPING][i].parent == slot->value)
            end(t, MAPPING, &t->slots[MAPPING][i]);
        if (kind == BLOB && t->slots[KERNEL][i].parent == slot->value)
            end(t, KERNEL, &t->slots[KERNEL][i]);
    }
}

static void gone(struct thread *t, enum kind kind, void *value)
{
    for (int i = 0; i < SLOTS; i++)
        if (t->slots[kind][i].live && t->slots[kind][i].value == value)
            end(t, kind, &t->slots[kind][i]);
    for (int i = t->index; i < SHARED; i += thread_count)
        if (shared[kind][i].value == value)
            shared[kind][i].live = 0;
}

static void context_gone(struct thread *t, int context)
{
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < SLOTS; i++)
            if (kind != CONTEXT && t->slots[kind][i].context == context)
                end(t, kind, &t->slots[kind][i]);
    if (context >= 0)
        end(t, CONTEXT, &t->slots[CONTEXT][context]);
    if (t->current == context)
        t->current = -1;
}

static void count(void *counter) { ++*(int *)counter; }

/* ---- one call ---------------------------------------------------------------------------------------- */

#define MAKE(kind, call, owner, whose) \
    do { \
        struct slot *slot = room(t, kind); \
        void *where = output(t); \
        if (slot == NULL) \
            return NPU_SUCCESS; \
        r = (call); \
        if (r == NPU_SUCCESS) \
            made(slot, t->out[0], owner, whose); \
    } while (0)
#define DROP(kind, call) \
    do { \
        void *value = victim(t, kind); \
        r = (call); \
        if (r == NPU_SUCCESS) \
            gone(t, kind, value); \
    } while (0)

static npu_result_t call_memory(struct thread *t)
{
    npu_result_t r = NPU_SUCCESS;
    npu_pointer_attributes_t attributes = {.size = next(t, 9) ? sizeof attributes : 4};
    npu_memcpy_kind_t kind = next(t, 3) ? NPU_MEMCPY_DEFAULT : (npu_memcpy_kind_t)next(t, 7);
    uint64_t n = size(t), m = next(t, 3) ? next(t, n % 900 + 1) : size(t), p = next(t, 300), q = next(t, 300), w = next(t, 200), h = next(t, 12);
    if (next(t, 2)) { /* rows that fit */
        w %= 30;
        p = q = w + next(t, 9);
        h %= 8;
    }
    void *s, *a, *b;

    switch (next(t, 30)) {
    case 0: case 1: MAKE(MEMORY, npu_malloc(where, n, flags(t)), t->current, NULL); break;
    case 2: DROP(MEMORY, npu_free(value)); break;
    case 3: { /* frees also when earlier work has failed */
        void *value = victim(t, MEMORY);
        r = npu_free_sync(value);
        if (r == NPU_SUCCESS || r <= NPU_ERROR_DEVICE_PAGE_FAULT)
            gone(t, MEMORY, value);
        break;
    }
    case 4: s = any(t, STREAM); MAKE(MEMORY, npu_malloc_async(where, n, s), context_of(t, s), NULL); break;
    case 5: s = any(t, STREAM); DROP(MEMORY, npu_free_async(value, s)); break;
    case 6: r = npu_mem_get_info(output(t), output(t)); break;
    case 7:
        r = npu_pointer_get_attributes(next(t, 9) ? &attributes : odd(t), place(t));
        note(t, attributes.kind ^ attributes.size_bytes);
        break;
    case 8: case 9: MAKE(PINNED, npu_malloc_host(where, n, flags(t)), t->current, NULL); break;
    case 10: DROP(PINNED, npu_free_host(value)); break;
    case 11: {
        struct slot *slot = room(t, REGISTERED);
        unsigned char *region = t->regions + (slot ? slot - t->slots[REGISTERED] : 0) * PAGES * 4096;
        if (slot == NULL)
            break;
        if (next(t, 4) == 0)
            region = any(t, next(t, 2) ? PINNED : REGISTERED);
        r = npu_host_register(region, next(t, 9) ? 4096 * (1 + next(t, PAGES)) : n, flags(t));
        if (r == NPU_SUCCESS)
            made(slot, region, t->current, NULL);
        break;
    }
    case 12: DROP(REGISTERED, npu_host_unregister(value)); break;
    case 13: r = npu_host_get_device_pointer(output(t), place(t), flags(t)); break;
    case 14: a = any(t, MEMORY); b = next(t, 3) ? a : place(t);
        MAKE(MAPPING, npu_map(where, b, next(t, 300), (npu_direction_t)next(t, 4)), t->current, a); break;
    case 15: DROP(MAPPING, npu_unmap(value)); break;
    case 16: r = npu_flush(any(t, next(t, 2) ? PINNED : MAPPING), p, q); break;
    case 17: r = npu_invalidate(any(t, next(t, 2) ? REGISTERED : MAPPING), p, q); break;
    case 18: case 19: a = place(t); b = place(t); r = npu_memcpy(a, n, b, m, kind); break;
    case 20: a = place(t); r = npu_memset(a, n, (int32_t)m, m); break;
    case 21: a = place(t); b = place(t); r = npu_memcpy_2d(a, p, n, b, q, w, h, kind); break;
    case 22: a = place(t); b = place(t); r = npu_memcpy_peer(a, n, b, m); break;
    case 23: case 24: case 25: a = place(t); b = place(t); r = npu_memcpy_async(a, n, b, m, kind, any(t, STREAM)); break;
    case 26: case 27: a = place(t); b = place(t); r = npu_memcpy_2d_async(a, p, n, b, q, w, h, kind, any(t, STREAM)); break;
    default: a = place(t); r = npu_memset_async(a, n, (int32_t)m, m, any(t, STREAM)); break;
    }
    return r;
}

static npu_result_t call_stream(struct thread *t)
{
    npu_result_t r = NPU_SUCCESS;
    void *s = any(t, STREAM), *e = any(t, EVENT), *n = any(t, NOTIFY);
    npu_priority_t priority = (npu_priority_t)(next(t, 9) ? 1 + next(t, 4) : next(t, 7));

    switch (next(t, 26)) {
    case 0: MAKE(STREAM, npu_create_stream(where), t->current, NULL); break;
    case 1: MAKE(STREAM, npu_create_stream_with_priority(where, flags(t), priority), t->current, NULL); break;
    case 2: DROP(STREAM, npu_destroy_stream(value));
        if (r <= NPU_ERROR_DEVICE_PAGE_FAULT) /* it is gone all the same, unless the error is an older one */
            for (int i = 0; i < SLOTS; i++) {
                struct slot *slot = &t->slots[STREAM][i];
                uint64_t id;
                if (slot->live && npu_get_stream_id(slot->value, &id) == NPU_ERROR_STALE_HANDLE)
                    end(t, STREAM, slot);
            }
        break;
    case 3: r = npu_synchronize_stream(s); break;
    case 4: r = npu_synchronize_stream_timeout(s, next(t, 9) ? next(t, 100000) : size(t)); break;
    case 5: r = npu_query_stream(s); break;
    case 6: r = npu_get_stream_id(s, output(t)); break;
    case 7: r = npu_stream_add_host_function(s, next(t, 9) ? count : NULL, &t->strange); break;
    case 8: r = next(t, 4) ? NPU_SUCCESS : npu_stream_set_failure_mode(s, (npu_failure_mode_t)(next(t, 6) ? 0 : next(t, 3))); break;
    case 9: case 10: r = npu_stream_abort(s); break;
    case 11: MAKE(EVENT, npu_create_event(where, flags(t)), t->current, NULL); break;
    case 12: DROP(EVENT, npu_destroy_event(value)); break;
    case 13: case 14: r = npu_record_event(e, s); break;
    case 15: r = npu_stream_wait_event(s, e); break;
    case 16: r = npu_reset_event(e, s); break;
    case 17: r = npu_synchronize_event(e); break;
    case 18: r = npu_synchronize_event_timeout(e, next(t, 100000)); break;
    case 19: r = npu_query_event(e); break;
    case 20: r = npu_event_elapsed_time(output(t), e, any(t, EVENT)); break;
    case 21: r = npu_event_get_timestamp(output(t), e); break;
    case 22: MAKE(NOTIFY, npu_create_notify(where, flags(t)), t->current, NULL); break;
    case 23: DROP(NOTIFY, npu_destroy_notify(value)); break;
    case 24: r = npu_record_notify(n, s); break;
    default: /* whether nobody is left who could record depends on the moment, so several threads record first */
        r = thread_count > 1 ? npu_record_notify(n, s) : NPU_SUCCESS;
        if (r == NPU_SUCCESS)
            r = npu_wait_notify(n, s);
        break;
    }
    return r;
}

static npu_result_t call_kernel(struct thread *t)
{
    static const char *const builtins[] = {"relu", "copy", "add", "none"};
    npu_result_t r = NPU_SUCCESS;
    npu_arg_t args[3];
    npu_arg_info_t info = {.size = next(t, 9) ? sizeof info : 4};
    npu_kernel_info_t kernel_info = {.size = next(t, 9) ? sizeof kernel_info : 4};
    kernel_params_t params = {(uint64_t)place(t), (uint64_t)place(t), (uint64_t)place(t), 1, (uint32_t)next(t, 3), (uint32_t)next(t, 9), (uint32_t)next(t, 9)};
    void *s = any(t, STREAM), *k = any(t, KERNEL), *l = any(t, CMDLIST), *b = any(t, BLOB);
    const char *name = builtins[next(t, 4)];
    uint32_t n = (uint32_t)(next(t, 9) ? 2 : next(t, 4));

    arguments(t, args);
    if (next(t, 8))
        npu_get_num_args(k, &n);
    switch (next(t, 24)) {
    case 0: MAKE(BLOB, npu_load_blob(where, next(t, 9) ? blob_names[next(t, 12) ? next(t, 2) : 2 + (next(t, 4) == 0)] : odd(t)), t->current, NULL); break;
    case 1: MAKE(BLOB, npu_load_blob_mem(where, t->host, next(t, 4096)), t->current, NULL); break;
    case 2: DROP(BLOB, npu_unload(value)); break;
    case 3: r = npu_blob_get_log(next(t, 2) ? NULL : b, next(t, 3) ? t->host : odd(t), next(t, 600), output(t)); break;
    case 4: case 5: MAKE(KERNEL, npu_get_kernel(where, b, next(t, 4) ? NULL : odd(t)), t->current, b); break;
    case 6: MAKE(KERNEL, npu_get_builtin_kernel(where, next(t, 9) ? name : odd(t)), t->current, NULL); break;
    case 7: r = npu_get_kernel_info(k, next(t, 9) ? &kernel_info : odd(t)); break;
    case 8: r = npu_get_num_args(k, output(t)); break;
    case 9: r = npu_get_arg_info(k, (uint32_t)next(t, 4), next(t, 9) ? &info : odd(t)); break;
    case 10: case 11: case 12: case 13: r = npu_launch_kernel_async(k, next(t, 20) ? args : odd(t), n, s); break;
    case 14: r = npu_launch_kernel_grid_async(k, (uint32_t)next(t, 5), args, n + (uint32_t)next(t, 2), s); break;
    case 15: r = npu_submit_kernel(name, &params); break;
    case 16: r = npu_submit_kernel_sized(next(t, 9) ? name : odd(t), next(t, 9) ? &params : odd(t), next(t, 9) ? sizeof params : next(t, 99), (uint32_t)next(t, 3)); break;
    case 17: MAKE(CMDLIST, npu_cmdlist_create(where, flags(t)), t->current, NULL); break;
    case 18: r = npu_cmdlist_append_kernel(l, k, args, n); break;
    case 19: { void *dst = place(t), *src = place(t); r = npu_cmdlist_append_memcpy(l, dst, size(t), src, next(t, 3000), NPU_MEMCPY_DEFAULT); break; }
    case 20: { void *dst = place(t); r = npu_cmdlist_append_memset(l, dst, size(t), 1, next(t, 3000)); break; }
    case 21: r = next(t, 3) ? npu_cmdlist_close(l) : npu_cmdlist_reset(l); break;
    case 22: r = npu_cmdlist_submit(l, s); break;
    default: DROP(CMDLIST, npu_cmdlist_destroy(value)); break;
    }
    return r;
}

static npu_result_t call_graph(struct thread *t)
{
    npu_result_t r = NPU_SUCCESS;
    void *s = any(t, STREAM), *g = any(t, GRAPH), *x = any(t, EXEC);
    npu_overflow_t overflows[2];
    static const char *const bad_paths[] = {"/dev/full", "/none/trace", NULL, BAD};

    switch (next(t, 16)) {
    case 0: r = npu_stream_begin_capture(s); break;
    case 1: case 2: case 3: MAKE(GRAPH, npu_stream_end_capture(s, where), context_of(t, s), NULL); break;
    case 4: r = npu_stream_is_capturing(s, output(t)); break;
    case 5: r = npu_graph_get_node_count(g, output(t)); break;
    case 6: MAKE(EXEC, npu_graph_instantiate(where, g), t->current, NULL); break;
    case 7: r = npu_graph_launch(x, s); break;
    case 8: r = npu_graph_update(x, g); break;
    case 9: DROP(GRAPH, npu_graph_destroy(value)); break;
    case 10: DROP(EXEC, npu_graph_exec_destroy(value)); break;
    case 11: r = next(t, 3) ? npu_profiler_start() : npu_profiler_stop(); break;
    case 12: r = npu_get_op_records(next(t, 3) ? t->records : odd(t), next(t, 4), output(t)); break;
    case 13: r = npu_get_counters(next(t, 3) ? (uint64_t *)t->out + 1 : odd(t), next(t, 3), output(t)); break;
    case 14: r = next(t, 9) ? NPU_SUCCESS : npu_export_trace(bad_paths[next(t, 4)]); break;
    default: r = npu_get_overflows(next(t, 3) ? overflows : odd(t), next(t, 3), output(t)); break;
    }
    return r;
}

static npu_result_t call_device(struct thread *t)
{
    npu_result_t r = NPU_SUCCESS;
    npu_device_properties_t properties = {.size = next(t, 9) ? sizeof properties : 4};
    npu_error_detail_t detail = {.size = next(t, 9) ? sizeof detail : 4};
    int chosen;

    switch (next(t, 26)) {
    case 0: r = npu_init(flags(t)); if (r == NPU_SUCCESS) r = npu_shutdown(); break;
    case 1: r = npu_get_version(output(t)); break;
    case 2: r = npu_set_semantics((npu_semantics_t)next(t, 4)); break;
    case 3: r = npu_get_semantics(output(t)); break;
    case 4: r = npu_get_device_count(output(t)); break;
    case 5: r = npu_set_device((uint32_t)next(t, 2) * 7); if (r == NPU_SUCCESS) t->current = -1; break;
    case 6: r = npu_get_device(output(t)); break;
    case 7: r = npu_get_device_properties(next(t, 9) ? &properties : odd(t), (uint32_t)next(t, 2)); break;
    case 8: r = npu_device_get_attribute(output(t), (npu_attribute_t)next(t, NPU_ATTR_COUNT + 1), (uint32_t)next(t, 2)); break;
    case 9: /* everybody's memory would go */
        if (thread_count == 1 && next(t, 20) == 0 && (r = npu_reset_device()) == NPU_SUCCESS)
            for (int i = -1; i < SLOTS; i++)
                context_gone(t, i);
        break;
    case 10: r = npu_synchronize_device(); break;
    case 11:
        if (next(t, 4)) {
            if (thread_count > 1)
                r = npu_synchronize_context();
            break;
        }
        MAKE(CONTEXT, npu_create_context(where, flags(t)), -1, NULL);
        if (r == NPU_SUCCESS) /* it is current now */
            for (int i = 0; i < SLOTS; i++)
                if (t->slots[CONTEXT][i].live && t->slots[CONTEXT][i].value == t->out[0])
                    t->current = i;
        break;
    case 12: {
        void *value = any(t, CONTEXT);
        r = npu_destroy_context(value, next(t, 8) ? 0 : (uint32_t)next(t, 3));
        for (int i = 0; r == NPU_SUCCESS && i < SLOTS; i++)
            if (t->slots[CONTEXT][i].live && t->slots[CONTEXT][i].value == value)
                context_gone(t, i);
        break;
    }
    case 13: case 14: {
        void *value = next(t, 3) ? any(t, CONTEXT) : NULL;
        r = npu_set_current_context(value);
        chosen = -1;
        for (int i = 0; i < SLOTS; i++)
            if (value != NULL && t->slots[CONTEXT][i].live && t->slots[CONTEXT][i].value == value)
                chosen = i;
        if (r == NPU_SUCCESS)
            t->current = chosen;
        break;
    }
    case 15: r = npu_get_current_context(output(t)); break;
    case 16: r = npu_synchronize_context(); break;
    case 17: r = npu_get_time_ps((uint64_t *)&t->out[2]); note(t, (uint64_t)(uintptr_t)t->out[2]); break;
    case 18: r = npu_host_delay(next(t, 9) ? next(t, 5000) : size(t)); break;
    case 19: r = npu_get_host_times(output(t), output(t)); break;
    case 20: {
        uint64_t schedule = next(t, 6);
        r = next(t, 4) || thread_count > 1 ? NPU_SUCCESS : npu_set_schedule((npu_schedule_kind_t)schedule, schedule == NPU_SCHED_SEED ? next(t, 9) : next(t, 9) == 0);
        break;
    }
    case 21: r = npu_is_reproducible(output(t)); break;
    case 22: r = next(t, 3) == 0 ? npu_team_enter(0) : next(t, 2) ? npu_team_leave() : npu_team_end(); break;
    case 23: r = npu_get_last_error_detail(next(t, 9) ? &detail : odd(t)); note(t, (uint64_t)detail.result); break;
    case 24: r = next(t, 2) ? npu_peek_last_error() : npu_get_last_error(); break;
    default: r = next(t, 4) ? npu_wait_for_completion_timeout(next(t, 50000)) : npu_wait_for_completion(); break;
    }
    return r;
}

static void one_call(struct thread *t)
{
    static npu_result_t (*const groups[])(struct thread *) = {call_memory, call_memory, call_memory, call_stream, call_stream, call_stream,
                                                              call_kernel, call_kernel, call_graph, call_device};
    npu_result_t r = groups[next(t, 10)](t);

    t->successes += r == NPU_SUCCESS;
    if (r == NPU_ERROR_INTERNAL || r == NPU_ERROR_UNIMPLEMENTED || strcmp(npu_get_error_name(r), "unknown") == 0) {
        npu_error_detail_t detail = {.size = sizeof detail};
        npu_get_last_error_detail(&detail);
        printf("thread %d: %s gave %d: %s\n", t->index, detail.function, r, detail.message);
    }
    note(t, (uint32_t)r);
}

/* ---- the end ------------------------------------------------------------------------------------------ */

/* Leave nothing captured and nothing in flight: both keep other threads' things. */
static void quiet(void *stream)
{
    npu_graph_t graph;
    if (npu_stream_end_capture(stream, &graph) == NPU_SUCCESS)
        npu_graph_destroy(graph);
    npu_stream_abort(stream);
}

/* Destroy everything of a thread, one by one, and then its contexts, which must have nothing left. */
static void clean(struct thread *t)
{
    static const enum kind order[] = {STREAM, EVENT, NOTIFY, EXEC, GRAPH, CMDLIST, KERNEL, BLOB, MAPPING, MEMORY, PINNED, REGISTERED};

    npu_set_device(0);
    for (int c = -1; c < SLOTS; c++) {
        if (c >= 0 && !t->slots[CONTEXT][c].live)
            continue;
        npu_set_current_context(c < 0 ? NULL : t->slots[CONTEXT][c].value);
        for (int i = 0; i < 1000 && npu_synchronize_context() != NPU_SUCCESS; i++)
            npu_stream_abort(NULL);
        for (size_t o = 0; o < sizeof order / sizeof order[0]; o++)
            for (int i = 0; i < SLOTS; i++) {
                struct slot *slot = &t->slots[order[o]][i];
                npu_result_t r = NPU_SUCCESS;
                if (!slot->live || slot->context != c)
                    continue;
                slot->live = 0;
                switch (order[o]) {
                case STREAM:
                    r = npu_destroy_stream(slot->value);
                    if (r <= NPU_ERROR_DEVICE_PAGE_FAULT)
                        r = NPU_SUCCESS;
                    break;
                case EVENT: r = npu_destroy_event(slot->value); break;
                case NOTIFY: /* a stream that was destroyed may wait for it */
                    for (int k = 0; k < 50 && (r = npu_destroy_notify(slot->value)) == NPU_ERROR_IN_USE; k++)
                        npu_record_notify(slot->value, NULL);
                    break;
                case EXEC: r = npu_graph_exec_destroy(slot->value); break;
                case GRAPH: r = npu_graph_destroy(slot->value); break;
                case CMDLIST: r = npu_cmdlist_destroy(slot->value); break;
                case BLOB: r = npu_unload(slot->value); break;
                case MAPPING: npu_unmap(slot->value); break; /* two may begin at one address */
                case MEMORY: r = npu_free(slot->value); break;
                case PINNED: r = npu_free_host(slot->value); break;
                case REGISTERED: r = npu_host_unregister(slot->value); break;
                default: break;
                }
                if (r != NPU_SUCCESS) {
                    npu_error_detail_t detail = {.size = sizeof detail};
                    npu_get_last_error_detail(&detail);
                    printf("thread %d: clean-up: %s gave %s: %s\n", t->index, detail.function, npu_get_error_name(r), detail.message);
                }
            }
    }
    npu_set_current_context(NULL);
    for (int c = 0; c < SLOTS; c++)
        if (t->slots[CONTEXT][c].live) {
            npu_result_t r = npu_destroy_context(t->slots[CONTEXT][c].value, 0);
            if (r != NPU_SUCCESS) {
                npu_error_detail_t detail = {.size = sizeof detail};
                npu_get_last_error_detail(&detail);
                printf("thread %d: destroy_context: %s: %s\n", t->index, npu_get_error_name(r), detail.message);
            }
        }
}

static int descriptors(void)
{
    int found = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder) != NULL)
        found++;
    closedir(folder);
    return found;
}

static void need(npu_result_t result, const char *what)
{
    if (result == NPU_SUCCESS)
        return;
    npu_error_detail_t detail = {.size = sizeof detail};
    npu_get_last_error_detail(&detail);
    printf("%s: %s: %s\n", what, npu_get_error_name(result), detail.message);
    exit(3);
}

static void make_shared(void)
{
    for (int i = 0; i < SHARED; i++) {
        need(npu_create_event((npu_event_t *)&shared[EVENT][i].value, 0), "event");
        need(npu_create_notify((npu_notify_t *)&shared[NOTIFY][i].value, 0), "notify");
        need(npu_create_stream((npu_stream_t *)&shared[STREAM][i].value), "stream");
        need(npu_malloc(&shared[MEMORY][i].value, 5000, 0), "memory");
        shared[MEMORY][i].live = 1;
    }
}

static void *work(void *argument)
{
    struct thread *t = argument;
    char name[16];

    snprintf(name, sizeof name, "stress %d", t->index);
    pthread_setname_np(pthread_self(), name);
    for (t->calls = 0; t->calls < calls_each; t->calls++) {
        one_call(t);
        if (trace_path != NULL && t->index == 0 && (t->calls + 1) % (calls_each / PARTS) == 0) {
            char path[512];
            snprintf(path, sizeof path, "%s.%d", trace_path, (t->calls + 1) / (calls_each / PARTS));
            npu_export_trace(path); /* with a fault, a reset may have been the last that there was */
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    uint64_t free_before, free_after, total;
    int descriptors_before;

    if (argc < 5)
        return 2;
    thread_count = atoi(argv[3]);
    calls_each = atoi(argv[2]) / thread_count;
    blob_folder = argv[4];
    trace_path = argc > 5 ? argv[5] : NULL;
    static const char *const names[] = {"copy", "long", "stuck", "fault"};
    for (int i = 0; i < 4; i++)
        snprintf(blob_names[i], sizeof blob_names[i], "%s/%s.blob", blob_folder, names[i]);
    read_only = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(npu_init(0), "init");
    need(npu_synchronize_device(), "boot");
    need(npu_mem_get_info(&free_before, &total), "memory");
    descriptors_before = descriptors();
    make_shared();
    for (int i = 0; i < thread_count; i++) {
        threads[i].index = i;
        threads[i].current = -1;
        threads[i].state = strtoull(argv[1], NULL, 10) * 1000 + (uint64_t)i;
        threads[i].digest = 14695981039346656037u;
        threads[i].regions = mmap(NULL, SLOTS * PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    if (thread_count == 1)
        work(&threads[0]);
    else {
        for (int i = 0; i < thread_count; i++)
            pthread_create(&threads[i].id, NULL, work, &threads[i]);
        for (int i = 0; i < thread_count; i++)
            pthread_join(threads[i].id, NULL);
    }
    for (int i = 0; i < thread_count; i++)
        printf("%016" PRIx64 " %d\n", threads[i].digest, threads[i].successes > calls_each / 10);
    npu_set_device(0);
    for (int i = 0; i < SHARED; i++)
        quiet(shared[STREAM][i].value);
    for (int i = 0; i < thread_count * SLOTS; i++)
        if (threads[i / SLOTS].slots[STREAM][i % SLOTS].live)
            quiet(threads[i / SLOTS].slots[STREAM][i % SLOTS].value);
    for (int i = 0; i < thread_count; i++)
        clean(&threads[i]);
    need(npu_reset_device(), "reset"); /* what is shared */
    need(npu_mem_get_info(&free_after, &total), "memory");
    printf("memory %" PRId64 "\n", (int64_t)(free_before - free_after));
    printf("descriptors %d\n", descriptors() - descriptors_before);
    need(npu_shutdown(), "shutdown");
    return 0;
}
