/* The memory path cycle by cycle, as memory.h says: its life, its transfers and its time. Clients (memory_clients.c) put requests into the
 * network (memory_noc.c), which moves their flits to the controller (memory_ddr.c); all state is in one struct, so a run depends on nothing but its calls. */
#include "memory_state.h"
#include <stdlib.h>
#include <string.h>

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

struct npu_memory *npu_memory_new(const struct npu_memory_config *config)
{
    struct npu_memory *m = calloc(1, sizeof *m);
    if (m == NULL)
        return NULL;
    m->c = *config;
    m->access_flits = ceil_div(config->access_bytes, config->flit_bytes);
    m->free_item = NONE;
    for (int64_t i = 0; i < config->channels; i++) {
        m->channels[i].refresh_due = config->t_refi ? config->t_refi : NEVER;
        m->channels[i].pins_free = -config->t_rtw; /* nobody waits for the pins to turn who is the first */
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
                m->clients[i].takes_turns |= config->other[link] != NONE;
                m->ports[direction][i][hop].counters =
                    &m->counters.ports[(direction * NPU_MEMORY_CLIENTS + i) * NPU_MEMORY_HOPS + hop];
            }
    }
    for (int64_t i = 0; i < config->links; i++) { /* the first turn is the first user's */
        m->links[i].holder = larger(m->user_count[i] - 1, 0);
        m->links[i].kept = NEVER;
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
    }
    free(m->items);
    free(m->transfers);
    free(m->ended);
    free(m);
}

const struct npu_memory_counters *npu_memory_read_counters(const struct npu_memory *m) { return &m->counters; }

/* ---- items and transfers ------------------------------------------------------------------------------------------ */

int32_t item_take(struct npu_memory *m)
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

void item_give(struct npu_memory *m, int32_t index)
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
void access_done(struct npu_memory *m, const struct item *a)
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

/* ---- time -------------------------------------------------------------------------------------------------------- */

/* Over two directions that exclude each other move one flit of data, of the one whose turn it is if it has any; requests have their own wires. */
static void links_move(struct npu_memory *m, int64_t number, int64_t other)
{
    int32_t *others_turn = &m->links[number].others_turn;
    int64_t first = *others_turn ? other : number, second = *others_turn ? number : other;
    int moved = link_move(m, first, 0) == DATA_MOVED;
    *others_turn ^= moved;
    link_move(m, second, moved);
}

static void run_cycle(struct npu_memory *m)
{
    const struct npu_memory_config *c = &m->c;
    for (int64_t i = 0; i < c->clients; i++) {
        struct client *client = &m->clients[i];
        for (; client->rate && client->arrival <= m->now; client_schedule_burst(client))
            client->backlog++;
    }
    for (int64_t i = 0; i < c->channels; i++)
        ddr_run_channel(m, i);
    for (int64_t i = 0; i < c->clients; i++)
        ddr_split(m, &m->clients[(m->now + i) % c->clients]);
    if (m->in_ports) {
        for (int64_t i = 0; i < c->clients; i++)
            for (int64_t hop = 0; hop < c->hops[i]; hop++) {
                port_return_credits(m, &m->ports[THERE][i][hop]);
                port_return_credits(m, &m->ports[BACK][i][hop]);
            }
        for (int64_t i = 0; i < c->links; i++) {
            int64_t other = c->other[i];
            if (other == NONE)
                link_move(m, i, 0);
            else if (other > i)
                links_move(m, i, other);
        }
    }
    for (int64_t i = 0; i < c->clients; i++)
        client_run(m, (int32_t)i);
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

/* Take over the runs of a side; one that begins in the access in which the one before ends goes on with it. Return how many are left, or NONE
 * without memory. */
static int64_t start_side(struct npu_memory *m, struct stream *s, const int64_t *runs, int64_t count, int64_t at, int64_t pace)
{
    int64_t size = m->c.access_bytes, kept = 0;
    memset(s, 0, sizeof *s);
    s->oldest = s->newest = NONE;
    if (!count)
        return 0;
    s->run = s->runs = malloc((size_t)count * sizeof *s->runs);
    if (s->runs == NULL)
        return NONE;
    for (int64_t i = 0; i < count; i++) {
        int64_t address = runs[2 * i], bytes = runs[2 * i + 1];
        struct run *last = kept ? &s->runs[kept - 1] : NULL;
        if (last == NULL || address / size != (last->address + last->bytes - 1) / size) {
            s->runs[kept++] = (struct run){address, bytes, bytes, 0};
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
    return kept;
}

static int by_turn(const void *one, const void *other)
{
    const struct run *a = one, *b = other;
    int64_t less[] = {a->turn - b->turn, a->address - b->address, a->bytes - b->bytes, a->asked - b->asked};
    for (size_t i = 0; i < sizeof less / sizeof *less; i++)
        if (less[i])
            return less[i] < 0 ? -1 : 1;
    return 0;
}

/* Put the runs of a buffer in an order in which the banks take turns: the first page of each of them, by address, then the next one. A run has the
 * page in which it begins. Return whether the order is another one. */
static int order_buffer(struct npu_memory *m, struct run *runs, int64_t count)
{
    struct { int64_t row, turn; } last[NPU_MEMORY_CHANNELS][NPU_MEMORY_BANKS];
    int64_t row;
    int32_t bank;
    int changed = 0;
    for (int64_t i = 1; i < count && !changed; i++)
        changed = by_turn(&runs[i - 1], &runs[i]) > 0;
    if (changed)
        qsort(runs, (size_t)count, sizeof *runs, by_turn);
    for (int64_t i = 0; i < m->c.channels; i++)
        for (int64_t k = 0; k < m->c.banks; k++)
            last[i][k].turn = NONE;
    int turned = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t channel = ddr_locate(m, runs[i].address, &bank, &row) - m->channels;
        if (last[channel][bank].turn == NONE || last[channel][bank].row != row)
            last[channel][bank].row = row, last[channel][bank].turn++;
        runs[i].turn = last[channel][bank].turn;
        turned |= i && runs[i].turn < runs[i - 1].turn;
    }
    if (turned)
        qsort(runs, (size_t)count, sizeof *runs, by_turn);
    return changed || turned;
}

/* Cut the runs of a side, of which there are `given`, where a buffer ends, and order those of each buffer. 0 without memory. */
static int order_side(struct npu_memory *m, struct transfer *t, struct stream *s, int64_t given)
{
    int64_t size = m->c.access_bytes, count = 0, first = 0, at = 0;
    if (given < 2 && client_fewest(t, s) == s->total) /* requests end where buffers do */
        return 1;
    struct run *runs = malloc((size_t)(given + client_buffer_of(m, t, s, s->total - 1) + 1) * sizeof *runs);
    if (runs == NULL)
        return 0;
    for (int64_t i = 0; i < given;) {
        struct run *r = &s->runs[i];
        int64_t room = client_buffer_end(m, t, s, client_buffer_of(m, t, s, at)) - at;
        int64_t accesses = smaller(accesses_of(m, r->address, r->bytes), room);
        int64_t bytes = smaller(r->bytes, accesses * size - r->address % size), asked = smaller(bytes, r->asked);
        runs[count++] = (struct run){r->address, bytes, asked, 0};
        r->address += bytes, r->bytes -= bytes, r->asked -= asked;
        at += accesses;
        i += !r->bytes;
        if (accesses == room) {
            t->reordered |= order_buffer(m, runs + first, count - first);
            first = count;
        }
    }
    free(s->runs);
    s->run = s->runs = runs;
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
    t->client = (int32_t)client;
    int64_t given[] = {start_side(m, &t->sides[READ], read_runs, reads, at_ticks, pace_ticks),
                       start_side(m, &t->sides[WRITE], write_runs, writes, at_ticks, pace_ticks)};
    int has_room = GROW(c->active, c->active_room, c->active_count + 1) && given[READ] != NONE && given[WRITE] != NONE;
    for (int side = READ; side <= WRITE && has_room; side++) {
        has_room = order_side(m, t, &t->sides[side], given[side]);
        client_keep_pace(m, t->client, &t->sides[side]);
    }
    if (!has_room) {
        forget(t);
        return NONE;
    }
    t->serial = m->serial++;
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
        client_schedule_burst(c);
}
