/* The DDR controller of the memory path: addresses, queues, and a channel's commands. */
#include "memory_state.h"
#include <stdlib.h>
#include <string.h>

/* Channel, bank and row of an address: channels change every interleave_bytes; what a channel has of the addresses is cut
 * into pages, and pages go to the banks in turn; bank_xor mixes the row into the bank. */
struct channel *ddr_locate(struct npu_memory *m, int64_t address, int32_t *bank, int64_t *row)
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
    struct channel *ch = ddr_locate(m, r->address, &bank, &row);
    if (ch->count == m->c.queue_depth)
        return 0;
    int64_t transfer = r->slot == NONE ? NONE : m->transfers[r->slot].serial;
    struct entry e = {child, r->client, bank, HIT, r->write, 0, 0, row, m->now, transfer};
    for (int64_t i = 0; i < ch->count && transfer != NONE; i++)
        if (ch->queue[i].transfer == transfer)
            e.before++, e.writes_before += ch->queue[i].write;
    ch->held_up += !e.write && e.writes_before;
    ch->writes += e.write;
    ch->drains |= ch->writes >= ceil_div(m->c.queue_depth, 2);
    ch->queue[ch->count++] = e;
    return 1;
}

/* Whether the controller can take the flit. Of each client it splits one read at a time; what is written has to wait in
 * front of it for a read of its transfer, and until the queue has room for the access, of which the last flit takes the place. */
int ddr_accepts(struct npu_memory *m, int32_t flit)
{
    const struct item *r = &m->items[flit >> 1];
    int32_t bank, splitting = m->clients[r->client].splitting;
    int64_t row;
    if (!r->write)
        return splitting == NONE;
    if (splitting != NONE && r->slot != NONE && m->items[splitting].slot == r->slot)
        return 0;
    return r->flits + 1 < m->access_flits || ddr_locate(m, r->address, &bank, &row)->count < m->c.queue_depth;
}

void ddr_sink(struct npu_memory *m, int32_t flit)
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
        item_give(m, index);
}

/* Read data will go back behind what the client has already. */
static void queue_data(struct npu_memory *m, int32_t index)
{
    struct client *c = &m->clients[m->items[index].client];
    if (c->data_count == c->data_room) { /* unroll the ring */
        int64_t room = c->data_room ? 2 * c->data_room : 64;
        int32_t *data = malloc((size_t)room * sizeof *data);
        if (data == NULL) {
            m->failed = 1;
            return;
        }
        for (int64_t i = 0; i < c->data_count; i++)
            data[i] = c->data[(c->data_head + i) % c->data_room];
        free(c->data);
        c->data = data, c->data_head = 0, c->data_room = room;
    }
    c->data[(c->data_head + c->data_count++) % c->data_room] = index;
}

/* A client's only transfer has an order of its own; of several it depends on time which goes first, so there is none to keep. */
static int is_alone(const struct npu_memory *m, int32_t client) { return m->clients[client].active_count < 2; }

/* An access is in its channel's queue: its data will go back behind that of the accesses of its transfer before it. */
static void await_data(struct npu_memory *m, int32_t index)
{
    struct item *a = &m->items[index];
    a->ready = NEVER;
    a->later = a->earlier = NONE;
    if (a->slot == NONE)
        return;
    struct stream *s = &m->transfers[a->slot].sides[READ];
    a->earlier = s->newest;
    *(s->newest == NONE ? &s->oldest : &m->items[s->newest].later) = index;
    s->newest = index;
}

static void send_back(struct npu_memory *m, int32_t index)
{
    struct item *a = &m->items[index];
    if (a->slot != NONE) {
        struct stream *s = &m->transfers[a->slot].sides[READ];
        *(a->earlier == NONE ? &s->oldest : &m->items[a->earlier].later) = a->later;
        *(a->later == NONE ? &s->newest : &m->items[a->later].earlier) = a->earlier;
    }
    queue_data(m, index);
}

/* The data of a read will be with the controller in a cycle. */
static void expect_data(struct npu_memory *m, int32_t index, int64_t cycle)
{
    struct item *a = &m->items[index];
    a->ready = cycle;
    if (a->slot == NONE || !is_alone(m, a->client))
        send_back(m, index);
    if (a->slot == NONE)
        return;
    const struct stream *s = &m->transfers[a->slot].sides[READ];
    while (s->oldest != NONE && m->items[s->oldest].ready != NEVER)
        send_back(m, s->oldest);
}

/* Put one access of the client's read into its channel's queue, if it has room. */
void ddr_split(struct npu_memory *m, struct client *c)
{
    int32_t index = c->splitting, child;
    if (index == NONE || (child = item_take(m)) == NONE)
        return;
    struct item *r = &m->items[index];
    if (!enqueue(m, r, child)) {
        item_give(m, child);
        return;
    }
    m->items[child] = *r;
    m->items[child].bytes = next_bytes(m, r);
    r->address += m->items[child].bytes;
    r->bytes -= m->items[child].bytes;
    if (!r->bytes) {
        item_give(m, index);
        c->splitting = NONE;
    }
    await_data(m, child);
}

/* When the data of a column command that goes now would be on the pins; NONE when a later cycle would not be worse, or when
 * the bank could not be closed before the refresh that is due. */
static int64_t data_start(const struct npu_memory *m, const struct channel *ch, int write)
{
    int64_t earliest = m->now * m->c.cycle_ticks + (write ? m->c.t_cwl : m->c.t_cl), free = ch->pins_free;
    if (write != ch->direction)
        free += write ? m->c.t_rtw : m->c.t_wtr;
    int64_t start = larger(earliest, free);
    int64_t over = write ? start + m->c.access_ticks + m->c.t_wr : m->now * m->c.cycle_ticks + m->c.access_ticks;
    return start < earliest + m->c.cycle_ticks && over <= ch->refresh_due ? start : NONE;
}

static void column(struct npu_memory *m, struct channel *ch, struct npu_memory_channel_counters *n, int64_t at, int64_t start)
{
    struct entry e = ch->queue[at];
    struct bank *b = &ch->banks[e.bank];
    int64_t end = start + m->c.access_ticks;
    memmove(ch->queue + at, ch->queue + at + 1, (size_t)(--ch->count - at) * sizeof e);
    for (int64_t i = at; i < ch->count && e.transfer != NONE; i++) {
        struct entry *later = &ch->queue[i];
        if (later->transfer != e.transfer)
            continue;
        later->before--;
        later->writes_before -= e.write;
        ch->held_up -= e.write && !later->write && !later->writes_before;
    }
    n->turnarounds += e.write != ch->direction;
    ch->direction = e.write;
    ch->pins_free = end;
    n->data_ticks += m->c.access_ticks;
    *(e.found == HIT ? &n->hits : e.found == MISS ? &n->misses : &n->conflicts) += 1;
    m->counters.clients[e.client].bytes_moved += m->c.access_bytes;
    if (e.write) {
        n->writes++;
        ch->drains &= --ch->writes > m->c.queue_depth / 4;
        b->precharge_from = larger(b->precharge_from, end + m->c.t_wr);
        m->writes_queued--;
    } else {
        n->reads++;
        b->precharge_from = larger(b->precharge_from, m->now * m->c.cycle_ticks + m->c.access_ticks);
        expect_data(m, e.item, ceil_div(end, m->c.cycle_ticks));
    }
}

/* Begin a refresh of all banks: every open page may be closed. */
static void refresh(struct npu_memory *m, struct channel *ch, struct npu_memory_channel_counters *n)
{
    ch->refreshing = 1;
    ch->refresh_due += m->c.t_refi;
    ch->refresh_end = m->now * m->c.cycle_ticks + m->c.t_rp + m->c.t_rfc;
    n->refreshes++;
    for (int64_t i = 0; i < m->c.banks; i++) {
        n->precharges += ch->banks[i].row != NONE;
        ch->banks[i].row = NONE;
        ch->banks[i].activate_from = larger(ch->banks[i].activate_from, ch->refresh_end);
    }
}

/* Whether an access stays behind others of its transfer: behind those in the other direction, and behind all where the client has no other one. */
static int waits_for_its_own(const struct npu_memory *m, const struct entry *e)
{
    int32_t turned = e->write ? e->before - e->writes_before : e->writes_before;
    return turned || (e->before && is_alone(m, e->client));
}

/* First ready, first come, but a transfer's accesses in order: the oldest access that can use an open page in the direction that goes
 * first; else, when no such access waits, in the other one. When the oldest of all has waited for too long, the others do nothing
 * that it waits for: in its bank, or on the pins when its page is open. Reads go first; writes when none waits, when one waits for
 * a write of its own transfer, and when they are half of the queue, until they are a quarter of it. */
static void command_column(struct npu_memory *m, struct channel *ch, struct npu_memory_channel_counters *n)
{
    const struct entry *oldest = ch->queue;
    int64_t ticks = m->now * m->c.cycle_ticks, other = NONE, same = 0;
    int32_t first = ch->drains || ch->held_up || ch->writes == ch->count ? WRITE : READ;
    int aged = m->now - oldest->arrived > m->c.age_limit_cycles;
    int64_t columns = aged && ch->banks[oldest->bank].row == oldest->row ? 1 : ch->count;
    int64_t start[2] = {data_start(m, ch, READ), data_start(m, ch, WRITE)};
    for (int64_t i = 0; i < columns && (start[READ] >= 0 || start[WRITE] >= 0); i++) {
        const struct entry *e = &ch->queue[i];
        const struct bank *b = &ch->banks[e->bank];
        if (b->row != e->row || waits_for_its_own(m, e) || (aged && i && e->bank == oldest->bank))
            continue;
        int can = b->column_from <= ticks && start[e->write] >= 0;
        if (e->write != first) {
            other = can && other == NONE ? i : other;
            continue;
        }
        same = 1;
        if (can) {
            column(m, ch, n, i, start[e->write]);
            return;
        }
    }
    if (!same && other != NONE)
        column(m, ch, n, other, start[!first]);
}

/* The oldest access of each bank opens its page, or closes another one. */
static void command_rows(struct npu_memory *m, struct channel *ch, struct npu_memory_channel_counters *n)
{
    int64_t ticks = m->now * m->c.cycle_ticks;
    uint64_t seen = 0; /* banks that an earlier access uses */
    for (int64_t i = 0; i < ch->count; i++) {
        struct entry *e = &ch->queue[i];
        struct bank *b = &ch->banks[e->bank];
        uint64_t bit = (uint64_t)1 << e->bank;
        if (seen & bit)
            continue;
        seen |= bit;
        if (b->row == e->row)
            continue;
        if (b->row != NONE) {
            if (b->precharge_from > ticks)
                continue;
            b->row = NONE;
            b->activate_from = ticks + m->c.t_rp;
            e->found = CONFLICT;
            n->precharges++;
        } else if (b->activate_from <= ticks && ticks + m->c.t_ras <= ch->refresh_due) {
            b->row = e->row;
            b->column_from = ticks + m->c.t_rcd;
            b->precharge_from = ticks + m->c.t_ras;
            e->found = e->found == HIT ? MISS : e->found;
            n->activates++;
        }
    }
}

void ddr_run_channel(struct npu_memory *m, int64_t number)
{
    struct channel *ch = &m->channels[number];
    struct npu_memory_channel_counters *n = &m->counters.channels[number];
    int64_t ticks = m->now * m->c.cycle_ticks;
    if (ch->refreshing && ticks >= ch->refresh_end)
        ch->refreshing = 0;
    if (!ch->refreshing && ticks >= ch->refresh_due)
        refresh(m, ch, n);
    if (ch->refreshing) {
        n->refresh_cycles++;
        return;
    }
    if (ch->count || ch->pins_free > ticks)
        n->busy_cycles++;
    else
        n->idle_cycles++;
    if (ch->count) {
        command_column(m, ch, n);
        command_rows(m, ch, n);
    }
}
