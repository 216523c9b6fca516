/* SPDX-License-Identifier: Apache-2.0
 * right_pageable_memory - Asynchronous copies from and to arrays on the stack, whose functions return at once.
 *
 * Memory that is not pinned is copied before the call returns, or staged; its end of life does not matter. It is so under the rules of this
 * library that know such copies, ascend and cuda; a program that relies on it under others is wrong.
 *
 *     right: 20 21
 */
#include "../c/check.h"

static npu_stream_t stream;

static void send(void *memory, int value)
{
    uint8_t values[64];

    memset(values, value, sizeof values);
    CHECK(npu_memcpy_async(memory, sizeof values, values, sizeof values, NPU_MEMCPY_HOST_TO_DEVICE, stream));
}

static int receive(void *memory)
{
    uint8_t values[64];

    CHECK(npu_memcpy_async(values, sizeof values, memory, sizeof values, NPU_MEMCPY_DEVICE_TO_HOST, stream));
    return values[0];
}

int main(void)
{
    void *memory;
    int first, second;

    CHECK(npu_init(NPU_INIT_CHECK));
    CHECK(npu_create_stream(&stream));
    CHECK(npu_malloc(&memory, 64, 0));
    send(memory, 20);
    first = receive(memory);
    send(memory, 21);
    second = receive(memory);
    printf("%d %d\n", first, second);
    CHECK(npu_shutdown());
    return 0;
}
