#include "fs/fs_log.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

void fs_log_init(struct fs_log *log, bool foreground)
{
    *log = (struct fs_log){.is_system = !foreground, .fd = STDERR_FILENO};
    if (log->is_system)
        log->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
}

void fs_log_fini(struct fs_log *log)
{
    if (log->is_system && log->fd >= 0)
        close(log->fd);
}

/* Others may have standard error too, so it is not made non-blocking. It takes a line, which is shorter than
 * what a pipe has room for when it has any. */
static bool put_on_stderr(const struct fs_log *log, const char *line, size_t len)
{
    struct pollfd room = {.fd = log->fd, .events = POLLOUT};
    return poll(&room, 1, 0) == 1 && (room.revents & POLLOUT) && write(log->fd, line, len) == (ssize_t)len;
}

/* In the form that syslog(3) sends. */
static bool put_in_system(const struct fs_log *log, int priority, const char *line, size_t len)
{
    static const struct sockaddr_un to = {.sun_family = AF_UNIX, .sun_path = _PATH_LOG};
    char message[1200], when[32];
    struct tm local;
    time_t now = time(NULL);
    strftime(when, sizeof(when), "%b %e %T", localtime_r(&now, &local));
    int full = snprintf(message, sizeof(message), "<%d>%s fabricfs[%d]: %.*s", LOG_DAEMON | priority, when,
                        (int)getpid(), (int)len - 1, line);
    size_t bytes = (size_t)full < sizeof(message) ? (size_t)full : sizeof(message) - 1;
    return sendto(log->fd, message, bytes, MSG_DONTWAIT | MSG_NOSIGNAL, (const struct sockaddr *)&to,
                  sizeof(to)) >= 0;
}

static bool put(const struct fs_log *log, int priority, const char *line, size_t len)
{
    return log->is_system ? put_in_system(log, priority, line, len) : put_on_stderr(log, line, len);
}

/* Says what was left out. False when that is not taken either. */
static bool tell(struct fs_log *log)
{
    char text[96];
    int len = snprintf(text, sizeof(text), "%" PRIu64 " lines are left out here: nobody took them\n",
                       log->left_out);
    if (log->left_out && !put(log, LOG_WARNING, text, (size_t)len))
        return false;
    log->left_out = 0;
    return true;
}

void fs_log_line(struct fs_log *log, int priority, const char *line, size_t len)
{
    if (!tell(log) || !put(log, priority, line, len))
        log->left_out++;
}
