/* profiling.c - records of operations, counters, traces. */
#include "expect.h"

static void records(void)
{
    npu_blob_t blob = load("library");
    npu_kernel_t spin = NULL;
    npu_op_record_t record, all[8];
    size_t count = 0;
    char *memory = allocate(4096);

    OK(npu_get_kernel(&spin, blob, "spin"));
    expect(NPU_ERROR_BAD_STATE, npu_profiler_stop());
    OK(npu_profiler_start());
    expect(NPU_ERROR_BAD_STATE, npu_profiler_start());
    OK(npu_memset_async(memory, 4096, 7, 4096, NULL));
    OK(npu_launch_kernel_grid_async(spin, 2, NULL, 0, NULL));
    OK(npu_synchronize_stream(NULL));
    OK(npu_profiler_stop());
    OK(npu_get_op_records(NULL, 0, &count));
    claim(count == 2);
    expect(NPU_ERROR_NULL_POINTER, npu_get_op_records(&record, 1, NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_get_op_records(&record, 1, BAD));
    expect(NPU_ERROR_BAD_ADDRESS, npu_get_op_records(BAD, 1, &count));
    OK(npu_get_op_records(&record, 1, &count));
    claim(count == 1 && record.kind == NPU_OP_MEMSET && record.bytes == 4096 && record.result == NPU_SUCCESS);
    claim(record.enqueue_ps < record.enqueued_ps && record.enqueue_ps < record.start_ps && record.start_ps < record.end_ps);
    OK(npu_get_op_records(all, 8, &count));
    claim(count == 1 && all[0].kind == NPU_OP_KERNEL && strcmp(all[0].name, "spin") == 0 && all[0].blocks == 2);
    claim(all[0].pack_ps && all[0].submit_ps && all[0].schedule_ps && all[0].load_ps && all[0].execute_ps);
    claim(all[0].units != 0 && all[0].enqueue_site != 0);
    OK(npu_get_op_records(NULL, 0, &count));
    claim(count == 0);
    OK(npu_unload(blob));
    OK(npu_free(memory));
}

static void counters(void)
{
    uint64_t values[64], one = 5;
    size_t count = 0;

    OK(npu_get_counters(NULL, 0, &count));
    claim(count > 1 && count < 64 && strcmp(npu_get_counter_name(count), "unknown") == 0);
    OK(npu_get_counters(values, 64, &count));
    claim(strcmp(npu_get_counter_name(0), "unknown") != 0);
    OK(npu_get_counters(&one, 1, &count));
    claim(count == 1);
    expect(NPU_ERROR_NULL_POINTER, npu_get_counters(values, 64, NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_get_counters(values, 64, BAD));
    expect(NPU_ERROR_BAD_ADDRESS, npu_get_counters(BAD, 64, &count));
}

static void overflows(void)
{
    npu_overflow_t found[4];
    size_t count = 9;

    OK(npu_get_overflows(NULL, 0, &count));
    claim(count == 0);
    OK(npu_get_overflows(found, 4, &count));
    claim(count == 0);
    expect(NPU_ERROR_NULL_POINTER, npu_get_overflows(found, 4, NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_get_overflows(found, 4, BAD));
    expect(NPU_ERROR_BAD_ADDRESS, npu_get_overflows(BAD, 4, &count));
}

static void traces(void)
{
    FILE *file;

    OK(npu_export_trace("trace.json"));
    file = fopen("trace.json", "r");
    claim(file != NULL);
    if (file != NULL) {
        claim(fgetc(file) == '{');
        fclose(file);
    }
    expect(NPU_ERROR_NULL_POINTER, npu_export_trace(NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_export_trace(BAD));
    expect(NPU_ERROR_FILE, npu_export_trace("no/such/folder/trace.json"));
}

int main(int argc, char **argv)
{
    (void)argc;
    begin(argv);
    records();
    counters();
    overflows();
    traces();
    return finish();
}
