/* ledger.h - see ledger.c. */
#ifndef LEDGER_H
#define LEDGER_H
#define _GNU_SOURCE
#include <npu.h>

/* Note what a function returned, and return it. The wrappers call this. */
npu_result_t noted(const char *called, npu_result_t found);
/* Whether what was found is what was wanted; the last call's result has been compared then. */
int compared(npu_result_t found, npu_result_t wanted);
#endif
