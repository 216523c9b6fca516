/* The memory path cycle by cycle: a network on chip in front of a DDR controller. memory.py makes its configuration.
 *
 * One clock drives everything. Times inside are ticks: a unit of which a cycle and a beat on the data pins are multiples.
 * In each cycle, in this order:
 *
 *  1. Generators of background traffic take note of the bursts that have come.
 *  2. Each channel moves one access, and opens and closes pages, one of a bank, for what was in its queue before this cycle.
 *  3. The controller puts one access of each client's read that it has taken into its channel's queue, if there is room.
 *  4. Each link, by number, those nearest to the sinks first, moves one flit. Of two directions that exclude each other both
 *     are tried when the first has its turn: they move one flit of data together, and reads' requests, which have wires of their own, beside it. The
 *     other one goes first from when the one that did has moved data. A flit that waits at a router's port is ready for the next link `hop_cycles` after it came, and its credit is free again `credit_return_cycles` after it has left.
 *  5. The controller puts one flit of read data of each client into the first port of the way back, and each client one flit
 *     into the first port of the way there, if there are credits.
 *  6. Credits in use are summed, per port.
 *
 * An access is what one command moves: `access_bytes`, aligned. A request is up to `request_accesses` of them, of contiguous
 * bytes. A read is one flit on the way there, and the data on the way back; a write is its data on the way there, and over
 * when the controller's queues have them.
 *
 * Accesses of one transfer do not pass each other: not on their way, nor in a channel's queue, nor on its pins, and its data goes back in the order in which it
 * asked. So a write of a transfer waits in front of the controller while a read of it is being split.
 *
 * What a transfer asks for is cut into buffers, each of `requests` * `request_accesses` accesses, of the side that has fewer where there are two.
 * Runs of a buffer go by the turns of their banks: the first page of each bank, by address, then the second one of each; a run counts as of the page
 * in which it begins. A transfer that reads and writes has two buffers. Reads into a buffer are issued when the writes of what was in it before
 * have been, and writes of what is in it when all reads into the other one have been, and what they write has been read: as large a share, or all of the buffer
 * where runs have changed places; where two directions of a link on its way exclude each other, all that was asked for. So the order of all that a
 * transfer does is its own, and does not depend on when it is answered.
 *
 * A channel refreshes in the first cycle at or after each multiple of t_refi: it closes all banks, for t_rp, and takes t_rfc.
 * Before that it gives no command whose bank could not be closed by then.
 */
#ifndef NPU_MODEL_MEMORY_H
#define NPU_MODEL_MEMORY_H
#include <stdint.h>

#define NPU_MEMORY_CLIENTS 8
#define NPU_MEMORY_HOPS 8
#define NPU_MEMORY_LINKS 32
#define NPU_MEMORY_CHANNELS 16
#define NPU_MEMORY_BANKS 64
#define NPU_MEMORY_QUEUE 64
#define NPU_MEMORY_CREDITS 256
#define NPU_MEMORY_REQUESTS 64

struct npu_memory_config {
    int64_t cycle_ticks;
    int64_t channels, banks, page_bytes, access_bytes, interleave_bytes, bank_xor; /* address mapping, see ddr_locate() */
    int64_t access_ticks;         /* on the data pins of a channel */
    int64_t t_rcd, t_rp, t_ras, t_wr, t_cl, t_cwl, t_rfc, t_refi, t_rtw, t_wtr; /* ticks; t_refi 0: no refresh */
    int64_t queue_depth;          /* accesses per channel */
    int64_t age_limit_cycles;     /* an access that has waited for longer goes first */
    int64_t flit_bytes, hop_cycles, credit_return_cycles, credits;
    int64_t links, clients;       /* both directions of a link are counted */
    int64_t hops[NPU_MEMORY_CLIENTS]; /* one way */
    int64_t there[NPU_MEMORY_CLIENTS * NPU_MEMORY_HOPS]; /* links of the way from a client: [client][hop], */
    int64_t back[NPU_MEMORY_CLIENTS * NPU_MEMORY_HOPS];  /* and from the controller */
    int64_t other[NPU_MEMORY_LINKS]; /* the other direction of a link that moves one flit a cycle both together; or -1 */
    int64_t keep_flits[NPU_MEMORY_CLIENTS]; /* flits for which a client keeps a link that others of its priority want too */
    int64_t request_accesses[NPU_MEMORY_CLIENTS]; /* of which a request has at most so many, all of one run */
    int64_t requests[NPU_MEMORY_CLIENTS]; /* that a stream may have outstanding */
};

/* Totals since the start; all exact. */
struct npu_memory_client_counters {
    int64_t bytes_asked, bytes_moved, accesses_issued, accesses_done;
    int64_t stall_credit, stall_window, stall_data; /* cycles in which nothing was issued: no credit; too many requests
                                                       outstanding; written data not read yet, or both buffers full */
};
struct npu_memory_port_counters { int64_t occupancy, in_use, most; /* credits in use: summed over cycles, now, at most */ };
struct npu_memory_link_counters {
    int64_t flits, stall_credit, stall_queue, stall_arbitration; /* flits that could not move in a cycle, by cause */
};
struct npu_memory_channel_counters {
    int64_t reads, writes, hits, misses, conflicts, activates, precharges, refreshes, turnarounds;
    int64_t busy_cycles, refresh_cycles, idle_cycles; /* add up to all cycles; busy: something to do, or data on the pins */
    int64_t data_ticks;           /* with data on the pins */
};
struct npu_memory_counters {
    int64_t cycles;
    struct npu_memory_client_counters clients[NPU_MEMORY_CLIENTS];
    struct npu_memory_port_counters ports[2 * NPU_MEMORY_CLIENTS * NPU_MEMORY_HOPS]; /* [there, back][client][hop] */
    struct npu_memory_link_counters links[NPU_MEMORY_LINKS];
    struct npu_memory_channel_counters channels[NPU_MEMORY_CHANNELS];
};

struct npu_memory;

/* NULL without memory. */
struct npu_memory *npu_memory_new(const struct npu_memory_config *config);
void npu_memory_free(struct npu_memory *m);
const struct npu_memory_counters *npu_memory_read_counters(const struct npu_memory *m);

/* Start a transfer of `client` not before `at_ticks`, and return its number, or -1 without memory. It reads `reads` runs and
 * writes `writes` runs: pairs of address and bytes. Requests of each side are issued over `pace_ticks` or longer, each when the time of its share is over. A run
 * that begins in the access in which the one before ends shares it. The number is free again when advance returned it, or after cancel. */
int64_t npu_memory_submit(struct npu_memory *m, int64_t client, int64_t at_ticks, const int64_t *read_runs, int64_t reads,
                          const int64_t *write_runs, int64_t writes, int64_t pace_ticks);
/* What it has issued goes its way; nothing more does, and it never ends. */
void npu_memory_cancel(struct npu_memory *m, int64_t transfer);
/* Issue nothing more (on = 1), or go on not before `at_ticks`. A transfer that is paused does not end. */
void npu_memory_pause(struct npu_memory *m, int64_t transfer, int on, int64_t at_ticks);
/* 0 to 7; a higher one goes first at every port. */
void npu_memory_set_priority(struct npu_memory *m, int64_t client, int64_t priority);
/* `client` makes a burst of `accesses` in each cycle with probability rate / 2^32, of which write_rate / 2^32 write, one
 * behind the other from `address` around `bytes`. rate 0: no more. */
void npu_memory_set_background(struct npu_memory *m, int64_t client, int64_t rate, int64_t write_rate, int64_t accesses,
                               int64_t address, int64_t bytes, uint64_t seed);
/* Run every cycle at or before `until_ticks`, or until a transfer has ended: return its number and set `at_ticks` to the
 * cycle in which it did; -1 when none has. */
int64_t npu_memory_advance(struct npu_memory *m, int64_t until_ticks, int64_t *at_ticks);
#endif
