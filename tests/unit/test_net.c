/* Jobs between nodes, seen from one: the other is a peer in virtual time, and what it says is made up here.
 */
#include "reduce/coll_net.h"
#include "reduce/coll_wire.h"
#include "tests/sim/sim_pair.h"

#include <criterion/criterion.h>
#include <errno.h>

#define COUNT 2000u

static struct sim_pair pair;
static struct ntbm_peer *peers[3]; /* node 2 says something, and is never there */
static struct coll_net net;
static struct coll_job *job;
static struct coll_rank *rank;
static struct coll_operation *preparing; /* the host has been told to run it */
static struct coll_net_run ring;
static struct coll_why aborted; /* the host has been told to end it; result 0: it has not */
static struct coll_why answer;  /* of the last request */
static unsigned answers;
static float buffer[COUNT];

static uint64_t now(void)
{
    return pair.now_ns;
}

/* ---- the host, which makes each operation ready until start() ---- */

static void on_run(void *ctx, struct coll_operation *op)
{
    (void)ctx;
    preparing = op;
}

static void on_abort(void *ctx, struct coll_operation *op, const struct coll_why *why)
{
    if (op == preparing)
        aborted = *why;
    else
        coll_net_abort(ctx, op, why);
}

static void on_answer(void *ctx, struct coll_ask *ask, const struct coll_why *why, uint64_t when)
{
    (void)ctx, (void)ask, (void)when;
    answer = *why;
    answers++;
}

static void on_event(void *ctx, const struct coll_job *about, const char *severity, const char *text)
{
    (void)ctx, (void)about, (void)severity, (void)text;
}

static void on_wake(void *ctx, uint64_t when)
{
    (void)ctx, (void)when;
}

static void on_asked(void *ctx, const struct coll_ask *ask)
{
    coll_net_asked(ctx, ask);
}

static void on_failed(void *ctx, const struct coll_operation *op)
{
    coll_net_failed(ctx, op);
}

static void on_changed(void *ctx, struct coll_job *changed)
{
    coll_net_changed(ctx, changed);
}

static void on_turn(void *ctx, const struct coll_operation *op)
{
    coll_net_turn(ctx, op);
}

static const struct coll_host host = {.ctx = &net,
                                      .run = on_run,
                                      .answer = on_answer,
                                      .event = on_event,
                                      .wake = on_wake,
                                      .asked = on_asked,
                                      .failed = on_failed,
                                      .changed = on_changed,
                                      .turn = on_turn,
                                      .abort = on_abort};

static void over(struct coll_net_run *run, int result, const char *text)
{
    coll_op_finish(run->op, result, text, now());
}

/* What was made ready goes over the ring. */
static int start(void)
{
    ring = (struct coll_net_run){.op = preparing, .over = over};
    ring.base[rank->number] = buffer;
    preparing = NULL;
    return coll_net_start(&net, &ring, red_table_find("portable"));
}

/* ---- the other node ---- */

static void pass_time(uint64_t ms)
{
    struct sim_side *side = &pair.side[0];
    for (uint64_t until_ns = now() + ms * SIM_MS; now() < until_ns;) {
        unsigned ups = side->ups, downs = side->downs;
        sim_pair_run(&pair, 1); /* one step: 5 ms */
        if (downs != side->downs)
            coll_net_peer_down(&net, 1, side->peer->loss, side->reason);
        if (ups != side->ups)
            coll_net_peer_up(&net, 1);
        coll_net_poll(&net);
        coll_job_tick(job, now());
        coll_job_check(job);
    }
}

static void hear_from(unsigned node, const struct coll_out *out)
{
    coll_net_message(&net, node, out->bytes, out->len);
}

static void hear(const struct coll_out *out)
{
    hear_from(1, out);
}

/* What a node says of a job: its configuration, which join of rank 0 it has dropped (0: none), and one rank
 * or (COLL_ABSENT) none. It has heard of ours. */
static void hear_drop(unsigned node, const char *name, const struct coll_config *config, uint32_t dropped,
                      unsigned number, enum coll_rank_state state)
{
    struct coll_out out = {.len = 0};
    struct ut_text text = {0};
    coll_config_render(config, &text);
    coll_put(&out, COLL_WIRE_JOB, 1);
    coll_put_text(&out, name);
    coll_put(&out, 2, 1); /* it answers, in one message */
    coll_put(&out, 1, 1);
    coll_put(&out, 0, 1);
    coll_put(&out, 0, 4); /* owner */
    coll_put(&out, text.len, 2);
    coll_put_bytes(&out, text.bytes, (uint32_t)text.len);
    coll_put(&out, 0, 2); /* tags */
    coll_put(&out, dropped != 0, 2);
    if (dropped) {
        coll_put(&out, 0, 2);
        coll_put(&out, dropped, 4);
    }
    coll_put(&out, state != COLL_ABSENT, 2);
    if (state != COLL_ABSENT) {
        coll_put(&out, number, 2);
        coll_put(&out, state, 1);
        coll_put(&out, 6 + node, 4);
        coll_put(&out, 99, 4);
        coll_put(&out, 0, 8);
    }
    ut_text_fini(&text);
    hear_from(node, &out);
}

static void hear_job(unsigned node, const char *name, const struct coll_config *config, unsigned number,
                     enum coll_rank_state state)
{
    hear_drop(node, name, config, 0, number, state);
}

/* It has the other rank in the job of that name. */
static void meet(const char *name, unsigned number)
{
    hear_job(1, name, &job->config, number, COLL_JOINED);
}

static void hear_gone(const char *name)
{
    struct coll_out out = {.len = 0};
    coll_put(&out, COLL_WIRE_JOB, 1);
    coll_put_text(&out, name);
    coll_put(&out, 1, 1);
    coll_put(&out, 1, 1);
    coll_put(&out, 0, 1);
    hear(&out);
}

static struct coll_cmd command(const char *tag)
{
    struct coll_cmd cmd = {.kind = COLL_ALLREDUCE, .dtype = COLL_F32, .op = COLL_SUM, .count = COUNT};
    snprintf(cmd.tag, sizeof(cmd.tag), "%s", tag);
    return cmd;
}

static void put_cmd(struct coll_out *out, const struct coll_cmd *cmd)
{
    coll_put(out, cmd->kind, 1);
    coll_put(out, cmd->dtype, 1);
    coll_put(out, cmd->op, 1);
    coll_put(out, cmd->count, 8);
    coll_put(out, cmd->root, 2);
    coll_put_text(out, cmd->tag);
}

static void hear_command(unsigned number, const struct coll_cmd *cmd, uint64_t seq, bool crosses)
{
    struct coll_out out = {.len = 0};
    coll_put(&out, COLL_WIRE_ASK, 1);
    coll_put(&out, ring_id(job->name), 8);
    coll_put(&out, seq, 8);
    coll_put(&out, number, 2);
    coll_put(&out, 99, 4);
    coll_put(&out, crosses, 1);
    put_cmd(&out, cmd);
    hear(&out);
}

static void hear_ask(unsigned number, const char *tag, uint64_t seq, bool crosses)
{
    struct coll_cmd cmd = command(tag);
    hear_command(number, &cmd, seq, crosses);
}

static void hear_fail(const char *tag, uint64_t seq, int result, const char *text)
{
    struct coll_out out = {.len = 0};
    struct coll_cmd cmd = command(tag);
    coll_put(&out, COLL_WIRE_FAIL, 1);
    coll_put(&out, ring_id(job->name), 8);
    coll_put(&out, seq, 8);
    put_cmd(&out, &cmd);
    coll_put(&out, (uint32_t)-result, 4);
    coll_put_text(&out, "");
    coll_put_text(&out, text);
    hear(&out);
}

static void hear_turn(const char *tag, uint64_t seq)
{
    struct coll_out out = {.len = 0};
    coll_put(&out, COLL_WIRE_TURN, 1);
    coll_put(&out, ring_id(job->name), 8);
    coll_put(&out, seq, 8);
    coll_put_text(&out, tag);
    hear(&out);
}

/* ---- this node ---- */

static int ask_command(const struct coll_cmd *cmd, struct coll_why *why)
{
    struct coll_ask *out;
    return coll_rank_ask(rank, cmd, 1, NULL, now(), &out, why);
}

static int ask(const char *tag, struct coll_why *why)
{
    struct coll_cmd cmd = command(tag);
    return ask_command(&cmd, why);
}

static void make_job(const char *name, struct coll_job **out)
{
    static const char config[] = "world=2\ntimeout=30\nlinger=never\n";
    cr_assert_eq(coll_job_create(name, &host, 1 << 20, now(), out), 0);
    cr_assert_eq(coll_job_configure(*out, config, sizeof(config) - 1, now(), NULL), 0);
}

/* Node 0, which is up with node 1 and has rank 0 or 1 of a job of two. */
static void begin(const char *name, unsigned number)
{
    static const unsigned order[] = {0, 1, 2};
    sim_pair_init(&pair, 65536);
    sim_pair_restart(&pair, 0, 1000);
    sim_pair_restart(&pair, 1, 2000);
    peers[1] = pair.side[0].peer;
    cr_assert_eq(coll_net_init(&net, 0, peers, 3, order, now), 0);
    make_job(name, &job);
    cr_assert_eq(coll_net_add(&net, job, 0, NULL), 0);
    cr_assert_eq(coll_rank_join(job, number, 0, 1, now(), &rank), 0);
    pass_time(300);
    cr_assert(sim_pair_is_up(&pair));
}

static void end(void)
{
    job->quiet = job->hearing = true;
    coll_net_remove(&net, job);
    coll_job_destroy(job, -ESHUTDOWN, now());
    coll_net_fini(&net);
    sim_pair_fini(&pair);
}

static void begin_preparing(void)
{
    struct coll_why why;
    begin("j", 0);
    meet("j", 1);
    cr_assert_eq(ask("", &why), 0);
    hear_ask(1, "", 1, false);
    cr_assert(preparing);
}

Test(net, what_is_being_made_ready_is_told_when_a_node_of_it_is_lost_and_back)
{
    begin_preparing();
    sim_pair_kill(&pair, 1);
    sim_pair_restart(&pair, 1, 3000);
    pass_time(1000);
    cr_assert(sim_pair_is_up(&pair));
    cr_assert_eq(aborted.result, -EHOSTDOWN);
    cr_assert(strstr(aborted.err.text, "node 1 went down"), "%s", aborted.err.text);
    coll_op_finish(preparing, aborted.result, aborted.err.text, now());
    cr_assert_eq(answer.result, -EHOSTDOWN);
    end();
}

Test(net, what_goes_over_the_ring_ends_when_a_node_of_it_is_lost)
{
    begin_preparing();
    cr_assert_eq(start(), 0);
    sim_pair_kill(&pair, 1);
    pass_time(1500);
    cr_assert_eq(answer.result, -EHOSTDOWN);
    cr_assert_eq(aborted.result, 0);
    end();
}

/* Two names that FNV-1a cannot tell from each other. */
#define NAME_A "8yn0iYCKYHlIj4-BwPqk"
#define NAME_B "GReLUrM4wMqfg9yzV3KQ"

Test(net, a_job_whose_name_has_the_number_of_another_is_refused)
{
    struct coll_job *other;
    struct ut_err err = {""};
    begin(NAME_A, 0);
    cr_assert_eq(ring_id(NAME_A), ring_id(NAME_B));
    make_job(NAME_B, &other);
    cr_assert_eq(coll_net_add(&net, other, 0, &err), -EEXIST);
    cr_assert(strstr(err.text, NAME_A), "%s", err.text);
    coll_job_destroy(other, -EEXIST, now());
    end();
}

Test(net, a_job_of_another_name_and_the_same_number_on_another_node_is_not_ours)
{
    begin(NAME_A, 0);
    meet(NAME_A, 1);
    cr_assert_eq(job->ranks[1].state, COLL_JOINED);
    meet(NAME_B, 1);
    hear_gone(NAME_B);
    cr_assert_eq(job->ranks[1].state, COLL_JOINED);
    hear_gone(NAME_A);
    cr_assert_eq(job->ranks[1].state, COLL_ABSENT);
    end();
}

/* "j0", "j1" and so on. */
static const char *numbered(unsigned number)
{
    static char name[COLL_NAME_BYTES];
    snprintf(name, sizeof(name), "j%u", number);
    return name;
}

Test(net, of_a_node_that_has_as_many_jobs_as_it_may_all_are_kept)
{
    char last[COLL_NAME_BYTES];
    snprintf(last, sizeof(last), "%s", numbered(COLL_NET_JOBS_MAX - 1));
    begin(last, 0);
    for (unsigned i = 0; i < COLL_NET_JOBS_MAX; i++)
        meet(numbered(i), 1);
    cr_assert_eq(job->ranks[1].state, COLL_JOINED);
    pass_time(100);
    cr_assert(sim_pair_is_up(&pair));
    end();
}

Test(net, a_node_that_has_more_jobs_than_it_may_is_refused_in_words)
{
    begin("j", 0);
    for (unsigned i = 0; i < COLL_NET_JOBS_MAX; i++)
        meet(numbered(i), 1);
    cr_assert_eq(pair.side[0].downs, 0);
    meet("j", 1);
    cr_assert_eq(pair.side[0].downs, 1);
    cr_assert(strstr(pair.side[0].reason, "more jobs than a node may have"), "%s", pair.side[0].reason);
    end();
}

Test(net, a_tag_whose_name_has_the_number_of_another_is_refused_in_words)
{
    struct coll_why why = {0};
    begin("j", 0);
    meet("j", 1);
    cr_assert_eq(ask(NAME_A, &why), 0);
    cr_assert_eq(ask(NAME_B, &why), -EEXIST);
    cr_assert(strstr(why.err.text, "another name"), "%s", why.err.text);
    end();
}

/* Rank 0 asks in two tags at once, and rank 1 too: so both operations wait for the word of node 0, the owner.
 */
Test(net, only_the_owner_gives_turns)
{
    struct coll_why why;
    begin("j", 0);
    meet("j", 1);
    cr_assert_eq(ask("", &why), 0);
    cr_assert_eq(ask("t", &why), 0);
    hear_ask(1, "t", 1, true);
    hear_turn("", 1); /* it is complete nowhere, and would stop the other for ever */
    cr_assert(preparing);
    cr_assert_str_eq(preparing->tag->name, "t");
    end();
}

/* A request of ours has failed, for the other node has lost the link to a third one. */
static void fail_for_a_cut(void)
{
    struct coll_why why;
    begin("j", 0);
    meet("j", 1);
    cr_assert_eq(ask("", &why), 0);
    hear_fail("", 1, -ENOLINK, "the link node 1 - node 2 is down");
    cr_assert_eq(answer.result, -ENOLINK);
}

Test(net, who_asks_again_at_once_after_a_link_elsewhere_has_failed_is_refused_here)
{
    struct coll_why why = {0};
    fail_for_a_cut();
    cr_assert_eq(ask("", &why), -ENOLINK);
    cr_assert(strstr(why.err.text, "node 1 - node 2"), "%s", why.err.text);
    pass_time(100);
    cr_assert_eq(ask("", &why), 0);
    hear_ask(1, "", 2, false);
    cr_assert(preparing);
    cr_assert_eq(preparing->seq, 2);
    end();
}

Test(net, what_is_asked_without_the_rank_behind_the_link_is_not_refused)
{
    struct coll_why why = {0};
    fail_for_a_cut();
    cr_assert_eq(coll_job_drop(job, "drop=1\n", 7, now(), NULL), 0);
    cr_assert_eq(ask("", &why), 0);
    cr_assert(preparing);
    end();
}

Test(net, a_failure_of_another_kind_stops_nobody_from_asking_again)
{
    struct coll_why why = {0};
    begin("j", 0);
    meet("j", 1);
    cr_assert_eq(ask("", &why), 0);
    hear_fail("", 1, -ECANCELED, "rank 1 withdrew");
    cr_assert_eq(answer.result, -ECANCELED);
    cr_assert_eq(ask("", &why), 0);
    end();
}

/* The error that the other node has been told last, of an operation without a tag. */
static int told_error(void)
{
    const struct sim_side *other = &pair.side[1];
    struct coll_in in = {.at = other->message, .end = other->message + other->message_len};
    cr_assert_eq(coll_get(&in, 1), COLL_WIRE_FAIL);
    in.at += 16 + 13; /* job and number; the command */
    cr_assert_eq(coll_get(&in, 1), 0);
    return -(int)coll_get(&in, 4);
}

Test(net, a_rank_that_is_the_last_to_come_to_a_failed_operation_hears_how_it_failed)
{
    struct coll_why why;
    begin("j", 0);
    meet("j", 1);
    cr_assert_eq(ask("", &why), 0);
    hear_fail("", 1, -EHOSTDOWN, "node 2 went down");
    hear_ask(1, "", 1, false);
    pass_time(20);
    cr_assert_eq(told_error(), -EHOSTDOWN);
    hear_ask(1, "", 1, false); /* nobody is awaited, and it is not kept any more */
    pass_time(20);
    cr_assert_eq(told_error(), -ESTALE);
    end();
}

Test(net, a_rank_that_was_dropped_is_no_rival_of_who_has_joined_in_its_place)
{
    struct coll_rank *taken;
    begin("j", 0);
    meet("j", 1);
    cr_assert_eq(coll_job_drop(job, "drop=1", 6, now(), NULL), 0);
    cr_assert_eq(coll_rank_join(job, 1, 0, 2, now(), &taken), 0);
    meet("j", 1); /* it has not heard of that yet */
    cr_assert_eq(job->conflict.result, 0, "%s", job->conflict.err.text);
    cr_assert_eq(taken->node, 0);
    cr_assert_eq(taken->pid, 2);
    end();
}

/* The job's op is of integers, which its default type is not: only what is combined cares. */
Test(net, what_combines_nothing_is_heard_whatever_type_and_op_the_job_has)
{
    static const enum coll_kind kinds[] = {COLL_BARRIER, COLL_BROADCAST, COLL_ALLGATHER};
    struct coll_why why;
    begin("j", 0);
    meet("j", 1);
    for (unsigned i = 0; i < 3; i++) {
        struct coll_cmd cmd = {.kind = kinds[i], .dtype = COLL_F32, .op = COLL_BAND};
        preparing = NULL;
        cr_assert_eq(ask_command(&cmd, &why), 0);
        hear_command(1, &cmd, 1 + i, false);
        cr_assert(preparing, "%s", coll_kind_name(kinds[i]));
        coll_op_finish(preparing, 0, NULL, now());
    }
    end();
}

static void hear_part(uint64_t seq, uint32_t members)
{
    struct coll_out out = {.len = 0};
    const float part = 1;
    coll_put(&out, COLL_WIRE_PART, 1);
    coll_put(&out, ring_id(job->name), 8);
    coll_put(&out, seq, 8);
    coll_put(&out, ring_id(""), 8);
    coll_put(&out, members, 4);
    coll_put_bytes(&out, &part, sizeof(part));
    hear(&out);
}

/* All work on the same memory here, and so come one after the other; there they do not. */
Test(net, a_node_may_run_ahead_by_all_operations_that_wait_here)
{
    enum { OPERATIONS = 1000 };
    struct coll_cmd cmd = command("");
    struct coll_why why;
    cmd.count = 1;
    begin("j", 0);
    meet("j", 1);
    for (unsigned seq = 1; seq <= OPERATIONS; seq++) {
        cr_assert_eq(ask_command(&cmd, &why), 0);
        hear_command(1, &cmd, seq, false);
    }
    cr_assert_eq(preparing->seq, 1);
    uint32_t members = coll_op_members_sum(preparing);
    for (unsigned seq = 1; seq <= OPERATIONS; seq++)
        hear_part(seq, members);
    while (preparing)
        cr_assert_eq(start(), 0);
    cr_assert_eq(answers, OPERATIONS, "%u", answers);
    cr_assert_eq(answer.result, 0);
    cr_assert_eq(buffer[0], OPERATIONS);
    end();
}

Test(net, words_cost_bounded_memory_however_often_they_come_and_what_they_are_about)
{
    unsigned kept = 0;
    begin("j", 0);
    meet("j", 1);
    hear_ask(1, "", 1, false);
    for (unsigned i = 0; i < 5000; i++) {
        hear_part(1, 1);
        hear_part(i, 1);
    }
    for (const struct ut_list *word = net.ring.early.next; word != &net.ring.early; word = word->next)
        kept++;
    cr_assert_eq(kept, 1, "%u", kept);
    end();
}

/* Rank 1 on node 1 has another configuration. */
static void disagree(void)
{
    struct coll_why why;
    begin("j", 0);
    struct coll_config other = job->config;
    other.timeout_ns++;
    hear_job(1, "j", &other, 1, COLL_JOINED);
    cr_assert_eq(ask("", &why), -EPROTO);
}

Test(net, a_job_goes_on_when_the_node_that_disagreed_about_it_has_gone)
{
    struct coll_why why;
    disagree();
    sim_pair_kill(&pair, 1);
    pass_time(1500);
    cr_assert_eq(ask("", &why), 0, "%s", why.err.text);
    end();
}

Test(net, a_job_goes_on_when_the_last_rank_of_a_node_that_disagreed_has_left)
{
    struct coll_why why;
    disagree();
    struct coll_config other = job->config;
    other.timeout_ns++;
    hear_job(1, "j", &other, 1, COLL_ABSENT);
    cr_assert_eq(ask("", &why), 0, "%s", why.err.text);
    end();
}

Test(net, a_node_without_ranks_drops_others_only_where_it_agrees_about_the_job)
{
    begin("j", 0);
    meet("j", 1);
    struct coll_config other = job->config;
    other.timeout_ns++;
    hear_drop(1, "j", &other, rank->incarnation, 1, COLL_ABSENT);
    cr_assert_eq(rank->state, COLL_JOINED);
    cr_assert_eq(job->ranks[1].state, COLL_ABSENT);
    hear_drop(1, "j", &job->config, rank->incarnation, 1, COLL_ABSENT);
    cr_assert_eq(rank->state, COLL_DROPPED);
    end();
}

/* Its last operation is still made ready here, and node 2 is heard of it meanwhile. */
static void move_while_preparing(void)
{
    hear_job(2, "j", &job->config, 1, COLL_JOINED);
    cr_assert(preparing && job->ranks[1].node == 1);
    coll_op_finish(preparing, -ECANCELED, "", now());
    coll_net_poll(&net);
    coll_job_check(job);
    cr_assert_eq(job->ranks[1].state, COLL_JOINED);
    cr_assert_eq(job->ranks[1].node, 2);
    cr_assert_eq(job->lost, 0);
    end();
}

Test(net, a_rank_that_left_one_node_for_another_is_known_when_its_last_operation_is_over)
{
    begin_preparing();
    hear_job(1, "j", &job->config, 1, COLL_ABSENT);
    cr_assert_eq(job->ranks[1].state, COLL_ABSENT);
    move_while_preparing();
}

Test(net, a_rank_that_lost_its_node_and_went_to_another_is_known_when_its_last_operation_is_over)
{
    begin_preparing();
    sim_pair_kill(&pair, 1);
    pass_time(1500);
    cr_assert_eq(job->ranks[1].state, COLL_LOST);
    move_while_preparing();
}

/* A rank that was lost is back, and asks before the loop comes round. */
Test(net, who_hears_a_request_has_heard_of_its_rank)
{
    struct coll_why why;
    begin("j", 0);
    meet("j", 1);
    cr_assert_eq(coll_rank_promise(rank, 1, now()), 0);
    coll_rank_lost(rank, 1, 1, now());
    pass_time(20);
    cr_assert_eq(coll_rank_promise(rank, 2, now()), 0);
    cr_assert_eq(ask("", &why), 0);
    unsigned heard = pair.side[1].messages;
    sim_pair_run(&pair, 20);
    cr_assert_eq(pair.side[1].messages, heard + 2);
    cr_assert_eq(pair.side[1].message[0], COLL_WIRE_ASK, "the last");
    end();
}

/* What there was no room to tell when the rank came goes out with its request. */
Test(net, a_rank_that_was_told_of_with_its_request_is_heard_when_it_leaves)
{
    static const struct coll_out filler = {.len = sizeof(filler.bytes)};
    struct coll_why why;
    begin("j", 0);
    cr_assert_eq(coll_rank_leave(rank, now()), 0);
    pass_time(20);
    for (unsigned i = 0; i < 64; i++)
        coll_net_send(&net, 1, &filler);
    cr_assert_eq(coll_rank_join(job, 0, 0, 1, now(), &rank), 0);
    coll_net_poll(&net);
    meet("j", 1);
    cr_assert_eq(ask("", &why), 0, "%s", why.err.text);
    hear_ask(1, "", 1, false);
    coll_op_finish(preparing, 0, NULL, now());
    pass_time(1000);
    cr_assert_eq(pair.side[1].message[0], COLL_WIRE_ASK);
    cr_assert_eq(coll_rank_leave(rank, now()), 0);
    pass_time(20);
    cr_assert_eq(pair.side[1].message[0], COLL_WIRE_JOB);
    end();
}

/* Rank 0 has asked, and 8 s later rank 1, when the kernel would wait for 2 s more. Nothing moves then. */
static void begin_late(bool parked)
{
    struct coll_cmd cmd = command("");
    struct coll_ask *out;
    struct coll_why why;
    begin("j", 0);
    meet("j", 1);
    job->wait_limit_ns = 10000 * SIM_MS;
    cr_assert_eq(coll_rank_ask(rank, &cmd, 1, NULL, now(), &out, &why), 0);
    out->t_parked = parked ? now() : 0;
    pass_time(8000);
    hear_ask(1, "", 1, false);
    cr_assert_eq(start(), 0);
    pass_time(2000);
}

Test(net, a_write_that_waits_is_answered_before_the_kernel_loses_patience_however_far_its_operation_is)
{
    begin_late(true);
    cr_assert_eq(answer.result, -ETIMEDOUT);
    cr_assert(strstr(answer.err.text, "the kernel's FUSE request timeout"), "%s", answer.err.text);
    end();
}

Test(net, an_operation_that_is_queued_does_not_depend_on_the_kernels_patience)
{
    begin_late(false);
    cr_assert_eq(answers, 0);
    pass_time(8000);
    cr_assert_eq(answer.result, -ETIMEDOUT);
    end();
}
