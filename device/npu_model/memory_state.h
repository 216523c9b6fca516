/* What the parts of the memory path share: its state, and the functions by which they use each other. memory.h says how it works. */
#ifndef NPU_MODEL_MEMORY_STATE_H
#define NPU_MODEL_MEMORY_STATE_H
#include "memory.h"

enum { READ, WRITE };
enum { THERE, BACK };
enum { HIT, MISS, CONFLICT }; /* what an access found in its bank */
#define NONE (-1)
#define NEVER INT64_MAX

/* A request on its way to the controller, or one access of a read on its way back. */
struct item {
    int64_t address, bytes;       /* of a request: that the controller does not have yet */
    int64_t flits;                /* of an access that is being written: that the controller has */
    int32_t client, slot, request; /* slot NONE: of the generator */
    int32_t write, next_free;
    int32_t earlier, later;       /* of an access that is read, and not on its way back: those of its transfer beside it, or NONE */
    int64_t ready;                /* the cycle from which its data is with the controller, or NEVER */
};

struct port { /* where flits of one client wait for one link: a ring of at most `credits` */
    int32_t flit[NPU_MEMORY_CREDITS]; /* item << 1 | it is the last one */
    int64_t ready[NPU_MEMORY_CREDITS];
    int64_t returns[NPU_MEMORY_CREDITS]; /* cycles at which credits come back */
    int64_t head, count, return_head, return_count;
    struct npu_memory_port_counters *counters;
};

struct entry {
    int32_t item, client, bank, found, write; /* item NONE: a write */
    int32_t before, writes_before; /* accesses of its transfer that are before it in the queue, and the writes among them */
    int64_t row, arrived, transfer; /* transfer: serial; NONE: of the generator */
};
struct bank { int64_t row, activate_from, column_from, precharge_from; }; /* row NONE: closed */

struct channel {
    struct entry queue[NPU_MEMORY_QUEUE]; /* in order of arrival */
    struct bank banks[NPU_MEMORY_BANKS];
    int64_t count, writes, held_up, pins_free, refresh_due, refresh_end;
    int32_t direction, drains, refreshing; /* drains: writes go first. held_up: reads behind writes of their transfers */
};

struct run { int64_t address, bytes, asked, turn; }; /* asked: fewer than bytes where it was made of several. turn: of its bank, in its buffer */

struct stream { /* one side of a transfer */
    struct run *runs, *run;       /* `run` is what is left of the next one */
    int64_t issued, done, total;  /* accesses */
    int64_t next, interval, remainder, sum; /* pace */
    int64_t open;                 /* requests outstanding */
    int32_t oldest, newest;       /* accesses of reads that are with the controller, and not on their way back; NONE */
    int32_t left[NPU_MEMORY_REQUESTS]; /* accesses of each that are not done; 0: not used */
};

struct transfer {
    struct stream sides[2];
    int64_t serial;
    int32_t client, live, paused, ended, cancelled;
    int32_t reordered;            /* runs of a buffer do not go in the order in which they were given */
};

struct client {
    int64_t priority, last_served;
    int32_t *active;              /* slots, in order of submission */
    int64_t active_count, active_room;
    int32_t sending;              /* a request of which flits are left */
    int64_t flits_left;
    int32_t splitting;            /* a read that the controller has not put into its queues yet */
    int32_t *data;                /* reads whose data goes back in this order: a ring */
    int64_t data_head, data_count, data_room, data_flit;
    int32_t takes_turns;          /* a link of its way moves one flit both ways */
    int64_t rate, write_rate, burst, base, bytes, arrival, bursts, window; /* generator; window: accesses in flight */
    int64_t backlog;
    uint64_t seed, draws;
};

struct link { int64_t holder, kept; int32_t others_turn; };

struct npu_memory {
    struct npu_memory_config c;
    struct npu_memory_counters counters;
    int64_t now, serial, items_live, writes_queued, in_ports, access_flits;
    struct port ports[2][NPU_MEMORY_CLIENTS][NPU_MEMORY_HOPS];
    struct link links[NPU_MEMORY_LINKS];
    struct channel channels[NPU_MEMORY_CHANNELS];
    struct client clients[NPU_MEMORY_CLIENTS];
    struct { int32_t direction, client, hop; } users[NPU_MEMORY_LINKS][NPU_MEMORY_CLIENTS];
    int64_t user_count[NPU_MEMORY_LINKS];
    struct item *items;
    int32_t free_item;
    struct transfer *transfers;
    int64_t transfer_room;
    int32_t *ended;
    int64_t ended_count, ended_room, failed; /* failed: out of memory */
};

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Of every port in every cycle. */
static inline int port_has_credit(const struct npu_memory *m, const struct port *p) { return p->counters->in_use < m->c.credits; }

static inline void port_return_credits(struct npu_memory *m, struct port *p)
{
    while (p->return_count && p->returns[p->return_head] <= m->now) {
        p->return_head = p->return_head + 1 == m->c.credits ? 0 : p->return_head + 1;
        p->return_count--;
        p->counters->in_use--;
        m->in_ports--;
    }
}

#pragma GCC visibility push(hidden)

/* memory.c: requests and accesses, and what their ends do to transfers. item_take: NONE without memory. */
int32_t item_take(struct npu_memory *m);
void item_give(struct npu_memory *m, int32_t index);
void access_done(struct npu_memory *m, const struct item *a);

/* memory_noc.c: the network. A flit is item << 1 | it is the last one. */
void port_put(struct npu_memory *m, struct port *p, int32_t flit);
enum { NOTHING_MOVED, REQUEST_MOVED, DATA_MOVED };
int link_move(struct npu_memory *m, int64_t number, int requests_only);

/* memory_ddr.c: the controller behind the network, and its channels. */
struct channel *ddr_locate(struct npu_memory *m, int64_t address, int32_t *bank, int64_t *row);
int ddr_accepts(struct npu_memory *m, int32_t flit);
void ddr_sink(struct npu_memory *m, int32_t flit);
void ddr_split(struct npu_memory *m, struct client *c);
void ddr_run_channel(struct npu_memory *m, int64_t number);

/* memory_clients.c: who asks for memory. */
void client_run(struct npu_memory *m, int32_t number);
void client_schedule_burst(struct client *c);
int64_t client_fewest(const struct transfer *t, const struct stream *s);
int64_t client_buffer_of(const struct npu_memory *m, const struct transfer *t, const struct stream *s, int64_t access);
int64_t client_buffer_end(const struct npu_memory *m, const struct transfer *t, const struct stream *s, int64_t buffer);
void client_keep_pace(const struct npu_memory *m, int32_t client, struct stream *s);
int64_t accesses_of(const struct npu_memory *m, int64_t address, int64_t bytes);

#pragma GCC visibility pop
#endif
