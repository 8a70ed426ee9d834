#include "fs/fs.h"
#include "utils/ut_clock.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <time.h>

/* What a user's jobs may add: so many lines at once, and one each so often. */
#define USER_LINES UINT64_C(2500)
#define USER_LINE_NS (200 * UT_NS_PER_MS)
#define TELL_NS UT_NS_PER_S

/* One open file. A reader that begins before the oldest line is set to it once, and goes on from there
 * although its own offset stays behind. */
struct fs_events_open {
    struct ut_list link;
    uint64_t client_next; /* the offset a sequential reader asks for next */
    uint64_t log_next;    /* what it is to get there */
    struct fuse_pollhandle *poll;
};

int fs_events_init(struct fs_events *events)
{
    *events = (struct fs_events){.bytes = malloc(FS_EVENTS_BYTES)};
    ut_list_init(&events->opens);
    return events->bytes ? 0 : -ENOMEM;
}

void fs_events_fini(struct fs_events *events)
{
    if (!events->bytes)
        return;
    UT_LIST_EACH(&events->opens, struct fs_events_open, link, open)
    {
        if (open->poll)
            fuse_pollhandle_destroy(open->poll);
        free(open);
    }
    free(events->bytes);
    events->bytes = NULL;
}

static char byte_at(const struct fs_events *events, uint64_t offset)
{
    return events->bytes[offset % FS_EVENTS_BYTES];
}

/* Makes room for len more bytes by giving up whole lines. */
static void give_up_lines(struct fs_events *events, size_t len)
{
    while (events->total + len - events->first > FS_EVENTS_BYTES) {
        while (byte_at(events, events->first) != '\n')
            events->first++;
        events->first++;
    }
}

static void wake_all(struct fs_events *events)
{
    UT_LIST_EACH(&events->opens, struct fs_events_open, link, open)
    {
        if (!open->poll)
            continue;
        fuse_lowlevel_notify_poll(open->poll);
        fuse_pollhandle_destroy(open->poll);
        open->poll = NULL;
    }
}

/* What an operator asked to be logged. */
static void log_line(struct fs *fs, const char *severity, const char *line, size_t len)
{
    int level = strcmp(severity, "error") == 0  ? FS_LOG_ERROR
                : strcmp(severity, "warn") == 0 ? FS_LOG_WARNING
                                                : FS_LOG_INFO;
    static const int priorities[] = {LOG_ERR, LOG_WARNING, LOG_INFO};
    if (level <= (int)fs->settings->log_level)
        fs_log_line(&fs->log, priorities[level], line, len);
}

void fs_events_add(struct fs *fs, const char *severity, const char *object, const char *text)
{
    struct fs_events *events = &fs->events;
    char line[1024];
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t used = strftime(line, sizeof(line), "%Y-%m-%dT%H:%M:%S", &utc);
    int more = snprintf(line + used, sizeof(line) - used, ".%03ldZ %s %s %s", now.tv_nsec / 1000000, severity,
                        object, text);
    size_t len = used + (size_t)more < sizeof(line) - 1 ? used + (size_t)more : sizeof(line) - 2;
    line[len++] = '\n';
    give_up_lines(events, len);
    for (size_t i = 0; i < len; i++)
        events->bytes[events->total++ % FS_EVENTS_BYTES] = line[i];
    wake_all(events);
    log_line(fs, severity, line, len);
}

/* The user's place, or that of who has been quiet for longest. */
static struct fs_events_user *find_user(struct fs_events *events, uid_t uid)
{
    struct fs_events_user *quiet = &events->users[0];
    for (unsigned i = 0; i < FS_EVENTS_USERS; i++) {
        struct fs_events_user *user = &events->users[i];
        if (user->uid == uid && user->even_ns)
            return user;
        if (user->even_ns < quiet->even_ns)
            quiet = user;
    }
    *quiet = (struct fs_events_user){.uid = uid};
    return quiet;
}

static void leave_out(struct fs *fs, struct fs_events_user *user, uint64_t now)
{
    if (!user->left_out++)
        user->tell_ns = now + TELL_NS;
    fs_loop_wake_at(&fs->loop, user->tell_ns);
}

void fs_events_add_for(struct fs *fs, uid_t uid, const char *severity, const char *object, const char *text)
{
    struct fs_events_user *user = find_user(&fs->events, uid);
    uint64_t now = ut_clock_ns();
    if (user->even_ns < now)
        user->even_ns = now;
    if (user->even_ns - now > USER_LINES * USER_LINE_NS) {
        leave_out(fs, user, now);
        return;
    }
    user->even_ns += USER_LINE_NS;
    fs_events_add(fs, severity, object, text);
}

void fs_events_tick(struct fs *fs, uint64_t now)
{
    for (unsigned i = 0; i < FS_EVENTS_USERS; i++) {
        struct fs_events_user *user = &fs->events.users[i];
        char text[128];
        if (!user->left_out)
            continue;
        if (now < user->tell_ns) {
            fs_loop_wake_at(&fs->loop, user->tell_ns);
            continue;
        }
        snprintf(text, sizeof(text), "%" PRIu64 " more lines about jobs of user %u are left out",
                 user->left_out, (unsigned)user->uid);
        user->left_out = 0;
        fs_events_add(fs, "warn", "jobs", text);
    }
}

static uint64_t events_bytes(struct fs_node *node)
{
    return node->fs->events.total;
}

static void events_open(fuse_req_t req, struct fs_node *node, struct fuse_file_info *fi)
{
    bool writes = (fi->flags & O_ACCMODE) != O_RDONLY;
    struct fs_events_open *open = writes ? NULL : calloc(1, sizeof(*open));
    if (!open) {
        fuse_reply_err(req, writes ? EPERM : ENOMEM);
        return;
    }
    ut_list_append(&node->fs->events.opens, &open->link);
    fi->fh = (uint64_t)(uintptr_t)open;
    fi->direct_io = 1;
    fs_node_reply_open(req, node, fi);
}

/* Where in the log a read at the client's offset begins. */
static uint64_t find_start(const struct fs_events *events, const struct fs_events_open *open, uint64_t offset)
{
    uint64_t start = offset == open->client_next ? open->log_next : offset;
    return start < events->first ? events->first : start;
}

static void events_read(fuse_req_t req, struct fs_node *node, size_t size, off_t offset,
                        struct fuse_file_info *fi)
{
    struct fs_events *events = &node->fs->events;
    struct fs_events_open *open = (struct fs_events_open *)(uintptr_t)fi->fh;
    uint64_t start = find_start(events, open, (uint64_t)offset);
    uint64_t left = start < events->total ? events->total - start : 0;
    size_t len = left < size ? (size_t)left : size;
    size_t first_part = FS_EVENTS_BYTES - start % FS_EVENTS_BYTES;
    struct iovec parts[2] = {{events->bytes + start % FS_EVENTS_BYTES, len < first_part ? len : first_part},
                             {events->bytes, len < first_part ? 0 : len - first_part}};
    open->client_next = (uint64_t)offset + len;
    open->log_next = start + len;
    fuse_reply_iov(req, parts, 2);
}

static void events_poll(fuse_req_t req, struct fs_node *node, struct fuse_file_info *fi,
                        struct fuse_pollhandle *ph)
{
    struct fs_events_open *open = (struct fs_events_open *)(uintptr_t)fi->fh;
    if (ph) {
        if (open->poll)
            fuse_pollhandle_destroy(open->poll);
        open->poll = ph;
    }
    fuse_reply_poll(req, open->log_next < node->fs->events.total ? POLLIN : 0);
}

static void events_release(struct fs_node *node, struct fuse_file_info *fi)
{
    struct fs_events_open *open = (struct fs_events_open *)(uintptr_t)fi->fh;
    (void)node;
    if (open->poll)
        fuse_pollhandle_destroy(open->poll);
    ut_list_remove(&open->link);
    free(open);
}

const struct fs_kind fs_events_kind = {
    .mode = S_IFREG | 0444,
    .still = true,
    .bytes = events_bytes,
    .open = events_open,
    .read = events_read,
    .poll = events_poll,
    .release = events_release,
};
