#include "utils/pci_file.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE_BYTES 4096

/* Kernels before 5.6 and some sandboxes have no openat2: there, links are not followed at all. */
static int open_below(int dir_fd, const char *path, int flags)
{
    struct open_how how = {.flags = (uint64_t)flags | O_CLOEXEC,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    int fd = (int)syscall(SYS_openat2, dir_fd, path, &how, sizeof how);
    if (fd < 0 && (errno == ENOSYS || errno == EPERM))
        fd = openat(dir_fd, path, flags | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? -errno : fd;
}

int ut_pci_file_dir(int dir_fd, const char *path)
{
    return open_below(dir_fd, path, O_RDONLY | O_DIRECTORY);
}

int ut_pci_file_open(int dir_fd, const char *path)
{
    struct stat st;
    int fd = open_below(dir_fd, path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (fd >= 0 && (fstat(fd, &st) || !S_ISREG(st.st_mode))) {
        close(fd);
        return -EINVAL;
    }
    return fd;
}

ssize_t ut_pci_file_read(int dir_fd, const char *path, void *buf, size_t size)
{
    size_t len = 0;
    ssize_t got = 1;
    int fd = ut_pci_file_open(dir_fd, path);
    if (fd < 0)
        return fd;
    while (len < size && got > 0) {
        size_t want = size - len;
        got = read(fd, (char *)buf + len, want);
        len += got > 0 ? (size_t)got : 0;
        if (got > 0 && (size_t)got < want && len < PAGE_BYTES)
            break; /* an attribute comes in one piece */
    }
    int rc = got < 0 && !len ? -errno : 0;
    close(fd);
    return rc ? rc : (ssize_t)len;
}

/* Ends the text before the blanks at its end; the length. */
static ssize_t trim(char *buf, ssize_t len)
{
    len = (ssize_t)strnlen(buf, (size_t)len);
    while (len && isspace((unsigned char)buf[len - 1]))
        len--;
    buf[len] = '\0';
    return len;
}

ssize_t ut_pci_file_text(int dir_fd, const char *path, char *buf, size_t size)
{
    ssize_t len = ut_pci_file_read(dir_fd, path, buf, size - 1);
    return len < 0 ? len : trim(buf, len);
}

ssize_t ut_pci_file_again(int fd, char *buf, size_t size)
{
    ssize_t len = pread(fd, buf, size - 1, 0);
    return len < 0 ? -errno : trim(buf, len);
}

int ut_pci_file_number(int dir_fd, const char *path, int64_t *out)
{
    char text[32], *end;
    ssize_t len = ut_pci_file_text(dir_fd, path, text, sizeof text);
    if (len < 0)
        return (int)len;
    bool is_hex = len > 2 && text[0] == '0' && text[1] == 'x';
    errno = 0;
    int64_t value = strtoll(text, &end, is_hex ? 16 : 10);
    if (!len || *end || errno || isspace((unsigned char)text[0]))
        return -EINVAL;
    *out = value;
    return 0;
}

ssize_t ut_pci_file_link(int dir_fd, const char *path, char *buf, size_t size)
{
    ssize_t len = readlinkat(dir_fd, path, buf, size - 1);
    if (len < 0)
        return errno == EINVAL ? ut_pci_file_text(dir_fd, path, buf, size) : -errno;
    buf[len] = '\0';
    return len;
}
