/* SPDX-License-Identifier: Apache-2.0
 * library.h - what the C parts of libnpu.so share. Not installed, nothing here is exported.
 *
 *   start.c    starts Python once and keeps it working in any environment
 *   shield.c   what of the program's state has no say inside a call
 *   errors.c   the last error of each thread, and the functions of npu.h that need no Python
 *   door.c     the only code that touches memory of the program that uses the library
 *   pages.c    which of the program's pages are guarded, and who was stopped there
 *   coverage.c which results a process has seen, for tests
 *   embed.c    (generated) one wrapper for each other function of npu.h, and cffi's embedding
 */
#ifndef NPU_LIBRARY_H
#define NPU_LIBRARY_H
#include <fenv.h>
#include <signal.h>

#include "npu.h"

#define NPU_HIDDEN __attribute__((visibility("hidden")))

/* Generated from the comments of enum npu_result. */
struct npu_result_text { npu_result_t result; const char *name; const char *text; };
extern NPU_HIDDEN const struct npu_result_text npu_result_texts[];
extern NPU_HIDDEN const size_t npu_result_text_count;
/* Generated from enum npu_pmu. */
extern NPU_HIDDEN const char *const npu_counter_names[];
extern NPU_HIDDEN const size_t npu_counter_count;

/* What a call finds in its thread and gives back. */
struct npu_shield { fenv_t environment; int cancel_state, blocks; sigset_t mask; };
NPU_HIDDEN void npu_raise_shield(struct npu_shield *shield);
NPU_HIDDEN void npu_lower_shield(const struct npu_shield *shield);
NPU_HIDDEN int npu_calls(void); /* of the calling thread that are between the two: 2 and more when signal handlers call */

/* Open a call: note who called and refuse it when the library cannot serve it. `starts`: the call may start Python. */
NPU_HIDDEN npu_result_t npu_enter(struct npu_shield *shield, const char *function, void *call_site, int starts);
/* Close a call: keep an error as the thread's last one. Returns `result`. */
NPU_HIDDEN npu_result_t npu_leave(const struct npu_shield *shield, npu_result_t result);
/* From Python, inside a call: say more about the error that the call will return. `message` is cut to fit. */
NPU_HIDDEN void npu_set_error(const char *message, uint64_t enqueue_site, uint64_t job_id);
/* From Python, inside a call: the code address behind the call. */
NPU_HIDDEN uint64_t npu_call_site(void);

/* For tests: note that `function` (static text) returns `result`. */
NPU_HIDDEN void npu_note(const char *function, npu_result_t result);

/* Copy between this library and the program's memory. 0, or -1 when a byte of it cannot be read or written; then none was written. */
NPU_HIDDEN int npu_copy_from_user(void *destination, uintptr_t source, size_t size);
NPU_HIDDEN int npu_copy_to_user(uintptr_t destination, const void *source, size_t size);
/* Call the program's `function(argument)`. Where it ends the thread instead of returning (pthread_exit), Python hears of it on the way. */
NPU_HIDDEN void npu_call_function(uintptr_t function, uintptr_t argument);
/* 0, or -1 when one of `size` bytes at `address` cannot be written. They keep their values. */
NPU_HIDDEN int npu_probe_user(uintptr_t address, size_t size);

/* Guarded pages: an access of the program that one has stopped. `sites`: where it was made, and the return addresses outside of that; then 0. */
enum { NPU_FAULT_UNKNOWN, NPU_FAULT_LOAD, NPU_FAULT_STORE, NPU_FAULT_SITES = 12 };
struct npu_fault { uint64_t address; uint32_t access, in_function; uint64_t sites[NPU_FAULT_SITES]; };
/* Guard the pages of a range until `key` is given up: `readable` ones against stores. 0, or -1 when the program has a handler of its own. */
NPU_HIDDEN int npu_guard_pages(uint64_t key, uintptr_t address, size_t size, int readable);
NPU_HIDDEN void npu_give_up_pages(uint64_t key);
/* Let this library, or the kernel for it, reach guarded pages: whether there was one. */
NPU_HIDDEN int npu_open_pages(uintptr_t address, size_t size);
/* Take up to `most` faults, oldest first; returns how many. */
NPU_HIDDEN size_t npu_take_faults(struct npu_fault *out, size_t most);
/* Whether the calling thread runs a host function of the program. */
NPU_HIDDEN int npu_in_function(void);

/* Start Python and the library's Python part, once. Returns NULL when they run, else why not (text that stays). */
NPU_HIDDEN const char *npu_start(void);
/* From Python, while it starts: why it does not. */
NPU_HIDDEN void npu_set_reason(const char *text);
/* Returns NULL while the library's Python part runs, else why it does not. */
NPU_HIDDEN const char *npu_obstacle(void);
/* Whether this is a child made by fork from a process that had begun to start Python. */
NPU_HIDDEN int npu_forked(void);
/* In embed.c: run cffi's start code, then say whether the Python part reported for duty; and end of the process. */
NPU_HIDDEN int npu_embed_start(void);
NPU_HIDDEN void npu_embed_exit(void);
/* In embed.c: a host function has ended this thread, a thread of the library's Python part. */
NPU_HIDDEN void npu_embed_thread_ends(void);
#endif
