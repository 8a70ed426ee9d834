#include "fs/fs_dispose.h"

#include <stdlib.h>

struct fs_disposal {
    struct red_work work;
    struct fs_post post;
    struct ut_list link; /* in fs->disposals, oldest first */
    struct fs *fs;
    const struct fs_owner *job;
    struct ntbm_buf *buf;
    uint64_t number;
};

struct answer {
    struct ut_list link; /* in fs->disposal_answers, oldest first */
    uint64_t number;     /* of the last disposal to be over */
    const struct fs_owner *job;
    fuse_req_t req;
    size_t written;
};

static void answer(fuse_req_t req, size_t written)
{
    if (written)
        fuse_reply_write(req, written);
    else
        fuse_reply_err(req, 0);
}

/* Whether a disposal of the job, of those up to that number, is not over. */
static bool is_pending(struct fs *fs, const struct fs_owner *job, uint64_t number)
{
    UT_LIST_EACH(&fs->disposals, struct fs_disposal, link, disposal)
    {
        if (disposal->number <= number && disposal->job == job)
            return true;
    }
    return false;
}

/* Answers who waits for no disposal that is left. */
static void answer_ready(struct fs *fs)
{
    UT_LIST_EACH(&fs->disposal_answers, struct answer, link, later)
    {
        if (is_pending(fs, later->job, later->number))
            continue;
        answer(later->req, later->written);
        ut_list_remove(&later->link);
        free(later);
    }
}

static void on_worker(struct red_work *work, unsigned idx)
{
    struct fs_disposal *disposal = UT_CONTAINER(work, struct fs_disposal, work);
    (void)idx;
    ntbm_buf_fini(disposal->buf);
    free(disposal->buf);
}

static void post_over(struct red_work *work)
{
    struct fs_disposal *disposal = UT_CONTAINER(work, struct fs_disposal, work);
    fs_loop_post(&disposal->fs->loop, &disposal->post);
}

static void over(struct fs_post *post)
{
    struct fs_disposal *disposal = UT_CONTAINER(post, struct fs_disposal, post);
    struct fs *fs = disposal->fs;
    ut_list_remove(&disposal->link);
    free(disposal);
    fs->running--;
    answer_ready(fs);
}

struct fs_disposal *fs_dispose_plan(struct fs *fs, const struct fs_owner *job)
{
    struct fs_disposal *disposal = malloc(sizeof(*disposal));
    if (!disposal)
        return NULL;
    *disposal = (struct fs_disposal){.work = {.block = on_worker, .finish = post_over, .block_count = 1},
                                     .post = {.run = over},
                                     .fs = fs,
                                     .job = job,
                                     .number = ++fs->disposal_count};
    ut_list_append(&fs->disposals, &disposal->link);
    fs->running++;
    return disposal;
}

void fs_dispose(struct fs *fs, struct fs_disposal *planned, const struct fs_owner *job, struct ntbm_buf *buf)
{
    struct fs_disposal *disposal = planned ? planned : fs_dispose_plan(fs, job);
    if (!disposal) { /* then it takes the time it takes */
        ntbm_buf_fini(buf);
        free(buf);
        return;
    }
    disposal->buf = buf;
    red_pool_submit(fs->workers, &disposal->work);
}

void fs_dispose_answer(struct fs *fs, fuse_req_t req, const struct fs_owner *job, size_t written)
{
    bool pending = is_pending(fs, job, fs->disposal_count);
    struct answer *later = pending ? malloc(sizeof(*later)) : NULL;
    if (!later) {
        answer(req, written);
        return;
    }
    *later = (struct answer){.number = fs->disposal_count, .job = job, .req = req, .written = written};
    ut_list_append(&fs->disposal_answers, &later->link);
}
