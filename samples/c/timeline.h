/* SPDX-License-Identifier: Apache-2.0
 * timeline.h - host and device as text, from operation records: when each operation was enqueued (#), and when it ran (=).
 *
 *     CHECK(npu_profiler_start());
 *     ... launches ...
 *     TIMED('.', "synchronise", npu_synchronize_stream(stream));
 *     timeline_print();
 *
 * Operations say themselves when they were enqueued; other calls of the host show when they are TIMED: '.' for waits, '#' for work.
 */
#ifndef TIMELINE_H
#define TIMELINE_H
#include "check.h"

enum { TIMELINE_ROWS = 160, TIMELINE_COLUMNS = 48 };

struct timeline_row {
    uint64_t begin_ps, end_ps;
    int stream;                   /* 0: the host */
    char symbol, name[24];
};
static struct timeline_row timeline_rows[TIMELINE_ROWS];
static int timeline_count;

/* A number for people: 1 for the stream that was seen first. */
static inline int timeline_stream(uint64_t id)
{
    static uint64_t seen[TIMELINE_ROWS];
    int number = 0;

    while (seen[number] != id && seen[number] != 0)
        number++;
    seen[number] = id;
    return number + 1;
}

static inline void timeline_add(int stream, char symbol, const char *name, uint64_t begin_ps, uint64_t end_ps)
{
    struct timeline_row *row = &timeline_rows[timeline_count];

    CLAIM(timeline_count++ < TIMELINE_ROWS, "the timeline has room");
    row->begin_ps = begin_ps;
    row->end_ps = end_ps;
    row->stream = stream;
    row->symbol = symbol;
    snprintf(row->name, sizeof row->name, "%.22s", name);
}

#define TIMED(symbol, name, call)                                 \
    do {                                                          \
        uint64_t begin_ps_ = 0, end_ps_ = 0;                             \
        CHECK(npu_get_time_ps(&begin_ps_));                       \
        CHECK(call);                                              \
        CHECK(npu_get_time_ps(&end_ps_));                         \
        timeline_add(0, (symbol), (name), begin_ps_, end_ps_);    \
    } while (0)

static inline int timeline_order(const void *left, const void *right)
{
    const struct timeline_row *a = left, *b = right;

    if (a->begin_ps != b->begin_ps)
        return a->begin_ps < b->begin_ps ? -1 : 1;
    if (a->stream != b->stream)
        return a->stream - b->stream;
    return (a->end_ps > b->end_ps) - (a->end_ps < b->end_ps);
}

/* The lines of an operation. timeline_print adds those whose records nobody has taken. */
static inline void timeline_operation(const npu_op_record_t *record)
{
    /* The name of a wait says where the event was recorded, which takes more room. */
    const char *name = record->kind == NPU_OP_EVENT_WAIT ? "event wait" : record->name;

    timeline_add(0, '#', name, record->enqueue_ps, record->enqueued_ps);
    if (record->result != NPU_NOT_READY)
        timeline_add(timeline_stream(record->stream_id), '=', name, record->start_ps, record->end_ps);
}

/* Print a line for each operation and each timed call, and forget them. Returns when the device was done, in microseconds. */
static inline double timeline_print(void)
{
    static npu_op_record_t records[TIMELINE_ROWS / 2];
    size_t count = 0;
    uint64_t first = UINT64_MAX, last = 0, done = 0, scale;

    CHECK(npu_get_op_records(records, TIMELINE_ROWS / 2, &count));
    for (size_t i = 0; i < count; i++)
        timeline_operation(&records[i]);
    for (int i = 0; i < timeline_count; i++) {
        const struct timeline_row *row = &timeline_rows[i];

        first = row->begin_ps < first ? row->begin_ps : first;
        last = row->end_ps > last ? row->end_ps : last;
        done = row->stream && row->end_ps > done ? row->end_ps : done;
    }
    CLAIM(timeline_count > 0, "something was recorded");
    scale = (last - first) / TIMELINE_COLUMNS + 1;
    qsort(timeline_rows, (size_t)timeline_count, sizeof timeline_rows[0], timeline_order);
    printf("# host works  . host waits  = device runs; a column is %.3f us\n", (double)scale * 1e-6);
    for (int i = 0; i < timeline_count; i++) {
        const struct timeline_row *row = &timeline_rows[i];
        char bar[TIMELINE_COLUMNS + 1], lane[32] = "host";
        uint64_t from = (row->begin_ps - first) / scale, to = (row->end_ps - first) / scale;

        memset(bar, ' ', TIMELINE_COLUMNS);
        memset(bar + from, row->symbol, (size_t)(to - from + 1));
        bar[TIMELINE_COLUMNS] = '\0';
        if (row->stream)
            snprintf(lane, sizeof lane, "stream %d", row->stream);
        printf("%-9s %-22s |%s| %9.3f us\n", lane, row->name, bar, (double)(row->end_ps - row->begin_ps) * 1e-6);
    }
    timeline_count = 0;
    return (double)done * 1e-6;
}

#endif
