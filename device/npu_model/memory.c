/* The memory path cycle by cycle, as memory.h says. Clients put requests into the network, links move their flits, channels
 * serve them; all state is in one struct, so a run depends on nothing but its calls. */
#include "memory.h"
#include <stdlib.h>
#include <string.h>

enum { READ, WRITE };
enum { THERE, BACK };
enum { HIT, MISS, CONFLICT }; /* what an access found in its bank */
#define NONE (-1)

/* A request on its way to the controller, or one access of a read on its way back. */
struct item {
    int64_t address, bytes;       /* of a request: that the controller does not have yet */
    int64_t flits;                /* of an access that is being written: that the controller has */
    int32_t client, slot, request; /* slot NONE: of the generator */
    int32_t write, next_free;
};

struct port { /* where flits of one client wait for one link: a ring of at most `credits` */
    int32_t flit[NPU_MEMORY_CREDITS]; /* item << 1 | it is the last one */
    int64_t ready[NPU_MEMORY_CREDITS];
    int64_t returns[NPU_MEMORY_CREDITS]; /* cycles at which credits come back */
    int64_t head, count, return_head, return_count;
    struct npu_memory_port_counters *counters;
};

struct entry { int32_t item, client, bank, found, write; int64_t row, arrived; }; /* item NONE: a write */
struct bank { int64_t row, activate_from, column_from, precharge_from; }; /* row NONE: closed */

struct channel {
    struct entry queue[NPU_MEMORY_QUEUE]; /* in order of arrival */
    struct bank banks[NPU_MEMORY_BANKS];
    int64_t count, reserved, pins_free, refresh_due, refresh_end;
    int32_t direction, refreshing;
};

struct run { int64_t address, bytes, asked; }; /* asked: fewer than bytes where it was made of several */

struct stream { /* one side of a transfer */
    struct run *runs, *run;       /* `run` is what is left of the next one */
    int64_t issued, done, total;  /* accesses */
    int64_t next, interval, remainder, sum; /* pace */
    int64_t open;                 /* requests outstanding */
    int32_t left[NPU_MEMORY_REQUESTS]; /* accesses of each that are not done; 0: not used */
};

struct transfer {
    struct stream sides[2];
    int64_t serial;
    int32_t client, live, paused, ended, cancelled;
};

struct client {
    int64_t priority, last_served;
    int32_t *active;              /* slots, in order of submission */
    int64_t active_count, active_room;
    int32_t sending;              /* a request of which flits are left */
    int64_t flits_left;
    int32_t splitting;            /* a read that the controller has not put into its queues yet */
    int32_t *data;                /* reads whose data the controller has or will have, in order of their commands */
    int64_t *data_ready, data_head, data_count, data_room, data_flit;
    int64_t rate, write_rate, burst, base, bytes, arrival, bursts, window; /* generator; window: accesses in flight */
    int64_t backlog;
    uint64_t seed, draws;
};

struct link { int64_t holder, kept; };

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

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Make room for `count` elements, twice as many as are needed. 0 without memory. */
#define GROW(array, room, count) ((count) <= (room) || grow_to(&(array), &(room), 2 * (count)))
#define grow_to(array, room, count)                                                                                    \
    __extension__({                                                                                                    \
        __typeof__(*(array)) more = realloc(*(array), (size_t)(count) * sizeof **(array));                             \
        if (more != NULL)                                                                                              \
            *(array) = more, *(room) = (count);                                                                        \
        more != NULL;                                                                                                  \
    })

static void remove_slot(int32_t *slots, int64_t *count, int32_t slot)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < *count; i++)
        if (slots[i] != slot)
            slots[kept++] = slots[i];
    *count = kept;
}

static uint64_t mix(uint64_t seed, uint64_t index) /* splitmix64 */
{
    uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

struct npu_memory *npu_memory_new(const struct npu_memory_config *config)
{
    struct npu_memory *m = calloc(1, sizeof *m);
    if (m == NULL)
        return NULL;
    m->c = *config;
    m->access_flits = ceil_div(config->access_bytes, config->flit_bytes);
    m->free_item = NONE;
    for (int64_t i = 0; i < config->channels; i++) {
        m->channels[i].refresh_due = config->t_refi ? config->t_refi : INT64_MAX;
        for (int64_t b = 0; b < config->banks; b++)
            m->channels[i].banks[b].row = NONE;
    }
    for (int64_t i = 0; i < config->clients; i++) {
        m->clients[i].sending = m->clients[i].splitting = NONE;
        m->clients[i].last_served = NONE;
        for (int direction = THERE; direction <= BACK; direction++)
            for (int64_t hop = 0; hop < config->hops[i]; hop++) {
                int64_t link = (direction == THERE ? config->there : config->back)[i * NPU_MEMORY_HOPS + hop];
                int64_t user = m->user_count[link]++;
                m->users[link][user].direction = direction;
                m->users[link][user].client = (int32_t)i;
                m->users[link][user].hop = (int32_t)hop;
                m->ports[direction][i][hop].counters =
                    &m->counters.ports[(direction * NPU_MEMORY_CLIENTS + i) * NPU_MEMORY_HOPS + hop];
            }
    }
    for (int64_t i = 0; i < config->links; i++) { /* the first turn is the first user's */
        m->links[i].holder = larger(m->user_count[i] - 1, 0);
        m->links[i].kept = INT64_MAX;
    }
    return m;
}

void npu_memory_free(struct npu_memory *m)
{
    if (m == NULL)
        return;
    for (int64_t i = 0; i < m->transfer_room; i++)
        for (int side = READ; side <= WRITE; side++)
            free(m->transfers[i].sides[side].runs);
    for (int64_t i = 0; i < m->c.clients; i++) {
        free(m->clients[i].active);
        free(m->clients[i].data);
        free(m->clients[i].data_ready);
    }
    free(m->items);
    free(m->transfers);
    free(m->ended);
    free(m);
}

const struct npu_memory_counters *npu_memory_read_counters(const struct npu_memory *m) { return &m->counters; }

/* ---- items and transfers ------------------------------------------------------------------------------------------ */

static int32_t take_item(struct npu_memory *m)
{
    if (m->free_item == NONE) {
        int64_t before = m->items_live, room = before ? 2 * before : 256; /* none is free: all are live */
        struct item *more = realloc(m->items, (size_t)room * sizeof *more);
        if (more == NULL) {
            m->failed = 1;
            return NONE;
        }
        m->items = more;
        for (int64_t i = before; i < room; i++)
            more[i].next_free = i + 1 < room ? (int32_t)(i + 1) : NONE;
        m->free_item = (int32_t)before;
    }
    int32_t index = m->free_item;
    m->free_item = m->items[index].next_free;
    m->items_live++;
    return index;
}

static void give_item(struct npu_memory *m, int32_t index)
{
    m->items[index].next_free = m->free_item;
    m->free_item = index;
    m->items_live--;
}

static void forget(struct transfer *t)
{
    for (int side = READ; side <= WRITE; side++) {
        free(t->sides[side].runs);
        t->sides[side].runs = NULL;
    }
    t->live = 0;
}

/* Let advance return a transfer, or not any more. */
static void tell(struct npu_memory *m, int32_t slot)
{
    if (GROW(m->ended, m->ended_room, m->ended_count + 1))
        m->ended[m->ended_count++] = slot;
    else
        m->failed = 1;
}

/* A transfer of which all is done ends, unless it is paused; one that was cancelled is forgotten. */
static void settle(struct npu_memory *m, int32_t slot)
{
    struct transfer *t = &m->transfers[slot];
    struct stream *read = &t->sides[READ], *write = &t->sides[WRITE];
    if (t->cancelled) {
        if (read->done == read->issued && write->done == write->issued)
            forget(t);
        return;
    }
    if (t->paused || t->ended || read->done < read->total || write->done < write->total)
        return;
    remove_slot(m->clients[t->client].active, &m->clients[t->client].active_count, slot);
    t->ended = 1;
    tell(m, slot);
}

/* An access is over: its data has arrived, or the controller has taken what it writes. */
static void access_done(struct npu_memory *m, const struct item *a)
{
    m->counters.clients[a->client].accesses_done++;
    if (a->slot == NONE) {
        m->clients[a->client].window--;
        return;
    }
    struct stream *s = &m->transfers[a->slot].sides[a->write];
    s->done++;
    s->open -= --s->left[a->request] == 0;
    settle(m, a->slot);
}

/* ---- ports and links --------------------------------------------------------------------------------------------- */

static int has_credit(const struct npu_memory *m, const struct port *p) { return p->counters->in_use < m->c.credits; }

static void put(struct npu_memory *m, struct port *p, int32_t flit)
{
    int64_t at = p->head + p->count++;
    at -= at >= m->c.credits ? m->c.credits : 0;
    p->flit[at] = flit;
    p->ready[at] = m->now + m->c.hop_cycles;
    p->counters->in_use++;
    m->in_ports++;
    p->counters->most = larger(p->counters->most, p->counters->in_use);
}

static int32_t take(struct npu_memory *m, struct port *p)
{
    int32_t flit = p->flit[p->head];
    int64_t at = p->return_head + p->return_count++;
    p->head = p->head + 1 == m->c.credits ? 0 : p->head + 1;
    p->count--;
    p->returns[at >= m->c.credits ? at - m->c.credits : at] = m->now + m->c.credit_return_cycles;
    return flit;
}

static void return_credits(struct npu_memory *m, struct port *p)
{
    while (p->return_count && p->returns[p->return_head] <= m->now) {
        p->return_head = p->return_head + 1 == m->c.credits ? 0 : p->return_head + 1;
        p->return_count--;
        p->counters->in_use--;
        m->in_ports--;
    }
}

/* Channel, bank and row of an address: channels change every interleave_bytes; what a channel has of the addresses is cut
 * into pages, and pages go to the banks in turn; bank_xor mixes the row into the bank. */
static struct channel *locate(struct npu_memory *m, int64_t address, int32_t *bank, int64_t *row)
{
    const struct npu_memory_config *c = &m->c;
    int64_t block = address / c->interleave_bytes;
    int64_t page = (block / c->channels * c->interleave_bytes + address % c->interleave_bytes) / c->page_bytes;
    *row = page / c->banks;
    *bank = (int32_t)((c->bank_xor ? page ^ *row : page) % c->banks);
    return &m->channels[block % c->channels];
}

/* Bytes of a request that its next access moves. */
static int64_t next_bytes(const struct npu_memory *m, const struct item *r)
{
    return smaller(r->bytes, m->c.access_bytes - r->address % m->c.access_bytes);
}

/* Put the next access of a request into its channel's queue; 0 when there is no room. `child` NONE: a write. */
static int enqueue(struct npu_memory *m, const struct item *r, int32_t child)
{
    int32_t bank;
    int64_t row;
    struct channel *ch = locate(m, r->address, &bank, &row);
    if (ch->count == m->c.queue_depth)
        return 0;
    ch->queue[ch->count++] = (struct entry){child, r->client, bank, HIT, r->write, row, m->now};
    return 1;
}

/* Whether the controller can take the flit. Of each client it splits one read at a time; what is written has to wait in
 * front of it until the queue has room for the access, of which the last flit takes the place. */
static int sink_accepts(struct npu_memory *m, int32_t flit)
{
    const struct item *r = &m->items[flit >> 1];
    int32_t bank;
    int64_t row;
    if (!r->write)
        return m->clients[r->client].splitting == NONE;
    return r->flits + 1 < m->access_flits || locate(m, r->address, &bank, &row)->count < m->c.queue_depth;
}

static void sink(struct npu_memory *m, int32_t flit)
{
    int32_t index = flit >> 1;
    struct item *r = &m->items[index];
    if (!r->write) {
        m->clients[r->client].splitting = index;
        return;
    }
    if (++r->flits < m->access_flits)
        return;
    enqueue(m, r, NONE);
    m->writes_queued++;
    int64_t bytes = next_bytes(m, r);
    access_done(m, r);
    r->address += bytes, r->bytes -= bytes, r->flits = 0;
    if (flit & 1)
        give_item(m, index);
}

/* Put one access of the client's read into its channel's queue, if it has room. */
static void split(struct npu_memory *m, struct client *c)
{
    int32_t index = c->splitting, child;
    if (index == NONE || (child = take_item(m)) == NONE)
        return;
    struct item *r = &m->items[index];
    if (!enqueue(m, r, child)) {
        give_item(m, child);
        return;
    }
    m->items[child] = *r;
    m->items[child].bytes = next_bytes(m, r);
    r->address += m->items[child].bytes;
    r->bytes -= m->items[child].bytes;
    if (!r->bytes) {
        give_item(m, index);
        c->splitting = NONE;
    }
}

static struct port *next_port(struct npu_memory *m, int direction, int32_t client, int32_t hop)
{
    return hop + 1 < m->c.hops[client] ? &m->ports[direction][client][hop + 1] : NULL;
}

/* Move one flit over a link; 0 when none can. */
static int move_link(struct npu_memory *m, int64_t number)
{
    struct link *l = &m->links[number];
    struct npu_memory_link_counters *counters = &m->counters.links[number];
    int64_t users = m->user_count[number], best = NONE, wanting = 0, highest = NONE;
    int able[NPU_MEMORY_CLIENTS] = {0};
    for (int64_t i = 0; i < users; i++) {
        int direction = m->users[number][i].direction;
        int32_t client = m->users[number][i].client, hop = m->users[number][i].hop;
        struct port *p = &m->ports[direction][client][hop], *next = next_port(m, direction, client, hop);
        if (!p->count || p->ready[p->head] > m->now)
            continue;
        if (next != NULL) {
            if (!has_credit(m, next)) {
                counters->stall_credit++;
                continue;
            }
        } else if (direction == THERE && !sink_accepts(m, p->flit[p->head])) {
            counters->stall_queue++;
            continue;
        }
        able[i] = 1;
        wanting++;
        highest = larger(highest, m->clients[client].priority);
    }
    if (!wanting)
        return 0;
    int stays = able[l->holder] && l->kept < m->c.keep_flits[m->users[number][l->holder].client] &&
                m->clients[m->users[number][l->holder].client].priority == highest;
    for (int64_t k = stays ? 0 : 1; best == NONE; k++) {
        int64_t i = (l->holder + k) % users;
        if (able[i] && m->clients[m->users[number][i].client].priority == highest)
            best = i;
    }
    l->kept = stays ? l->kept + 1 : 1;
    l->holder = best;
    counters->flits++;
    counters->stall_arbitration += wanting - 1;
    int direction = m->users[number][best].direction;
    int32_t client = m->users[number][best].client, hop = m->users[number][best].hop;
    struct port *next = next_port(m, direction, client, hop);
    int32_t flit = take(m, &m->ports[direction][client][hop]);
    if (next != NULL)
        put(m, next, flit);
    else if (direction == THERE)
        sink(m, flit);
    else if (flit & 1) {
        access_done(m, &m->items[flit >> 1]);
        give_item(m, flit >> 1);
    }
    return 1;
}

/* ---- the DDR controller ------------------------------------------------------------------------------------------ */

/* Read data will be with the controller at `ready` ticks. */
static void expect_data(struct npu_memory *m, int32_t index, int64_t ready)
{
    struct client *c = &m->clients[m->items[index].client];
    if (c->data_count == c->data_room) { /* unroll the ring */
        int64_t room = c->data_room ? 2 * c->data_room : 64;
        int32_t *data = malloc((size_t)room * sizeof *data);
        int64_t *times = malloc((size_t)room * sizeof *times);
        if (data == NULL || times == NULL) {
            free(data), free(times);
            m->failed = 1;
            return;
        }
        for (int64_t i = 0; i < c->data_count; i++) {
            data[i] = c->data[(c->data_head + i) % c->data_room];
            times[i] = c->data_ready[(c->data_head + i) % c->data_room];
        }
        free(c->data), free(c->data_ready);
        c->data = data, c->data_ready = times, c->data_head = 0, c->data_room = room;
    }
    int64_t at = (c->data_head + c->data_count++) % c->data_room;
    c->data[at] = index;
    c->data_ready[at] = ceil_div(ready, m->c.cycle_ticks);
}

/* When the data of a column command that goes now would be on the pins; NONE when a later cycle would not be worse. */
static int64_t data_start(const struct npu_memory *m, const struct channel *ch, int write)
{
    int64_t earliest = m->now * m->c.cycle_ticks + (write ? m->c.t_cwl : m->c.t_cl), free = ch->pins_free;
    if (write != ch->direction)
        free += write ? m->c.t_rtw : m->c.t_wtr;
    int64_t start = larger(earliest, free);
    return start < earliest + m->c.cycle_ticks ? start : NONE;
}

static void column(struct npu_memory *m, struct channel *ch, struct npu_memory_channel_counters *n, int64_t at, int64_t start)
{
    struct entry e = ch->queue[at];
    struct bank *b = &ch->banks[e.bank];
    int64_t end = start + m->c.access_ticks;
    memmove(ch->queue + at, ch->queue + at + 1, (size_t)(--ch->count - at) * sizeof e);
    n->turnarounds += e.write != ch->direction;
    ch->direction = e.write;
    ch->pins_free = end;
    n->data_ticks += m->c.access_ticks;
    *(e.found == HIT ? &n->hits : e.found == MISS ? &n->misses : &n->conflicts) += 1;
    m->counters.clients[e.client].bytes_moved += m->c.access_bytes;
    if (e.write) {
        n->writes++;
        b->precharge_from = larger(b->precharge_from, end + m->c.t_wr);
        m->writes_queued--;
    } else {
        n->reads++;
        b->precharge_from = larger(b->precharge_from, m->now * m->c.cycle_ticks + m->c.access_ticks);
        expect_data(m, e.item, end);
    }
}

/* Begin a refresh of all banks when the pins are quiet and every open page may be closed. */
static void refresh(struct npu_memory *m, struct channel *ch, struct npu_memory_channel_counters *n)
{
    int64_t ticks = m->now * m->c.cycle_ticks, open = 0;
    if (ch->pins_free > ticks)
        return;
    for (int64_t i = 0; i < m->c.banks; i++)
        if (ch->banks[i].row != NONE) {
            open++;
            if (ch->banks[i].precharge_from > ticks)
                return;
        }
    ch->refreshing = 1;
    ch->refresh_due += m->c.t_refi;
    ch->refresh_end = ticks + (open ? m->c.t_rp : 0) + m->c.t_rfc;
    n->refreshes++;
    n->precharges += open;
    for (int64_t i = 0; i < m->c.banks; i++) {
        ch->banks[i].row = NONE;
        ch->banks[i].activate_from = larger(ch->banks[i].activate_from, ch->refresh_end);
    }
}

/* First ready, first come: the oldest access that can use an open page in the direction of the pins; else, when no such
 * access waits, in the other one; else the oldest whose page can be opened, or closed if nobody before it wants it. When the
 * oldest of all has waited for too long, it alone counts. */
static void command(struct npu_memory *m, struct channel *ch, struct npu_memory_channel_counters *n)
{
    int64_t ticks = m->now * m->c.cycle_ticks, other = NONE, same = 0;
    int64_t count = m->now - ch->queue[0].arrived > m->c.age_limit_cycles ? 1 : ch->count;
    int64_t start[2] = {data_start(m, ch, READ), data_start(m, ch, WRITE)};
    for (int64_t i = 0; i < count && (start[READ] >= 0 || start[WRITE] >= 0); i++) {
        const struct entry *e = &ch->queue[i];
        const struct bank *b = &ch->banks[e->bank];
        if (b->row != e->row)
            continue;
        int can = b->column_from <= ticks && start[e->write] >= 0;
        if (e->write != ch->direction) {
            other = can && other == NONE ? i : other;
            continue;
        }
        same = 1;
        if (can) {
            column(m, ch, n, i, start[e->write]);
            return;
        }
    }
    if (!same && other != NONE) {
        column(m, ch, n, other, start[!ch->direction]);
        return;
    }
    uint64_t wanted = 0; /* banks whose open page an earlier access waits for */
    for (int64_t i = 0; i < count; i++) {
        struct entry *e = &ch->queue[i];
        struct bank *b = &ch->banks[e->bank];
        uint64_t bit = (uint64_t)1 << e->bank;
        if (wanted & bit)
            continue;
        wanted |= bit; /* the first access of a bank decides what happens to it */
        if (b->row == e->row)
            continue;
        if (b->row == NONE && b->activate_from <= ticks) {
            b->row = e->row;
            b->column_from = ticks + m->c.t_rcd;
            b->precharge_from = ticks + m->c.t_ras;
            e->found = e->found == HIT ? MISS : e->found;
            n->activates++;
            return;
        }
        if (b->row != NONE && b->precharge_from <= ticks) {
            b->row = NONE;
            b->activate_from = ticks + m->c.t_rp;
            e->found = CONFLICT;
            n->precharges++;
            return;
        }
    }
}

static void run_channel(struct npu_memory *m, int64_t number)
{
    struct channel *ch = &m->channels[number];
    struct npu_memory_channel_counters *n = &m->counters.channels[number];
    int64_t ticks = m->now * m->c.cycle_ticks;
    if (ch->refreshing && ticks >= ch->refresh_end)
        ch->refreshing = 0;
    if (!ch->refreshing && ticks >= ch->refresh_due)
        refresh(m, ch, n);
    if (ch->refreshing || ticks >= ch->refresh_due) {
        n->refresh_cycles++;
        return;
    }
    if (ch->count || ch->pins_free > ticks)
        n->busy_cycles++;
    else
        n->idle_cycles++;
    if (ch->count)
        command(m, ch, n);
}

/* ---- clients ----------------------------------------------------------------------------------------------------- */

static void schedule_burst(struct client *c)
{
    do
        c->arrival++;
    while ((int64_t)(mix(c->seed, c->draws++) >> 32) >= c->rate);
}

/* Return the next burst of the generator as a request; NONE when there is none, or too much in flight. */
static int32_t generate(struct npu_memory *m, int32_t number)
{
    struct client *c = &m->clients[number];
    if (!c->backlog)
        return NONE;
    if (c->window + c->burst > m->c.requests[number] * m->c.request_accesses[number] && c->window) {
        m->counters.clients[number].stall_window++;
        return NONE;
    }
    int32_t index = take_item(m);
    if (index == NONE)
        return NONE;
    int64_t bytes = c->burst * m->c.access_bytes;
    m->items[index] = (struct item){c->base + c->bursts * bytes % c->bytes, bytes, 0, number, NONE, 0,
                                    (int64_t)(mix(~c->seed, (uint64_t)c->bursts) >> 32) < c->write_rate, 0};
    c->window += c->burst;
    c->backlog--;
    c->bursts++;
    m->counters.clients[number].bytes_asked += bytes;
    m->counters.clients[number].accesses_issued += c->burst;
    return index;
}

/* Why a stream issues nothing in this cycle. */
enum { CAN, NOTHING, WINDOW, DATA };

static int64_t accesses_of(const struct npu_memory *m, int64_t address, int64_t bytes)
{
    return ceil_div(address % m->c.access_bytes + bytes, m->c.access_bytes);
}

/* Bytes of a stream's next request: of one run. */
static int64_t request_bytes(const struct npu_memory *m, int32_t client, const struct run *r)
{
    return smaller(r->bytes, m->c.request_accesses[client] * m->c.access_bytes - r->address % m->c.access_bytes);
}

/* The next request may go when the time of its share is over. */
static void keep_pace(const struct npu_memory *m, int32_t client, struct stream *s)
{
    if (s->issued == s->total)
        return;
    int64_t accesses = accesses_of(m, s->run->address, request_bytes(m, client, s->run));
    s->sum += s->remainder * accesses;
    s->next += s->interval * accesses + s->sum / s->total;
    s->sum %= s->total;
}

static int stream_state(const struct npu_memory *m, const struct transfer *t, int side)
{
    const struct stream *s = &t->sides[side], *read = &t->sides[READ];
    if (s->issued == s->total || t->paused || s->next > m->now * m->c.cycle_ticks)
        return NOTHING;
    if (s->open == m->c.requests[t->client])
        return WINDOW;
    int64_t then = s->issued + accesses_of(m, s->run->address, request_bytes(m, t->client, s->run));
    if (side == WRITE && read->done * s->total < then * read->total)
        return DATA;
    return CAN;
}

static int32_t issue(struct npu_memory *m, int32_t slot, int side)
{
    struct transfer *t = &m->transfers[slot];
    struct stream *s = &t->sides[side];
    struct npu_memory_client_counters *counters = &m->counters.clients[t->client];
    int32_t index = take_item(m), request = 0;
    if (index == NONE)
        return NONE;
    while (s->left[request])
        request++;
    struct run *r = s->run;
    int64_t bytes = request_bytes(m, t->client, r), accesses = accesses_of(m, r->address, bytes), asked = smaller(bytes, r->asked);
    m->items[index] = (struct item){r->address, bytes, 0, t->client, slot, request, side, 0};
    s->left[request] = (int32_t)accesses;
    s->open++;
    s->issued += accesses;
    r->address += bytes, r->bytes -= bytes, r->asked -= asked;
    s->run += !r->bytes;
    s->next = larger(s->next, (m->now - 1) * m->c.cycle_ticks + 1); /* on time if it is late by the rest of a cycle alone */
    keep_pace(m, t->client, s);
    counters->bytes_asked += asked;
    counters->accesses_issued += accesses;
    return index;
}

/* The next request of a client: its streams take turns, in the order of their submission, reads of a transfer first. */
static int32_t next_request(struct npu_memory *m, int32_t number)
{
    struct client *c = &m->clients[number];
    if (c->rate || c->backlog)
        return generate(m, number);
    int64_t first = NONE, after = NONE; /* keys: serial * 2 + side */
    int32_t first_slot = NONE, after_slot = NONE;
    int window = 0, data = 0;
    for (int64_t i = 0; i < c->active_count; i++) {
        int32_t slot = c->active[i];
        const struct transfer *t = &m->transfers[slot];
        for (int side = READ; side <= WRITE; side++) {
            int64_t key = t->serial * 2 + side;
            int state = stream_state(m, t, side);
            window |= state == WINDOW, data |= state == DATA;
            if (state != CAN)
                continue;
            if (first == NONE)
                first = key, first_slot = slot;
            if (after == NONE && key > c->last_served)
                after = key, after_slot = slot;
        }
    }
    if (first == NONE) {
        m->counters.clients[number].stall_window += window;
        m->counters.clients[number].stall_data += data && !window;
        return NONE;
    }
    c->last_served = after != NONE ? after : first;
    return issue(m, after != NONE ? after_slot : first_slot, (int)(c->last_served & 1));
}

static void run_client(struct npu_memory *m, int32_t number)
{
    struct client *c = &m->clients[number];
    struct port *there = &m->ports[THERE][number][0], *back = &m->ports[BACK][number][0];
    if (c->data_count && c->data_ready[c->data_head] <= m->now && has_credit(m, back)) {
        int last = ++c->data_flit == m->access_flits;
        put(m, back, c->data[c->data_head] << 1 | last);
        if (last)
            c->data_flit = 0, c->data_head = (c->data_head + 1) % c->data_room, c->data_count--;
    }
    if (c->sending == NONE && !c->active_count && !c->rate && !c->backlog)
        return;
    if (!has_credit(m, there)) {
        m->counters.clients[number].stall_credit++;
        return;
    }
    if (c->sending == NONE) {
        c->sending = next_request(m, number);
        if (c->sending == NONE)
            return;
        const struct item *r = &m->items[c->sending];
        c->flits_left = r->write ? accesses_of(m, r->address, r->bytes) * m->access_flits : 1;
    }
    int last = --c->flits_left == 0;
    put(m, there, c->sending << 1 | last);
    if (last)
        c->sending = NONE;
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

static void run_cycle(struct npu_memory *m)
{
    const struct npu_memory_config *c = &m->c;
    for (int64_t i = 0; i < c->clients; i++) {
        struct client *client = &m->clients[i];
        for (; client->rate && client->arrival <= m->now; schedule_burst(client))
            client->backlog++;
    }
    for (int64_t i = 0; i < c->channels; i++)
        run_channel(m, i);
    for (int64_t i = 0; i < c->clients; i++)
        split(m, &m->clients[(m->now + i) % c->clients]);
    if (m->in_ports) {
        for (int64_t i = 0; i < c->clients; i++)
            for (int64_t hop = 0; hop < c->hops[i]; hop++) {
                return_credits(m, &m->ports[THERE][i][hop]);
                return_credits(m, &m->ports[BACK][i][hop]);
            }
        for (int64_t i = 0; i < c->links; i++) {
            int64_t other = c->other[i];
            if (other == NONE)
                move_link(m, i);
            else if (other > i && !move_link(m, m->now & 1 ? other : i))
                move_link(m, m->now & 1 ? i : other);
        }
    }
    for (int64_t i = 0; i < c->clients; i++)
        run_client(m, (int32_t)i);
    if (m->in_ports)
        for (int64_t i = 0; i < c->clients; i++)
            for (int64_t hop = 0; hop < c->hops[i]; hop++) {
                struct npu_memory_port_counters *there = m->ports[THERE][i][hop].counters, *back = m->ports[BACK][i][hop].counters;
                there->occupancy += there->in_use;
                back->occupancy += back->in_use;
            }
    m->now++;
    m->counters.cycles++;
}

/* The first cycle from now on in which something happens, when nothing is on its way; at most `limit`. */
static int64_t next_cycle(const struct npu_memory *m, int64_t limit)
{
    int64_t cycle = limit, step = m->c.cycle_ticks;
    for (int64_t i = 0; i < m->c.clients; i++) {
        const struct client *c = &m->clients[i];
        if (c->backlog)
            return m->now;
        if (c->rate)
            cycle = smaller(cycle, c->arrival);
        for (int64_t k = 0; k < c->active_count; k++) {
            const struct transfer *t = &m->transfers[c->active[k]];
            for (int side = READ; side <= WRITE; side++)
                if (!t->paused && t->sides[side].issued < t->sides[side].total)
                    cycle = smaller(cycle, ceil_div(t->sides[side].next, step));
        }
    }
    for (int64_t i = 0; i < m->c.channels; i++) {
        const struct channel *ch = &m->channels[i];
        if (!ch->refreshing && ch->pins_free > m->now * step)
            return m->now;
        cycle = smaller(cycle, ceil_div(ch->refreshing ? ch->refresh_end : smaller(ch->refresh_due, limit * step), step));
    }
    return larger(cycle, m->now);
}

static void skip_to(struct npu_memory *m, int64_t cycle)
{
    int64_t skipped = cycle - m->now;
    for (int64_t i = 0; i < m->c.channels; i++)
        *(m->channels[i].refreshing ? &m->counters.channels[i].refresh_cycles : &m->counters.channels[i].idle_cycles) += skipped;
    m->counters.cycles += skipped;
    m->now = cycle;
}

int64_t npu_memory_advance(struct npu_memory *m, int64_t until_ticks, int64_t *at_ticks)
{
    int64_t limit = until_ticks / m->c.cycle_ticks + 1;
    while (!m->ended_count && m->now < limit && !m->failed) {
        if (!m->items_live && !m->writes_queued && !m->in_ports) {
            int64_t cycle = next_cycle(m, limit);
            if (cycle > m->now) {
                skip_to(m, cycle);
                continue;
            }
        }
        run_cycle(m);
    }
    if (!m->ended_count)
        return NONE;
    int32_t slot = m->ended[0];
    memmove(m->ended, m->ended + 1, (size_t)(--m->ended_count) * sizeof *m->ended);
    *at_ticks = (m->now - 1) * m->c.cycle_ticks;
    forget(&m->transfers[slot]);
    return slot;
}

/* ---- transfers --------------------------------------------------------------------------------------------------- */

/* Take over the runs of a side; one that begins in the access in which the one before ends goes on with it. */
static int start_side(struct npu_memory *m, int32_t client, struct stream *s, const int64_t *runs, int64_t count, int64_t at,
                      int64_t pace)
{
    int64_t size = m->c.access_bytes, kept = 0;
    memset(s, 0, sizeof *s);
    if (!count)
        return 1;
    s->run = s->runs = malloc((size_t)count * sizeof *s->runs);
    if (s->runs == NULL)
        return 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t address = runs[2 * i], bytes = runs[2 * i + 1];
        struct run *last = kept ? &s->runs[kept - 1] : NULL;
        if (last == NULL || address / size != (last->address + last->bytes - 1) / size) {
            s->runs[kept++] = (struct run){address, bytes, bytes};
            continue;
        }
        int64_t end = larger(last->address + last->bytes, address + bytes);
        last->address = smaller(last->address, address);
        last->bytes = end - last->address;
        last->asked += bytes;
    }
    for (int64_t i = 0; i < kept; i++)
        s->total += accesses_of(m, s->runs[i].address, s->runs[i].bytes);
    s->interval = pace / s->total;
    s->remainder = pace % s->total;
    s->next = at;
    keep_pace(m, client, s);
    return 1;
}

int64_t npu_memory_submit(struct npu_memory *m, int64_t client, int64_t at_ticks, const int64_t *read_runs, int64_t reads,
                          const int64_t *write_runs, int64_t writes, int64_t pace_ticks)
{
    struct client *c = &m->clients[client];
    int64_t slot = 0, before = m->transfer_room;
    while (slot < before && m->transfers[slot].live)
        slot++;
    if (!GROW(m->transfers, m->transfer_room, slot + 1))
        return NONE;
    if (m->transfer_room > before)
        memset(m->transfers + before, 0, (size_t)(m->transfer_room - before) * sizeof *m->transfers);
    struct transfer *t = &m->transfers[slot];
    memset(t, 0, sizeof *t);
    if (!GROW(c->active, c->active_room, c->active_count + 1) ||
        !start_side(m, (int32_t)client, &t->sides[READ], read_runs, reads, at_ticks, pace_ticks) ||
        !start_side(m, (int32_t)client, &t->sides[WRITE], write_runs, writes, at_ticks, pace_ticks)) {
        free(t->sides[READ].runs);
        t->sides[READ].runs = NULL;
        return NONE;
    }
    t->serial = m->serial++;
    t->client = (int32_t)client;
    t->live = 1;
    c->active[c->active_count++] = (int32_t)slot;
    return slot;
}

void npu_memory_cancel(struct npu_memory *m, int64_t transfer)
{
    struct transfer *t = &m->transfers[transfer];
    struct client *c = &m->clients[t->client];
    remove_slot(c->active, &c->active_count, (int32_t)transfer);
    remove_slot(m->ended, &m->ended_count, (int32_t)transfer);
    t->cancelled = 1;
    settle(m, (int32_t)transfer);
}

void npu_memory_pause(struct npu_memory *m, int64_t transfer, int on, int64_t at_ticks)
{
    struct transfer *t = &m->transfers[transfer];
    t->paused = on;
    if (on && t->ended) /* in this cycle, and not told yet */
        remove_slot(m->ended, &m->ended_count, (int32_t)transfer);
    if (on)
        return;
    for (int side = READ; side <= WRITE; side++)
        t->sides[side].next = larger(t->sides[side].next, at_ticks);
    if (t->ended)
        tell(m, (int32_t)transfer);
    else
        settle(m, (int32_t)transfer);
}

void npu_memory_set_priority(struct npu_memory *m, int64_t client, int64_t priority) { m->clients[client].priority = priority; }

void npu_memory_set_background(struct npu_memory *m, int64_t client, int64_t rate, int64_t write_rate, int64_t accesses,
                               int64_t address, int64_t bytes, uint64_t seed)
{
    struct client *c = &m->clients[client];
    c->rate = rate, c->write_rate = write_rate, c->burst = accesses, c->base = address, c->bytes = bytes, c->seed = seed;
    c->draws = 0, c->backlog = c->bursts = 0;
    c->arrival = m->now - 1;
    if (rate)
        schedule_burst(c);
}
