#include "reduce/coll_witness.h"

#include "reduce/coll_net.h"

static bool is_open(const struct coll_net *net, unsigned node)
{
    return net->peers[node] && ntbm_peer_is_open(net->peers[node]);
}

static void say(struct coll_net *net, unsigned to, enum coll_wire_type type, unsigned about)
{
    struct coll_out out = {.len = 0};
    coll_put(&out, type, 1);
    coll_put(&out, about, 2);
    coll_net_send(net, to, &out);
}

static void ask_all(struct coll_net *net, unsigned about)
{
    for (unsigned n = 0; n < net->node_count; n++) {
        if (n != about && n != net->node)
            say(net, n, COLL_WIRE_SEEK, about);
    }
}

static void answer_all(struct coll_net *net, unsigned about)
{
    struct ring_nodes askers = net->witness[about].askers;
    net->witness[about].askers = (struct ring_nodes){0};
    for (unsigned n = 0; n < net->node_count; n++) {
        if (ring_nodes_has(&askers, n))
            say(net, n, COLL_WIRE_HEARS, about);
    }
}

void coll_witness_poll(struct coll_net *net)
{
    for (unsigned n = 0; n < net->node_count; n++) {
        struct coll_witness *witness = &net->witness[n];
        bool suspects = is_open(net, n) && net->peers[n]->state == NTBM_SUSPECT;
        if (suspects && !witness->asked)
            ask_all(net, n);
        witness->asked = suspects;
        if (ring_nodes_empty(&witness->askers))
            continue;
        uint64_t beats = net->peers[n]->figures.beats_heard;
        if (witness->is_new)
            witness->beats = beats;
        else if (witness->beats != beats)
            answer_all(net, n);
        witness->is_new = false;
    }
}

void coll_witness_hear(struct coll_net *net, unsigned node, enum coll_wire_type type, struct coll_in *in)
{
    unsigned about = (unsigned)coll_get(in, 2);
    if (in->short_ || about >= net->node_count || about == node || !is_open(net, about))
        return;
    struct coll_witness *witness = &net->witness[about];
    if (type == COLL_WIRE_HEARS) {
        ntbm_peer_vouch(net->peers[about]);
        return;
    }
    ring_nodes_add(&witness->askers, node);
    witness->is_new = true;
}

void coll_witness_forget(struct coll_net *net, unsigned node)
{
    net->witness[node] = (struct coll_witness){.asked = false};
    for (unsigned n = 0; n < net->node_count; n++)
        ring_nodes_drop(&net->witness[n].askers, node);
}

bool coll_witness_is_busy(const struct coll_net *net)
{
    for (unsigned n = 0; n < net->node_count; n++) {
        if (net->witness[n].asked || !ring_nodes_empty(&net->witness[n].askers))
            return true;
    }
    return false;
}
