#include "reduce/coll_net.h"

#include "reduce/coll_internal.h"
#include "reduce/coll_wire.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEARD_BYTES_MAX (128u << 10) /* of a JOB: that of all tags and ranks there can be */
#define ITEM_BYTES 128u         /* the longest thing in a JOB that is not cut, but for the configuration */
#define ROOM_BYTES (128u << 10) /* so much may wait for a node before jobs are told to it one by one */
#define ERRNO_MAX                                                                             \
    511u /* the kernel takes no answer with a greater one, and the client would wait for ever \
          */
#define LOOK_NS 5000000u      /* between looks for operations that do not move */
#define FORGET_NS 1000000000u /* and for words that nobody waits for any more */

/* What a JOB says first. ANSWERS: the sender has the ranks of the one it speaks to. */
enum job_news { JOB_STATES, JOB_GONE, JOB_ANSWERS };

/* The last JOB of a node about a name. */
struct heard {
    struct ut_list link;
    unsigned node;
    bool answers; /* to what ranks of ours are in the job now */
    bool whole;   /* all its messages have come */
    char name[COLL_NAME_BYTES];
    uint32_t len;
    uint8_t bytes[];
};

static bool is_open(const struct coll_net *net, unsigned node)
{
    return net->peers[node] && ntbm_peer_is_open(net->peers[node]);
}

void coll_net_send(struct coll_net *net, unsigned node, const struct coll_out *out)
{
    if (!is_open(net, node))
        return;
    int rc = out->full ? -EMSGSIZE : ntbm_peer_send(net->peers[node], out->bytes, out->len);
    if (rc && rc != -ENOTCONN)
        ntbm_peer_close(net->peers[node], "control messages have no room");
}

static void send_all(struct coll_net *net, const struct coll_out *out, const struct ring_nodes *nodes)
{
    for (unsigned n = 0; n < net->node_count; n++) {
        if (n != net->node && ring_nodes_has(nodes, n))
            coll_net_send(net, n, out);
    }
}

static struct coll_net_job *find_job(const struct coll_net *net, uint64_t id)
{
    UT_LIST_EACH(&net->jobs, struct coll_net_job, link, entry)
    {
        if (entry->id == id)
            return entry;
    }
    return NULL;
}

static struct coll_net_job *entry_of(const struct coll_net *net, const struct coll_job *job)
{
    UT_LIST_EACH(&net->jobs, struct coll_net_job, link, entry)
    {
        if (entry->job == job)
            return entry;
    }
    return NULL;
}

/* ---- telling ---- */

static void put_cmd(struct coll_out *out, const struct coll_cmd *cmd)
{
    coll_put(out, cmd->kind, 1);
    coll_put(out, cmd->dtype, 1);
    coll_put(out, cmd->op, 1);
    coll_put(out, cmd->count, 8);
    coll_put(out, cmd->root, 2);
    coll_put_text(out, cmd->tag);
}

static void put_ask(struct coll_out *out, const struct coll_ask *ask, uint64_t job_id)
{
    coll_put(out, COLL_WIRE_ASK, 1);
    coll_put(out, job_id, 8);
    coll_put(out, ask->op->seq, 8);
    coll_put(out, ask->rank->number, 2);
    coll_put(out, (uint32_t)ask->pid, 4);
    coll_put(out, ask->crosses, 1);
    put_cmd(out, &ask->cmd);
}

static void put_fail(struct coll_out *out, uint64_t job_id, uint64_t seq, const struct coll_cmd *cmd,
                     const struct coll_why *why)
{
    coll_put(out, COLL_WIRE_FAIL, 1);
    coll_put(out, job_id, 8);
    coll_put(out, seq, 8);
    put_cmd(out, cmd);
    coll_put(out, (uint32_t)-why->result, 4);
    coll_put_text(out, why->missing);
    coll_put_text(out, why->err.text);
}

/* What has to be the same on all nodes, as text: the lines of `config`, but for the memory of each node. */
static void put_config(struct coll_out *out, const struct coll_job *job)
{
    struct ut_text text = {0};
    coll_config_render(&job->config, &text);
    uint16_t len = ut_text_failed(&text) ? 0 : (uint16_t)text.len;
    coll_put(out, len, 2);
    coll_put_bytes(out, text.bytes, len);
    ut_text_fini(&text);
}

/* A JOB under way to a node: as many messages as it takes, each with name and news, cut between two items. */
struct telling {
    struct coll_net *net;
    const struct coll_net_job *entry;
    unsigned node;
    enum job_news news;
    uint32_t more_at; /* where the message says whether another one follows */
    struct coll_out out;
};

static void begin_message(struct telling *job, bool is_first)
{
    job->out.len = 0;
    job->out.full = false;
    coll_put(&job->out, COLL_WIRE_JOB, 1);
    coll_put_text(&job->out, job->entry->job->name);
    coll_put(&job->out, job->news, 1);
    coll_put(&job->out, is_first, 1);
    job->more_at = job->out.len;
    coll_put(&job->out, 0, 1);
}

static void end_message(struct telling *job, bool more)
{
    job->out.bytes[job->more_at] = more;
    coll_net_send(job->net, job->node, &job->out);
}

/* Where the next item goes. */
static struct coll_out *next_item(struct telling *job)
{
    if (job->out.len > sizeof(job->out.bytes) - ITEM_BYTES) {
        end_message(job, true);
        begin_message(job, false);
    }
    return &job->out;
}

static void put_tags(struct telling *telling, const struct coll_job *job)
{
    coll_put(next_item(telling), job->tag_count, 2);
    UT_LIST_EACH(&job->tags, struct coll_tag, link, tag)
    {
        struct coll_out *out = next_item(telling);
        coll_put_text(out, tag->name);
        coll_put(out, coll_tag_floor(tag), 8);
    }
}

/* Also where another one has joined in its place: who has not heard yet that it was dropped would take the
 * two for rivals. */
static bool was_dropped(const struct coll_rank *rank)
{
    return rank->state == COLL_DROPPED || rank->dropped;
}

static void put_dropped(struct telling *telling, const struct coll_job *job)
{
    unsigned dropped = 0;
    for (unsigned r = 0; job->ranks && r < job->config.world; r++)
        dropped += was_dropped(&job->ranks[r]);
    coll_put(next_item(telling), dropped, 2);
    for (unsigned r = 0; dropped && r < job->config.world; r++) {
        if (!was_dropped(&job->ranks[r]))
            continue;
        struct coll_out *out = next_item(telling);
        coll_put(out, r, 2);
        coll_put(out, job->ranks[r].dropped, 4);
    }
}

static bool is_told(const struct coll_rank *rank)
{
    return coll_rank_is_local(rank) && (coll_rank_is_counting(rank) || rank->state == COLL_LOST);
}

static void put_ranks(struct telling *telling, const struct coll_job *job)
{
    unsigned present = 0;
    for (unsigned r = 0; job->ranks && r < job->config.world; r++)
        present += is_told(&job->ranks[r]);
    coll_put(next_item(telling), present, 2);
    for (unsigned r = 0; present && r < job->config.world; r++) {
        const struct coll_rank *rank = &job->ranks[r];
        if (!is_told(rank))
            continue;
        struct coll_out *out = next_item(telling);
        coll_put(out, r, 2);
        coll_put(out, rank->state, 1);
        coll_put(out, rank->incarnation, 4);
        coll_put(out, (uint32_t)rank->pid, 4);
        coll_put(out, rank->last_seq, 8);
    }
}

/* The requests of this node's ranks that wait. */
static void tell_pending(struct coll_net *net, const struct coll_net_job *entry, unsigned node)
{
    UT_LIST_EACH(&entry->job->tags, struct coll_tag, link, tag)
    {
        UT_LIST_EACH(&tag->ops, struct coll_operation, link, op)
        {
            for (unsigned r = 0; op->state == COLL_GATHER && r < entry->job->config.world; r++) {
                const struct coll_ask *ask = op->ask[r];
                struct coll_out out = {.len = 0};
                if (!ask || ask->withdrawn || !coll_rank_is_local(ask->rank))
                    continue;
                put_ask(&out, ask, entry->id);
                coll_net_send(net, node, &out);
            }
        }
    }
}

static void tell_job(struct coll_net *net, const struct coll_net_job *entry, unsigned node)
{
    struct telling job = {.net = net, .entry = entry, .node = node};
    if (!is_open(net, node) || (!entry->job->joined && !entry->told))
        return; /* its configuration is not final yet, and nobody waits for us */
    job.news = ring_nodes_has(&entry->has, node) ? JOB_ANSWERS : JOB_STATES;
    begin_message(&job, true);
    coll_put(&job.out, entry->uid, 4);
    put_config(&job.out, entry->job);
    put_tags(&job, entry->job);
    put_dropped(&job, entry->job);
    put_ranks(&job, entry->job);
    end_message(&job, false);
}

static void tell_gone(struct coll_net *net, const struct coll_net_job *entry)
{
    for (unsigned n = 0; n < net->node_count; n++) {
        struct telling job = {.net = net, .entry = entry, .node = n, .news = JOB_GONE};
        if (n == net->node)
            continue;
        begin_message(&job, true);
        end_message(&job, false);
    }
}

/* Who hears of a request must have heard of the rank. */
static void tell_before_ask(struct coll_net *net, struct coll_net_job *entry)
{
    for (unsigned n = 0; n < net->node_count; n++) {
        if (!ring_nodes_has(&entry->untold, n) || !ring_nodes_has(&entry->knows, n))
            continue;
        ring_nodes_drop(&entry->untold, n);
        tell_job(net, entry, n);
        entry->told = true;
    }
}

void coll_net_asked(struct coll_net *net, const struct coll_ask *ask)
{
    struct coll_net_job *entry = entry_of(net, ask->rank->job);
    struct coll_out out = {.len = 0};
    if (!entry || ring_nodes_empty(&entry->knows))
        return;
    if (!ring_nodes_empty(&entry->untold))
        tell_before_ask(net, entry);
    put_ask(&out, ask, entry->id);
    send_all(net, &out, &entry->knows);
}

void coll_net_withdrew(struct coll_net *net, const struct coll_ask *ask, bool dying)
{
    const struct coll_net_job *entry = entry_of(net, ask->rank->job);
    struct coll_out out = {.len = 0};
    if (!entry)
        return;
    coll_put(&out, COLL_WIRE_WITHDRAW, 1);
    coll_put(&out, entry->id, 8);
    coll_put(&out, ask->op->seq, 8);
    coll_put(&out, ask->rank->number, 2);
    coll_put(&out, dying, 1);
    coll_put_text(&out, ask->cmd.tag);
    send_all(net, &out, &entry->knows);
}

void coll_net_failed(struct coll_net *net, const struct coll_operation *op)
{
    const struct coll_net_job *entry = entry_of(net, op->job);
    struct coll_out out = {.len = 0};
    struct coll_cmd cmd = op->cmd;
    if (!entry)
        return;
    snprintf(cmd.tag, sizeof(cmd.tag), "%s", op->tag->name);
    put_fail(&out, entry->id, op->seq, &cmd, &op->why);
    send_all(net, &out, &entry->knows);
}

void coll_net_turn(struct coll_net *net, const struct coll_operation *op)
{
    const struct coll_net_job *entry = entry_of(net, op->job);
    struct coll_out out = {.len = 0};
    if (!entry)
        return;
    coll_put(&out, COLL_WIRE_TURN, 1);
    coll_put(&out, entry->id, 8);
    coll_put(&out, op->seq, 8);
    coll_put_text(&out, op->tag->name);
    send_all(net, &out, &entry->knows);
}

/* ---- hearing of jobs ---- */

static struct heard *find_heard(const struct coll_net *net, unsigned node, const char *name)
{
    UT_LIST_EACH(&net->heard, struct heard, link, heard)
    {
        if (heard->node == node && strcmp(heard->name, name) == 0)
            return heard;
    }
    return NULL;
}

static unsigned count_heard(const struct coll_net *net, unsigned node)
{
    unsigned count = 0;
    UT_LIST_EACH(&net->heard, struct heard, link, heard)
    {
        count += heard->node == node;
    }
    return count;
}

static void forget_heard(struct heard *heard)
{
    ut_list_remove(&heard->link);
    free(heard);
}

/* One line of a configuration, without the newline. */
static const char *next_line(const char **text, const char *end, size_t *len)
{
    const char *line = *text, *stop = line < end ? memchr(line, '\n', (size_t)(end - line)) : NULL;
    if (!stop)
        return NULL;
    *len = (size_t)(stop - line);
    *text = stop + 1;
    return line;
}

/* Compares two configurations and names the first key that differs. 0 or -EPROTO. */
static int compare_config(const struct coll_net *net, const struct coll_job *job, unsigned node,
                          const char *theirs, size_t len, struct ut_err *err)
{
    struct ut_text text = {0};
    int rc = 0;
    coll_config_render(&job->config, &text);
    const char *a = text.bytes, *a_end = a + text.len, *b = theirs, *b_end = theirs + len;
    size_t a_len, b_len;
    for (const char *ours; !rc && (ours = next_line(&a, a_end, &a_len));) {
        const char *other = next_line(&b, b_end, &b_len);
        bool same = other && a_len == b_len && memcmp(ours, other, a_len) == 0;
        if (!same && !(a_len > 6 && memcmp(ours, "memory", 6) == 0))
            rc = ut_err_set(err, -EPROTO,
                            "the nodes disagree about the job: node %u has \"%.*s\", node %u has \"%.*s\"",
                            net->node, (int)a_len, ours, node, other ? (int)b_len : 0, other ? other : "");
    }
    ut_text_fini(&text);
    return rc;
}

/* The name of a tag, or none. It stands in files that others read, so it must be one that a client could
 * give. */
static void get_tag(struct coll_in *in, char tag[COLL_TAG_BYTES])
{
    coll_get_text(in, tag, COLL_TAG_BYTES);
    if (tag[0] && !coll_cmd_is_tag(tag))
        in->short_ = true;
}

/* Numbers count when the nodes meet; later each hears of every operation as it comes. */
static void apply_tags(struct coll_net_job *entry, struct coll_in *in, bool meets, uint64_t now)
{
    unsigned count = (unsigned)coll_get(in, 2);
    for (unsigned i = 0; i < count && !in->short_; i++) {
        char name[COLL_TAG_BYTES];
        get_tag(in, name);
        uint64_t floor = coll_get(in, 8);
        if (!in->short_ && meets)
            coll_remote_floor(entry->job, name, floor, ring_nodes_empty(&entry->knows), now);
    }
}

static void apply_dropped(struct coll_net_job *entry, unsigned node, struct coll_in *in, uint64_t now)
{
    unsigned count = (unsigned)coll_get(in, 2);
    for (unsigned i = 0; i < count && !in->short_; i++) {
        unsigned number = (unsigned)coll_get(in, 2);
        uint32_t incarnation = (uint32_t)coll_get(in, 4);
        if (in->short_ || !coll_remote_drop(entry->job, node, number, incarnation, now))
            continue;
        unsigned home = entry->job->ranks[number].node; /* who has dropped it may not reach that node */
        if (home != entry->job->node && home != node)
            ring_nodes_add(&entry->untold, home);
    }
}

/* How many ranks the node has in the job. */
static unsigned apply_ranks(struct coll_net_job *entry, unsigned node, struct coll_in *in, uint64_t now)
{
    static struct coll_remote ranks[COLL_WORLD_MAX];
    unsigned count = (unsigned)coll_get(in, 2);
    if (count > COLL_WORLD_MAX)
        return 0;
    for (unsigned i = 0; i < count; i++) {
        ranks[i].number = (unsigned)coll_get(in, 2);
        ranks[i].state = (enum coll_rank_state)coll_get(in, 1);
        ranks[i].incarnation = (uint32_t)coll_get(in, 4);
        ranks[i].pid = (pid_t)coll_get(in, 4);
        ranks[i].last_seq = coll_get(in, 8);
    }
    if (in->short_)
        return 0;
    coll_remote_ranks(entry->job, node, ranks, count, now);
    return count;
}

/* Whether a JOB, of which `in` stands behind the configuration, lists ranks. */
static bool lists_ranks(struct coll_in in)
{
    char tag[COLL_TAG_BYTES];
    for (uint64_t tags = coll_get(&in, 2); tags && !in.short_; tags--) {
        get_tag(&in, tag);
        coll_get(&in, 8);
    }
    for (uint64_t dropped = coll_get(&in, 2); dropped && !in.short_; dropped--) {
        coll_get(&in, 2);
        coll_get(&in, 4);
    }
    return coll_get(&in, 2);
}

/* One of us has no ranks in the job any more; when it has, we meet anew. */
static void part_from(struct coll_net_job *entry, unsigned node)
{
    ring_nodes_drop(&entry->has, node);
    ring_nodes_drop(&entry->knows, node);
}

/* The node has no ranks in the job, whatever else it says of it. */
static void take_none(struct coll_net_job *entry, unsigned node, uint64_t now)
{
    part_from(entry, node);
    coll_remote_ranks(entry->job, node, NULL, 0, now);
}

/* The first difference between what the nodes know of the job. 0 or -EPROTO. */
static int compare(const struct coll_net *net, const struct coll_net_job *entry, unsigned node, uid_t uid,
                   const char *config, size_t len, struct ut_err *err)
{
    if (uid == entry->uid)
        return compare_config(net, entry->job, node, config, len, err);
    return ut_err_set(err, -EPROTO, "the job belongs to user %u on node %u and to user %u on node %u",
                      (unsigned)entry->uid, net->node, (unsigned)uid, node);
}

/* Brings what a node has told of a job into ours. Numbers first, so that its ranks start where it is. */
static void apply(struct coll_net *net, struct coll_net_job *entry, const struct heard *heard)
{
    struct coll_in in = {.at = heard->bytes, .end = heard->bytes + heard->len};
    uint64_t now = net->now();
    uid_t uid = (uid_t)coll_get(&in, 4);
    size_t len = (size_t)coll_get(&in, 2);
    const char *config = (const char *)in.at;
    struct ut_err err;
    if (in.short_ || (size_t)(in.end - in.at) < len)
        return;
    in.at += len;
    bool has_ranks = lists_ranks(in);
    int rc = compare(net, entry, heard->node, uid, config, len, &err);
    if (rc && !has_ranks) { /* it may think of the job what it likes, but has no say in it */
        take_none(entry, heard->node, now);
        return;
    }
    if (rc) {
        if (!entry->job->conflict.result)
            entry->job->conflict = (struct coll_why){.result = rc, .err = err};
        return;
    }
    if (!heard->answers && ring_nodes_has(&entry->knows, heard->node))
        part_from(entry, heard->node); /* it has begun anew, for instance when its last rank was dropped */
    bool meets = has_ranks && heard->answers && !ring_nodes_has(&entry->knows, heard->node);
    apply_tags(entry, &in, meets, now);
    apply_dropped(entry, heard->node, &in, now);
    if (!apply_ranks(entry, heard->node, &in, now)) {
        part_from(entry, heard->node);
        return;
    }
    bool is_new = !ring_nodes_has(&entry->has, heard->node);
    ring_nodes_add(&entry->has, heard->node);
    if (meets || is_new)
        tell_job(net, entry, heard->node);
    if (!meets)
        return;
    ring_nodes_add(&entry->knows, heard->node);
    tell_pending(net, entry, heard->node);
}

/* Who waits already hears of the conflict, too. A rank of two other nodes may only be on its way from one to
 * the other: they know. */
static void tell_conflict(struct coll_net *net, struct coll_job *job)
{
    const struct coll_why *conflict = &job->conflict;
    job->host->event(job->host->ctx, job, "error", conflict->err.text);
    if (conflict->result != -EEXIST || coll_rank_is_local(&job->ranks[job->taken_twice]))
        coll_job_fail_pending(job, conflict, net->now());
}

/* Applies all that was heard about the job, and finds out anew whether all agree. */
static void review(struct coll_net *net, struct coll_net_job *entry)
{
    struct coll_job *job = entry->job;
    struct coll_why before = job->conflict;
    job->conflict = (struct coll_why){0};
    UT_LIST_EACH(&net->heard, struct heard, link, heard)
    {
        if (!heard->whole || strcmp(heard->name, job->name) != 0)
            continue;
        if (job->joined) {
            apply(net, entry, heard);
        } else { /* its configuration is not final yet; joining looks again */
            heard->answers = false;
            part_from(entry, heard->node);
        }
    }
    bool is_same =
        job->conflict.result == before.result && strcmp(job->conflict.err.text, before.err.text) == 0;
    if (job->conflict.result && !is_same)
        tell_conflict(net, job);
}

/* Ranks of ours would wait for a job that was passed over, and nobody could say why. */
static struct heard *cannot_keep(struct coll_net *net, unsigned node, const char *reason)
{
    ntbm_peer_close(net->peers[node], reason);
    return NULL;
}

static struct heard *begin_heard(struct coll_net *net, unsigned node, const char *name)
{
    struct heard *old = find_heard(net, node, name);
    if (old)
        forget_heard(old);
    if (count_heard(net, node) >= COLL_NET_JOBS_MAX)
        return cannot_keep(net, node, "it has more jobs than a node may have");
    struct heard *heard = calloc(1, sizeof(*heard));
    if (!heard)
        return cannot_keep(net, node, "no memory is left for what it says of its jobs");
    heard->node = node;
    snprintf(heard->name, sizeof(heard->name), "%s", name);
    ut_list_append(&net->heard, &heard->link);
    return heard;
}

/* Takes one more message of a JOB in; it may move. NULL when that is too much: the session ends. */
static struct heard *go_on_heard(struct coll_net *net, struct heard *heard, const uint8_t *bytes,
                                 uint32_t len)
{
    if (heard->len + len > HEARD_BYTES_MAX)
        return cannot_keep(net, heard->node, "it says more of a job than there can be");
    ut_list_remove(&heard->link);
    struct heard *longer = realloc(heard, sizeof(*heard) + heard->len + len);
    ut_list_append(&net->heard, longer ? &longer->link : &heard->link);
    if (!longer)
        return cannot_keep(net, heard->node, "no memory is left for what it says of its jobs");
    memcpy(longer->bytes + longer->len, bytes, len);
    longer->len += len;
    return longer;
}

static void hear_gone(struct coll_net *net, unsigned node, const char *name, struct coll_net_job *entry)
{
    struct heard *old = find_heard(net, node, name);
    if (old)
        forget_heard(old);
    if (!entry)
        return;
    take_none(entry, node, net->now());
    review(net, entry);
}

static void hear_job(struct coll_net *net, unsigned node, struct coll_in *in)
{
    char name[COLL_NAME_BYTES];
    coll_get_text(in, name, sizeof(name));
    enum job_news news = (enum job_news)coll_get(in, 1);
    bool is_first = coll_get(in, 1), more = coll_get(in, 1);
    if (in->short_)
        return;
    struct coll_net_job *entry = find_job(net, ring_id(name));
    if (entry && strcmp(entry->job->name, name) != 0)
        entry = NULL; /* another job that has the same id */
    if (news == JOB_GONE) {
        hear_gone(net, node, name, entry);
        return;
    }
    struct heard *heard = is_first ? begin_heard(net, node, name) : find_heard(net, node, name);
    if (heard && !heard->whole)
        heard = go_on_heard(net, heard, in->at, (uint32_t)(in->end - in->at));
    if (!heard || heard->whole)
        return;
    heard->answers = news == JOB_ANSWERS;
    heard->whole = !more;
    if (entry && heard->whole)
        review(net, entry);
}

void coll_net_changed(struct coll_net *net, struct coll_job *job)
{
    struct coll_net_job *entry = entry_of(net, job);
    if (!entry)
        return;
    entry->changed = true; /* the machine is in the middle of it: told at its next request, or poll */
    for (unsigned n = 0; n < net->node_count; n++) {
        if (n != net->node)
            ring_nodes_add(&entry->untold, n);
    }
}

static bool has_room(const struct coll_net *net, unsigned node)
{
    return !is_open(net, node) || net->peers[node]->mail.outbox_bytes <= ROOM_BYTES;
}

/* Many jobs, or changes, are told as there is room: what comes meanwhile is told with them. */
static void tell_untold(struct coll_net *net, struct coll_net_job *entry)
{
    for (unsigned n = 0; n < net->node_count; n++) {
        if (!ring_nodes_has(&entry->untold, n) || !has_room(net, n))
            continue;
        ring_nodes_drop(&entry->untold, n);
        tell_job(net, entry, n);
    }
    if (ring_nodes_empty(&entry->untold))
        entry->told = entry->job->joined > 0;
}

static void tell_changed(struct coll_net *net)
{
    UT_LIST_EACH(&net->jobs, struct coll_net_job, link, entry)
    {
        if (entry->changed)
            review(net, entry);
        entry->changed = false;
        if (!ring_nodes_empty(&entry->untold))
            tell_untold(net, entry);
    }
}

static unsigned count_jobs(const struct coll_net *net)
{
    unsigned count = 0;
    UT_LIST_EACH(&net->jobs, struct coll_net_job, link, entry)
    {
        count++;
    }
    return count;
}

int coll_net_add(struct coll_net *net, struct coll_job *job, uid_t uid, struct ut_err *err)
{
    const struct coll_net_job *same = find_job(net, ring_id(job->name));
    if (same)
        return ut_err_set(err, -EEXIST, "other nodes cannot tell it from job %s; choose another name",
                          same->job->name);
    if (count_jobs(net) >= COLL_NET_JOBS_MAX)
        return ut_err_set(err, -ENOSPC,
                          "this node has %u jobs, and others keep no more of one node; remove one",
                          COLL_NET_JOBS_MAX);
    struct coll_net_job *entry = calloc(1, sizeof(*entry));
    if (!entry)
        return ut_err_set(err, -ENOMEM, "no memory is left");
    *entry = (struct coll_net_job){.job = job, .id = ring_id(job->name), .uid = uid};
    ut_list_append(&net->jobs, &entry->link);
    return 0;
}

void coll_net_remove(struct coll_net *net, struct coll_job *job)
{
    struct coll_net_job *entry = entry_of(net, job);
    if (!entry)
        return;
    tell_gone(net, entry);
    ut_list_remove(&entry->link);
    free(entry);
    ring_forget(&net->ring);
}

void coll_net_set_owner(struct coll_net *net, struct coll_job *job, uid_t uid)
{
    struct coll_net_job *entry = entry_of(net, job);
    if (!entry)
        return;
    entry->uid = uid;
    coll_net_changed(net, job);
}

/* ---- hearing of operations ---- */

static void get_cmd(struct coll_in *in, struct coll_cmd *cmd)
{
    cmd->kind = (enum coll_kind)coll_get(in, 1);
    cmd->dtype = (enum coll_dtype)coll_get(in, 1);
    cmd->op = (enum coll_op)coll_get(in, 1);
    cmd->count = coll_get(in, 8);
    cmd->root = (unsigned)coll_get(in, 2);
    cmd->offset = 0;
    get_tag(in, cmd->tag);
    if (cmd->kind >= COLL_KIND_COUNT || cmd->dtype >= COLL_DTYPE_COUNT || cmd->op >= COLL_OP_COUNT ||
        (coll_kind_reduces(cmd->kind) && !coll_op_fits(cmd->op, cmd->dtype)))
        in->short_ = true;
}

static void hear_ask(struct coll_net *net, unsigned node, struct coll_in *in)
{
    struct coll_net_job *entry = find_job(net, coll_get(in, 8));
    struct coll_remote_ask asked = {.seq = coll_get(in, 8)};
    asked.number = (unsigned)coll_get(in, 2);
    asked.pid = (pid_t)coll_get(in, 4);
    asked.crosses = coll_get(in, 1);
    get_cmd(in, &asked.cmd);
    if (in->short_ || !entry || !asked.seq)
        return;
    struct coll_why why;
    struct coll_out out = {.len = 0};
    if (coll_remote_ask(entry->job, node, &asked, net->now(), &why) != -ESTALE)
        return;
    put_fail(&out, entry->id, asked.seq, &asked.cmd, &why);
    coll_net_send(net, node, &out);
}

static void hear_turn(struct coll_net *net, unsigned node, struct coll_in *in)
{
    struct coll_net_job *entry = find_job(net, coll_get(in, 8));
    uint64_t seq = coll_get(in, 8);
    char tag[COLL_TAG_BYTES];
    get_tag(in, tag);
    if (!in->short_ && entry)
        coll_job_hear_turn(entry->job, node, tag, seq, net->now());
}

static void hear_withdraw(struct coll_net *net, unsigned node, struct coll_in *in)
{
    struct coll_net_job *entry = find_job(net, coll_get(in, 8));
    uint64_t seq = coll_get(in, 8);
    unsigned number = (unsigned)coll_get(in, 2);
    bool dying = coll_get(in, 1);
    char tag[COLL_TAG_BYTES];
    get_tag(in, tag);
    if (!in->short_ && entry)
        coll_remote_withdraw(entry->job, node, number, tag, seq, dying, net->now());
}

static void hear_fail(struct coll_net *net, unsigned node, struct coll_in *in)
{
    struct coll_net_job *entry = find_job(net, coll_get(in, 8));
    uint64_t seq = coll_get(in, 8);
    struct coll_cmd cmd;
    struct coll_why why = {0};
    get_cmd(in, &cmd);
    uint32_t code = (uint32_t)coll_get(in, 4);
    coll_get_text(in, why.missing, sizeof(why.missing));
    coll_get_text(in, why.err.text, sizeof(why.err.text));
    bool is_list = !why.missing[strspn(why.missing, "0123456789,.")];
    if (in->short_ || !entry || !seq || !code || code > ERRNO_MAX || !is_list)
        return;
    why.result = -(int)code;
    coll_remote_fail(entry->job, node, &cmd, seq, &why, net->now());
}

static void hear_word(struct coll_net *net, unsigned node, enum ring_word word, struct coll_in *in)
{
    struct ring_header id = {0};
    id.job = coll_get(in, 8);
    id.seq = coll_get(in, 8);
    id.tag = coll_get(in, 8);
    id.members = (uint32_t)coll_get(in, 4);
    if (!in->short_)
        ring_hear(&net->ring, node, word, &id, in->at, (uint32_t)(in->end - in->at));
}

void coll_net_message(struct coll_net *net, unsigned node, const uint8_t *bytes, uint32_t len)
{
    struct coll_in in = {.at = bytes, .end = bytes + len};
    switch (coll_get(&in, 1)) {
    case COLL_WIRE_JOB:
        hear_job(net, node, &in);
        break;
    case COLL_WIRE_ASK:
        hear_ask(net, node, &in);
        break;
    case COLL_WIRE_WITHDRAW:
        hear_withdraw(net, node, &in);
        break;
    case COLL_WIRE_FAIL:
        hear_fail(net, node, &in);
        break;
    case COLL_WIRE_READY:
        hear_word(net, node, RING_READY, &in);
        break;
    case COLL_WIRE_DONE:
        hear_word(net, node, RING_DONE, &in);
        break;
    case COLL_WIRE_PART:
        hear_word(net, node, RING_PART, &in);
        break;
    case COLL_WIRE_TURN:
        hear_turn(net, node, &in);
        break;
    case COLL_WIRE_SEEK:
    case COLL_WIRE_HEARS:
        coll_witness_hear(net, node, (enum coll_wire_type)bytes[0], &in);
        break;
    default:
        ntbm_peer_close(net->peers[node], "it sent a message of no known type");
    }
}

void coll_net_peer_up(struct coll_net *net, unsigned node)
{
    UT_LIST_EACH(&net->jobs, struct coll_net_job, link, entry)
    {
        part_from(entry, node);
        ring_nodes_add(&entry->untold, node);
    }
}

static void abort_with(struct coll_net *net, unsigned node, int loss, const char *reason);

void coll_net_peer_down(struct coll_net *net, unsigned node, int loss, const char *reason)
{
    coll_witness_forget(net, node);
    UT_LIST_EACH(&net->heard, struct heard, link, heard)
    {
        if (heard->node == node)
            forget_heard(heard);
    }
    abort_with(net, node, loss, reason);
    ring_peer_down(&net->ring, node);
    UT_LIST_EACH(&net->jobs, struct coll_net_job, link, entry)
    {
        part_from(entry, node);
        coll_remote_node_lost(entry->job, node, loss, reason, net->now());
        if (entry->job->conflict.result)
            review(net, entry); /* it may have been the one who disagreed */
    }
}

/* ---- carrying out ---- */

bool coll_net_concerns(const struct coll_operation *op)
{
    for (unsigned r = 0; r < op->job->config.world; r++) {
        if (op->ask[r] && !coll_rank_is_local(op->ask[r]->rank))
            return true;
    }
    return false;
}

/* The nodes that take part, in the order of the ring. */
static unsigned list_nodes(const struct coll_net *net, const struct coll_operation *op, unsigned *out,
                           unsigned *me)
{
    struct ring_nodes taking = {0};
    unsigned count = 0;
    for (unsigned r = 0; r < op->job->config.world; r++) {
        if (op->ask[r])
            ring_nodes_add(&taking, op->ask[r]->rank->node);
    }
    for (unsigned i = 0; i < net->node_count; i++) {
        if (!ring_nodes_has(&taking, net->order[i]))
            continue;
        if (net->order[i] == net->node)
            *me = count;
        out[count++] = net->order[i];
    }
    return count;
}

static unsigned position_in(const unsigned *nodes, unsigned count, unsigned node)
{
    for (unsigned i = 0; i < count; i++) {
        if (nodes[i] == node)
            return i;
    }
    return 0;
}

static void on_ring_done(struct ring_op *ring, int result, const char *text)
{
    struct coll_net_run *run = UT_CONTAINER(ring, struct coll_net_run, ring);
    run->op->phases = (struct coll_phases){.ring_ns = run->net->now() - ring->begun_ns,
                                           .local_ns = ring->local_ns,
                                           .copy_ns = ring->copy_ns,
                                           .node_count = ring->node_count};
    run->over(run, result, text);
}

static void place_members(struct coll_net_run *run)
{
    const struct coll_operation *op = run->op;
    unsigned n = 0;
    for (unsigned r = 0; r < op->job->config.world; r++) {
        if (!op->ask[r])
            continue;
        if (r == op->cmd.root)
            run->ring.root = n;
        run->member_pos[n++] = position_in(run->nodes, run->ring.node_count, op->ask[r]->rank->node);
    }
}

/* Why a node that takes part is not connected. */
static int find_loss(const struct coll_net *net, const struct coll_net_run *run)
{
    for (unsigned i = 0; i < run->ring.node_count; i++) {
        unsigned node = run->nodes[i];
        if (node != net->node && net->peers[node] && !is_open(net, node))
            return net->peers[node]->loss;
    }
    return -EHOSTDOWN;
}

int coll_net_start(struct coll_net *net, struct coll_net_run *run, const struct red_table *table)
{
    struct coll_operation *op = run->op;
    const struct coll_config *config = &op->job->config;
    bool narrow = op->cmd.dtype == config->wire && coll_dtype_acc(op->cmd.dtype) != op->cmd.dtype;
    run->net = net;
    op->t_moved = op->vain_since ? op->vain_since : net->now();
    run->steps_left = run->words = 0;
    run->ring = (struct ring_op){
        .id = {.job = ring_id(op->job->name),
               .seq = op->seq,
               .tag = ring_id(op->tag->name),
               .members = coll_op_members_sum(op)},
        .kind = op->cmd.kind,
        .dtype = op->cmd.dtype,
        .op = op->cmd.op,
        .wire = narrow ? op->cmd.dtype : coll_dtype_acc(op->cmd.dtype),
        .verify = config->verify == COLL_VERIFY_CRC32C,
        .count = op->cmd.count,
        .member_count = op->member_count,
        .member_pos = run->member_pos,
        .base = run->base,
        .nodes = run->nodes,
        .table = table,
        .done = on_ring_done,
    };
    run->ring.node_count = list_nodes(net, op, run->nodes, &run->ring.me);
    place_members(run);
    int rc = ring_start(&net->ring, &run->ring);
    return rc == -ENOTCONN ? find_loss(net, run) : rc;
}

void coll_net_abort(struct coll_net *net, struct coll_operation *op, const struct coll_why *why)
{
    UT_LIST_EACH(&net->ring.ops, struct ring_op, link, ring)
    {
        struct coll_net_run *run = UT_CONTAINER(ring, struct coll_net_run, ring);
        if (run->op != op)
            continue;
        ring_abort(&net->ring, ring, why->result, why->err.text);
        return;
    }
}

/* The first operation over the ring that the node takes part in. */
static struct ring_op *find_with(const struct coll_net *net, unsigned node)
{
    UT_LIST_EACH(&net->ring.ops, struct ring_op, link, ring)
    {
        for (unsigned i = 0; i < ring->node_count; i++) {
            if (ring->nodes[i] == node)
                return ring;
        }
    }
    return NULL;
}

static bool has_member_on(const struct coll_operation *op, unsigned node)
{
    for (unsigned r = 0; r < op->job->config.world; r++) {
        if (op->ask[r] && op->ask[r]->rank->node == node)
            return true;
    }
    return false;
}

/* What is being made ready for the ring: when the node is back before that is done, it knows nothing of it.
 */
static void abort_preparing(struct coll_net *net, unsigned node, const struct coll_why *why)
{
    UT_LIST_EACH(&net->jobs, struct coll_net_job, link, entry)
    {
        const struct coll_host *host = entry->job->host;
        UT_LIST_EACH(&entry->job->active, struct coll_operation, active, op)
        {
            if (op->state == COLL_RUNNING && has_member_on(op, node))
                host->abort(host->ctx, op, why);
        }
    }
}

static void abort_with(struct coll_net *net, unsigned node, int loss, const char *reason)
{
    struct coll_why why = {.result = loss};
    if (loss == -ENOLINK)
        ut_err_set(&why.err, 0, "the " COLL_LINK " broke while it was under way: %.150s",
                   COLL_LINK_ENDS(net->node, node), reason);
    else
        ut_err_set(&why.err, 0, "node %u went down while it was under way: %.150s", node, reason);
    for (struct ring_op *ring; (ring = find_with(net, node));)
        ring_abort(&net->ring, ring, loss, why.err.text);
    abort_preparing(net, node, &why);
}

static void say_stuck(const struct ring_op *ring, uint64_t now, char *text, size_t len)
{
    const struct coll_operation *op = UT_CONTAINER(ring, struct coll_net_run, ring)->op;
    bool timeout = now - op->t_moved >= op->job->config.timeout_ns;
    int used = snprintf(text, len, "%s; waiting for node",
                        timeout ? "nothing has moved for the job's timeout"
                                : "the kernel's FUSE request timeout is near");
    bool started = !ring->steps_left || ring_nodes_count(&ring->ready) == ring->node_count;
    const struct ring_nodes *there = ring->parts ? &ring->parts_here
                                     : started   ? &ring->done_by
                                                 : &ring->ready;
    for (unsigned i = 0; i < ring->node_count && used > 0 && (size_t)used < len; i++) {
        if (i != ring->me && !ring_nodes_has(there, i))
            used += snprintf(text + used, len - (size_t)used, " %u", ring->nodes[i]);
    }
}

/* Whether anything has moved since it was last looked at, or, the first time, has come from another node. */
static bool has_moved(struct coll_net_run *run)
{
    const struct ring_op *ring = &run->ring;
    uint64_t words = (uint64_t)ring_nodes_count(&ring->parts_here) + ring_nodes_count(&ring->ready) +
                     ring_nodes_count(&ring->done_by); /* they only grow */
    uint64_t ours = ring->parts ? 2 : 1;
    bool moved = run->words ? run->words != words || run->steps_left != ring->steps_left : words > ours;
    run->words = words;
    run->steps_left = ring->steps_left;
    return moved;
}

/* An operation in which nothing has moved for its timeout. */
static struct ring_op *find_stuck(const struct coll_net *net, uint64_t now)
{
    UT_LIST_EACH(&net->ring.ops, struct ring_op, link, ring)
    {
        struct coll_net_run *run = UT_CONTAINER(ring, struct coll_net_run, ring);
        if (has_moved(run))
            run->op->t_moved = now;
        if (now >= coll_op_end_of_wait(run->op, run->op->t_moved))
            return ring;
    }
    return NULL;
}

static void end_stuck(struct coll_net *net, uint64_t now)
{
    for (struct ring_op *ring; (ring = find_stuck(net, now));) {
        char text[200];
        say_stuck(ring, now, text, sizeof(text));
        ring_abort(&net->ring, ring, -ETIMEDOUT, text);
    }
}

bool coll_net_poll(struct coll_net *net)
{
    uint64_t now = net->now();
    if (now - net->looked_ns >= LOOK_NS) {
        net->looked_ns = now;
        end_stuck(net, now);
        coll_witness_poll(net);
    }
    if (now - net->forgot_ns >= FORGET_NS) {
        net->forgot_ns = now;
        ring_forget(&net->ring);
    }
    tell_changed(net);
    return ring_poll(&net->ring);
}

bool coll_net_is_busy(const struct coll_net *net)
{
    return ring_is_busy(&net->ring);
}

/* ---- what the ring asks ---- */

static void tell(void *ctx, const struct ring_op *op, unsigned node, enum ring_word word, const void *bytes,
                 uint32_t len)
{
    static const uint8_t types[] = {
        [RING_READY] = COLL_WIRE_READY, [RING_DONE] = COLL_WIRE_DONE, [RING_PART] = COLL_WIRE_PART};
    struct coll_out out = {.len = 0};
    coll_put(&out, types[word], 1);
    coll_put(&out, op->id.job, 8);
    coll_put(&out, op->id.seq, 8);
    coll_put(&out, op->id.tag, 8);
    coll_put(&out, op->id.members, 4);
    coll_put_bytes(&out, bytes, len);
    coll_net_send(ctx, node, &out);
}

/* The word comes before the last request does, by another way, or while the operation waits for others on the
 * same memory, or is made ready. Before it has come a request of the one who says it. */
static bool expects(void *ctx, const struct ring_header *id)
{
    const struct coll_net *net = ctx;
    const struct coll_net_job *entry = find_job(net, id->job);
    if (!entry || !entry->job->joined)
        return false;
    UT_LIST_EACH(&entry->job->tags, struct coll_tag, link, tag)
    {
        if (ring_id(tag->name) != id->tag)
            continue;
        const struct coll_operation *op = coll_tag_find(tag, id->seq);
        return op && op->state != COLL_FAILED;
    }
    return false;
}

int coll_net_init(struct coll_net *net, unsigned node, struct ntbm_peer **peers, unsigned node_count,
                  const unsigned *order, uint64_t (*now)(void))
{
    *net = (struct coll_net){.node = node, .node_count = node_count, .peers = peers, .now = now};
    memcpy(net->order, order, node_count * sizeof(order[0]));
    ut_list_init(&net->jobs);
    ut_list_init(&net->heard);
    int rc = ring_init(&net->ring, node, peers, node_count);
    net->ring.tell = tell;
    net->ring.expects = expects;
    net->ring.now = now;
    net->ring.ctx = net;
    return rc;
}

void coll_net_fini(struct coll_net *net)
{
    UT_LIST_EACH(&net->heard, struct heard, link, heard)
    {
        forget_heard(heard);
    }
    UT_LIST_EACH(&net->jobs, struct coll_net_job, link, entry)
    {
        free(entry);
    }
    ring_fini(&net->ring);
}
