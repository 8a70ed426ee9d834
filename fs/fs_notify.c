#include "fs/fs_notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* The address of the socket: a path, or a name in the abstract space when it begins with '@'. */
static int parse_address(const char *name, struct sockaddr_un *out, socklen_t *out_len)
{
    size_t len = strlen(name);
    if ((*name != '/' && *name != '@') || len >= sizeof(out->sun_path))
        return -EINVAL;
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(out->sun_path, name, len);
    if (*name == '@')
        out->sun_path[0] = '\0';
    *out_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    return 0;
}

static int send_as(int sock, struct sockaddr_un *to, socklen_t to_len, pid_t pid, const char *state)
{
    union {
        char bytes[CMSG_SPACE(sizeof(struct ucred))];
        struct cmsghdr align;
    } control = {0};
    struct iovec text = {.iov_base = (char *)state, .iov_len = strlen(state)};
    struct msghdr message = {.msg_name = to,
                             .msg_namelen = to_len,
                             .msg_iov = &text,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    struct ucred sender = {.pid = pid, .uid = getuid(), .gid = getgid()};
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_CREDENTIALS;
    header->cmsg_len = CMSG_LEN(sizeof(sender));
    memcpy(CMSG_DATA(header), &sender, sizeof(sender));
    return sendmsg(sock, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -errno : 0;
}

bool fs_notify_wanted(void)
{
    return getenv("NOTIFY_SOCKET");
}

int fs_notify(pid_t pid, const char *state)
{
    struct sockaddr_un to;
    socklen_t to_len;
    const char *name = getenv("NOTIFY_SOCKET");
    if (!name)
        return 0;
    int rc = parse_address(name, &to, &to_len);
    if (rc)
        return rc;
    int sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (sock < 0)
        return -errno;
    rc = send_as(sock, &to, to_len, pid, state);
    if (rc == -EPERM && pid != getpid())
        rc = send_as(sock, &to, to_len, getpid(), state);
    close(sock);
    return rc;
}
