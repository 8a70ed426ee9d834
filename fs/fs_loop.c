#include "fs/fs_loop.h"

#include "utils/ut_clock.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Takes the posts over as a whole, so that a callback may post again without being waited for. */
void fs_loop_drain(struct fs_loop *loop)
{
    struct ut_list taken;
    ut_list_init(&taken);
    pthread_mutex_lock(&loop->lock);
    while (!ut_list_empty(&loop->posts)) {
        struct ut_list *first = loop->posts.next;
        ut_list_remove(first);
        ut_list_append(&taken, first);
    }
    pthread_mutex_unlock(&loop->lock);
    while (!ut_list_empty(&taken)) {
        struct fs_post *post = UT_CONTAINER(taken.next, struct fs_post, link);
        ut_list_remove(&post->link);
        post->run(post);
    }
}

static void on_wake(struct fs_source *source)
{
    uint64_t count;
    if (read(source->fd, &count, sizeof(count)) == (ssize_t)sizeof(count))
        fs_loop_drain(UT_CONTAINER(source, struct fs_loop, wake));
}

int fs_loop_init(struct fs_loop *loop)
{
    *loop =
        (struct fs_loop){.deadline_ns = UINT64_MAX, .wake = {.fd = -1}, .lock = PTHREAD_MUTEX_INITIALIZER};
    ut_list_init(&loop->posts);
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (loop->epoll_fd < 0)
        return -errno;
    loop->wake = (struct fs_source){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .ready = on_wake};
    int rc = loop->wake.fd < 0 ? -errno : fs_loop_add(loop, &loop->wake);
    if (rc)
        fs_loop_fini(loop);
    return rc;
}

int fs_loop_add(struct fs_loop *loop, struct fs_source *source)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = source};
    return epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, source->fd, &event) ? -errno : 0;
}

void fs_loop_remove(struct fs_loop *loop, struct fs_source *source)
{
    epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, source->fd, NULL);
}

void fs_loop_post(struct fs_loop *loop, struct fs_post *post)
{
    uint64_t one = 1;
    pthread_mutex_lock(&loop->lock);
    ut_list_append(&loop->posts, &post->link);
    pthread_mutex_unlock(&loop->lock);
    ssize_t written = write(loop->wake.fd, &one, sizeof(one));
    (void)written; /* EAGAIN: the counter is full, so the loop is awake */
}

void fs_loop_wake_at(struct fs_loop *loop, uint64_t when_ns)
{
    if (when_ns < loop->deadline_ns)
        loop->deadline_ns = when_ns;
}

void fs_loop_stop(struct fs_loop *loop)
{
    loop->stopping = true;
}

/* Nanoseconds until the deadline, or UINT64_MAX. */
static uint64_t time_left(const struct fs_loop *loop)
{
    if (loop->deadline_ns == UINT64_MAX)
        return UINT64_MAX;
    uint64_t now = ut_clock_ns();
    return loop->deadline_ns > now ? loop->deadline_ns - now : 0;
}

static int wait_event(struct fs_loop *loop, uint64_t sleep_ns, struct epoll_event *event)
{
    struct timespec wait = {.tv_sec = (time_t)(sleep_ns / UT_NS_PER_S),
                            .tv_nsec = (long)(sleep_ns % UT_NS_PER_S)};
    return epoll_pwait2(loop->epoll_fd, event, 1, sleep_ns == UINT64_MAX ? NULL : &wait, NULL);
}

static void tick_if_due(struct fs_loop *loop)
{
    uint64_t now;
    if (loop->deadline_ns == UINT64_MAX || (now = ut_clock_ns()) < loop->deadline_ns)
        return;
    loop->deadline_ns = UINT64_MAX;
    loop->tick(loop->ctx, now);
}

/* One event a turn is asked for: a callback may remove any source, and no event of a removed one is then left
 * in our hands. */
void fs_loop_turn(struct fs_loop *loop)
{
    struct epoll_event event;
    uint64_t sleep_ns = loop->poll ? loop->poll(loop->ctx) : UINT64_MAX, left = time_left(loop);
    if (wait_event(loop, left < sleep_ns ? left : sleep_ns, &event) == 1) {
        struct fs_source *source = event.data.ptr;
        source->ready(source);
    }
    tick_if_due(loop);
    loop->settle(loop->ctx);
}

void fs_loop_run(struct fs_loop *loop)
{
    while (!loop->stopping)
        fs_loop_turn(loop);
}

void fs_loop_fini(struct fs_loop *loop)
{
    if (loop->wake.fd >= 0)
        close(loop->wake.fd);
    if (loop->epoll_fd >= 0)
        close(loop->epoll_fd);
    loop->wake.fd = loop->epoll_fd = -1;
}
