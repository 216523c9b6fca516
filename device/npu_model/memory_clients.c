/* The clients of the memory path: transfers at their pace, generators of background traffic, and both ends of the network. */
#include "memory_state.h"

static uint64_t mix(uint64_t seed, uint64_t index) /* splitmix64 */
{
    uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void client_schedule_burst(struct client *c)
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
    int32_t index = item_take(m);
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

int64_t accesses_of(const struct npu_memory *m, int64_t address, int64_t bytes)
{
    return ceil_div(address % m->c.access_bytes + bytes, m->c.access_bytes);
}

/* Bytes of a stream's next request: of one run. */
static int64_t request_bytes(const struct npu_memory *m, int32_t client, const struct run *r)
{
    return smaller(r->bytes, m->c.request_accesses[client] * m->c.access_bytes - r->address % m->c.access_bytes);
}

/* The next request may go when the time of its share is over. */
void client_keep_pace(const struct npu_memory *m, int32_t client, struct stream *s)
{
    if (s->issued == s->total)
        return;
    int64_t accesses = accesses_of(m, s->run->address, request_bytes(m, client, s->run));
    s->sum += s->remainder * accesses;
    s->next += s->interval * accesses + s->sum / s->total;
    s->sum %= s->total;
}

static int is_copy(const struct transfer *t) { return t->sides[READ].total && t->sides[WRITE].total; }

/* A transfer's accesses go through buffers, each of as many as may be outstanding, of the side of a copy that has fewer. */
static int64_t buffer_accesses(const struct npu_memory *m, const struct transfer *t)
{
    return m->c.requests[t->client] * m->c.request_accesses[t->client];
}

int64_t client_fewest(const struct transfer *t, const struct stream *s)
{
    return is_copy(t) ? smaller(t->sides[READ].total, t->sides[WRITE].total) : s->total;
}

/* The buffer of an access of a side, in the order in which they were asked for; and the first access of a side that is behind a buffer. */
int64_t client_buffer_of(const struct npu_memory *m, const struct transfer *t, const struct stream *s, int64_t access)
{
    return access * client_fewest(t, s) / s->total / buffer_accesses(m, t);
}

int64_t client_buffer_end(const struct npu_memory *m, const struct transfer *t, const struct stream *s, int64_t buffer)
{
    return smaller(ceil_div((buffer + 1) * buffer_accesses(m, t) * s->total, client_fewest(t, s)), s->total);
}

/* Whether a copy has a buffer for the next request of a side. It has two: one is read into while the other, into which all reads
 * have been issued, is written out: as far as it has been read, if that was in order; where a link moves one flit both ways, when no read
 * is on its way back. */
static int buffer_allows(const struct npu_memory *m, const struct transfer *t, int side)
{
    const struct stream *read = &t->sides[READ], *write = &t->sides[WRITE];
    if (!is_copy(t))
        return 1;
    int64_t filled = client_buffer_of(m, t, read, read->issued), emptied = client_buffer_of(m, t, write, write->issued);
    if (side == READ)
        return filled < emptied + 2;
    if (read->issued < read->total && filled < emptied + 2)
        return 0;
    if (m->clients[t->client].takes_turns)
        return !read->open;
    if (t->reordered)
        return read->done >= client_buffer_end(m, t, read, emptied);
    return read->done * write->total >= (write->issued + accesses_of(m, write->run->address, request_bytes(m, t->client, write->run))) * read->total;
}

static int stream_state(const struct npu_memory *m, const struct transfer *t, int side)
{
    const struct stream *s = &t->sides[side];
    if (s->issued == s->total || t->paused || s->next > m->now * m->c.cycle_ticks)
        return NOTHING;
    if (s->open == m->c.requests[t->client])
        return WINDOW;
    return buffer_allows(m, t, side) ? CAN : DATA;
}

static int32_t issue(struct npu_memory *m, int32_t slot, int side)
{
    struct transfer *t = &m->transfers[slot];
    struct stream *s = &t->sides[side];
    struct npu_memory_client_counters *counters = &m->counters.clients[t->client];
    int32_t index = item_take(m), request = 0;
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
    if (!is_copy(t)) /* which catches up: its sides wait for each other's buffers */
        s->next = larger(s->next, (m->now - 1) * m->c.cycle_ticks + 1); /* on time if it is late by the rest of a cycle alone */
    client_keep_pace(m, t->client, s);
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

void client_run(struct npu_memory *m, int32_t number)
{
    struct client *c = &m->clients[number];
    struct port *there = &m->ports[THERE][number][0], *back = &m->ports[BACK][number][0];
    if (c->data_count && m->items[c->data[c->data_head]].ready <= m->now && port_has_credit(m, back)) {
        int last = ++c->data_flit == m->access_flits;
        port_put(m, back, c->data[c->data_head] << 1 | last);
        if (last)
            c->data_flit = 0, c->data_head = (c->data_head + 1) % c->data_room, c->data_count--;
    }
    if (c->sending == NONE && !c->active_count && !c->rate && !c->backlog)
        return;
    if (!port_has_credit(m, there)) {
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
    port_put(m, there, c->sending << 1 | last);
    if (last)
        c->sending = NONE;
}
