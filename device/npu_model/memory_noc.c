/* The network of the memory path: ports with credits, and links that serve them by priority, then in turn. */
#include "memory_state.h"
#include <stddef.h>

void port_put(struct npu_memory *m, struct port *p, int32_t flit)
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

static struct port *next_port(struct npu_memory *m, int direction, int32_t client, int32_t hop)
{
    return hop + 1 < m->c.hops[client] ? &m->ports[direction][client][hop + 1] : NULL;
}

static int is_request(const struct npu_memory *m, int direction, int32_t flit) { return direction == THERE && !m->items[flit >> 1].write; }

/* Move one flit over a link, if one can. */
int link_move(struct npu_memory *m, int64_t number, int requests_only)
{
    struct link *l = &m->links[number];
    struct npu_memory_link_counters *counters = &m->counters.links[number];
    int64_t users = m->user_count[number], best = NONE, wanting = 0, highest = NONE;
    int able[NPU_MEMORY_CLIENTS] = {0};
    for (int64_t i = 0; i < users; i++) {
        int direction = m->users[number][i].direction;
        int32_t client = m->users[number][i].client, hop = m->users[number][i].hop;
        struct port *p = &m->ports[direction][client][hop], *next = next_port(m, direction, client, hop);
        if (!p->count || p->ready[p->head] > m->now || (requests_only && !is_request(m, direction, p->flit[p->head])))
            continue;
        if (next != NULL) {
            if (!port_has_credit(m, next)) {
                counters->stall_credit++;
                continue;
            }
        } else if (direction == THERE && !ddr_accepts(m, p->flit[p->head])) {
            counters->stall_queue++;
            continue;
        }
        able[i] = 1;
        wanting++;
        highest = larger(highest, m->clients[client].priority);
    }
    if (!wanting)
        return NOTHING_MOVED;
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
    int moved = is_request(m, direction, flit) ? REQUEST_MOVED : DATA_MOVED;
    if (next != NULL)
        port_put(m, next, flit);
    else if (direction == THERE)
        ddr_sink(m, flit);
    else if (flit & 1) {
        access_done(m, &m->items[flit >> 1]);
        item_give(m, flit >> 1);
    }
    return moved;
}
