#include "utils/ctl_reader.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "utils/ut_clock.h"

#define PATH_CHARS 96u /* "jobs/" and a name of 64 and "/members" */

/* What goes through the pipe: one of these, then the path, then the bytes. */
struct record {
    enum { RECORD_BEGIN, RECORD_FILE, RECORD_CUT, RECORD_END } kind;
    int rc;
    uint32_t path_len, bytes_len;
};

/* ---- the child ---- */

struct child {
    int out, root;
    char *buf; /* of CTL_READER_FILE_BYTES */
    size_t sent;
};

static void send_all(const struct child *child, const void *bytes, size_t len)
{
    while (len) {
        ssize_t done = write(child->out, bytes, len);
        if (done < 0 && errno != EINTR)
            _exit(1); /* nobody reads any more */
        if (done > 0) {
            bytes = (const char *)bytes + done;
            len -= (size_t)done;
        }
    }
}

static void send_record(struct child *child, int kind, const char *path, int rc, size_t bytes_len)
{
    struct record record = {
        .kind = kind, .rc = rc, .path_len = (uint32_t)strlen(path), .bytes_len = (uint32_t)bytes_len};
    send_all(child, &record, sizeof record);
    send_all(child, path, record.path_len);
    send_all(child, child->buf, bytes_len);
    child->sent += bytes_len;
}

/* Reads a regular file into buf: its length, or -errno. */
static ssize_t read_file(struct child *child, const char *path, size_t room)
{
    size_t len = 0;
    struct stat st;
    int fd = openat(child->root, path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t got = fstat(fd, &st) ? -errno : S_ISREG(st.st_mode) ? 1 : -EINVAL;
    while (got > 0 && len < room) {
        got = read(fd, child->buf + len, room - len);
        if (got < 0)
            got = errno == EINTR ? 1 : -errno;
        else
            len += (size_t)got;
    }
    close(fd);
    return got < 0 ? got : (ssize_t)len;
}

/* False when it could not be read. */
static bool hand_over(struct child *child, const char *path)
{
    size_t left = CTL_READER_BYTES - child->sent;
    size_t room = left < CTL_READER_FILE_BYTES ? left : CTL_READER_FILE_BYTES;
    send_record(child, RECORD_BEGIN, path, 0, 0);
    ssize_t len = read_file(child, path, room);
    if (len == (ssize_t)room)
        send_record(child, RECORD_CUT, "", 0, 0);
    send_record(child, RECORD_FILE, path, len < 0 ? (int)len : 0, len < 0 ? 0 : (size_t)len);
    return len >= 0;
}

static bool is_node(const char *name)
{
    return name[0] && strlen(name) < 6 && !name[strspn(name, "0123456789")];
}

static bool is_job(const char *name)
{
    static const char good[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    return strlen(name) <= 64 && !name[strspn(name, good)] && strcmp(name, ".") && strcmp(name, "..");
}

/* Two files of each entry of a directory. */
static void hand_over_each(struct child *child, const char *directory, bool (*is_one)(const char *),
                           unsigned max, const char *const files[2])
{
    int fd = openat(child->root, directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    unsigned count = 0;
    send_record(child, RECORD_BEGIN, directory, 0, 0);
    for (const struct dirent *entry; dir && (entry = readdir(dir));) {
        char path[PATH_CHARS];
        if (!is_one(entry->d_name))
            continue;
        if (count++ == max) {
            send_record(child, RECORD_CUT, "", 0, 0);
            break;
        }
        for (int i = 0; i < 2; i++) {
            snprintf(path, sizeof path, "%s/%.64s/%s", directory, entry->d_name, files[i]);
            hand_over(child, path);
        }
    }
    if (dir)
        closedir(dir);
}

static void hand_over_job(struct child *child, const struct ctl_want *want)
{
    char path[PATH_CHARS];
    if (!is_job(want->job))
        return;
    snprintf(path, sizeof path, "jobs/%.64s/trace", want->job);
    hand_over(child, path);
    if (!want->events)
        return;
    snprintf(path, sizeof path, "jobs/%.64s/config", want->job);
    hand_over(child, path);
    hand_over(child, "events");
}

static void hand_over_all(struct child *child, const struct ctl_want *want)
{
    static const char *const of_root[] = {"stats", "health", "metrics", "topology"};
    static const char *const of_node[2] = {"link", "stats"}, *const of_job[2] = {"stats", "members"};
    send_record(child, RECORD_BEGIN, "", 0, 0);
    child->root = open(want->mount, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (child->root < 0) {
        send_record(child, RECORD_FILE, "version", -errno, 0);
        return;
    }
    if (!hand_over(child, "version"))
        return;
    for (unsigned i = 0; i < sizeof of_root / sizeof of_root[0]; i++)
        hand_over(child, of_root[i]);
    hand_over_each(child, "nodes", is_node, CTL_READER_NODES_MAX, of_node);
    hand_over_each(child, "jobs", is_job, CTL_READER_JOBS_MAX, of_job);
    if (want->job)
        hand_over_job(child, want);
}

/* The child: takes the pipe with it and nothing else, so that nobody waits for what a child that cannot end
 * holds open. */
static void run_child(int out, pid_t parent, const struct ctl_want *want)
{
    struct child child = {.out = 3};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || (out != 3 && dup2(out, 3) < 0))
        _exit(1);
    close_range(4, ~0u, 0);
    for (int fd = 0; fd < 3; fd++)
        close(fd);
    for (int fd = 0; fd < 3; fd++)
        if (open("/dev/null", O_RDWR) != fd)
            _exit(1);
    child.buf = malloc(CTL_READER_FILE_BYTES);
    if (!child.buf)
        _exit(1);
    hand_over_all(&child, want);
    close(child.root); /* who asked ends when it is told the end, and the mount must not be busy then */
    send_record(&child, RECORD_END, "", 0, 0);
    _exit(0);
}

/* ---- who asked ---- */

int ctl_reader_start(struct ctl_reader *reader, const struct ctl_want *want, struct ut_err *err)
{
    int fds[2];
    pid_t parent = getpid();
    *reader = (struct ctl_reader){.want = *want, .fd = -1};
    if (pipe2(fds, O_CLOEXEC))
        return ut_err_set(err, -errno, "a pipe: %s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0)
        run_child(fds[1], parent, want);
    int rc = pid < 0 ? -errno : 0;
    close(fds[1]);
    if (rc) {
        close(fds[0]);
        return ut_err_set(err, rc, "a process to read %s: %s", want->mount, strerror(-rc));
    }
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    reader->pid = pid;
    reader->fd = fds[0];
    reader->deadline_ns = ut_clock_ns() + want->timeout_ns;
    return 0;
}

static char *copy_plain(const char *bytes, size_t len)
{
    char *text = malloc(len + 1);
    for (size_t i = 0; text && i < len; i++)
        text[i] = bytes[i] == '\n' || (bytes[i] >= ' ' && bytes[i] <= '~') ? bytes[i] : '?';
    if (text)
        text[len] = '\0';
    return text;
}

static int add_file(struct ctl_files *files, const struct record *record, const char *path)
{
    if (!(files->count & (files->count - 1))) {
        size_t room = files->count ? 2 * files->count : 1;
        struct ctl_file *list = realloc(files->list, room * sizeof *list);
        if (!list)
            return -ENOMEM;
        files->list = list;
    }
    struct ctl_file file = {.rc = record->rc,
                            .path = copy_plain(path, record->path_len),
                            .text = copy_plain(path + record->path_len, record->bytes_len)};
    if (!file.path || !file.text) {
        free(file.path);
        free(file.text);
        return -ENOMEM;
    }
    files->list[files->count++] = file;
    return 0;
}

/* Takes the records that are whole. 1 after the last one, 0 when more must come, or -errno. */
static int take_records(struct ctl_reader *reader)
{
    struct record record;
    int rc = 0;
    while (!rc && reader->bytes.len - reader->used >= sizeof record) {
        const char *at = reader->bytes.bytes + reader->used;
        memcpy(&record, at, sizeof record);
        if (record.path_len >= PATH_CHARS || record.bytes_len > CTL_READER_FILE_BYTES)
            return -EIO;
        size_t need = sizeof record + record.path_len + record.bytes_len;
        if (reader->bytes.len - reader->used < need)
            return 0;
        at += sizeof record;
        if (record.kind == RECORD_BEGIN)
            snprintf(reader->at, sizeof reader->at, "%.*s", (int)record.path_len, at);
        else if (record.kind == RECORD_FILE)
            rc = add_file(&reader->files, &record, at);
        else if (record.kind == RECORD_CUT)
            reader->files.cut = true;
        else
            rc = 1;
        reader->used += need;
    }
    return rc;
}

/* Forgets what has been taken over. */
static void compact(struct ctl_reader *reader)
{
    if (!reader->used)
        return;
    reader->bytes.len -= reader->used;
    memmove(reader->bytes.bytes, reader->bytes.bytes + reader->used, reader->bytes.len);
    reader->used = 0;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct ctl_file *)a)->path, ((const struct ctl_file *)b)->path);
}

/* All is there. 1, or -errno when it is no fabric. */
static int conclude(struct ctl_reader *reader, struct ctl_files *out, struct ut_err *err)
{
    struct ctl_files *files = &reader->files;
    qsort(files->list, files->count, sizeof *files->list, by_path);
    const struct ctl_file *version = ctl_files_find(files, "version");
    int rc = !version ? -EIO : version->rc;
    if (!rc && strncmp(version->text, "fabricfs ", 9))
        rc = -ENOENT;
    if (rc)
        return ut_err_set(err, rc, "%s: no fabric is mounted there (%s)", reader->want.mount, strerror(-rc));
    *out = *files;
    *files = (struct ctl_files){0};
    return 1;
}

static int say_late(const struct ctl_reader *reader, struct ut_err *err)
{
    return ut_err_set(err, -ETIMEDOUT, "the daemon does not answer within %g s: %s%s%s",
                      (double)reader->want.timeout_ns / (double)UT_NS_PER_S, reader->want.mount,
                      *reader->at ? "/" : "", reader->at);
}

int ctl_reader_pump(struct ctl_reader *reader, struct ctl_files *files, struct ut_err *err)
{
    char some[65536];
    ssize_t got;
    while ((got = read(reader->fd, some, sizeof some)) > 0) {
        compact(reader);
        ut_text_add(&reader->bytes, some, (size_t)got);
        int rc = ut_text_failed(&reader->bytes) ? -ENOMEM : take_records(reader);
        if (rc > 0)
            return conclude(reader, files, err);
        if (rc < 0)
            return ut_err_set(err, rc, "%s: %s", reader->want.mount, strerror(-rc));
    }
    if (got == 0 || (errno != EAGAIN && errno != EINTR))
        return ut_err_set(err, -EIO, "%s/%s: the process that reads it has ended", reader->want.mount,
                          reader->at);
    return ut_clock_ns() >= reader->deadline_ns ? say_late(reader, err) : 0;
}

pid_t ctl_reader_end(struct ctl_reader *reader)
{
    pid_t left = 0;
    if (reader->fd >= 0)
        close(reader->fd);
    if (reader->pid > 0) {
        kill(reader->pid, SIGKILL);
        left = waitpid(reader->pid, NULL, WNOHANG) == 0 ? reader->pid : 0;
    }
    ut_text_fini(&reader->bytes);
    ctl_files_fini(&reader->files);
    *reader = (struct ctl_reader){.fd = -1};
    return left;
}

int ctl_reader_read(const struct ctl_want *want, struct ctl_files *files, struct ut_err *err)
{
    struct ctl_reader reader;
    int rc = ctl_reader_start(&reader, want, err);
    if (rc)
        return rc;
    while (!(rc = ctl_reader_pump(&reader, files, err))) {
        uint64_t now = ut_clock_ns(), left = reader.deadline_ns > now ? reader.deadline_ns - now : 0;
        struct pollfd one = {.fd = reader.fd, .events = POLLIN};
        poll(&one, 1, (int)(left / UT_NS_PER_MS) + 1);
    }
    ctl_reader_end(&reader);
    return rc < 0 ? rc : 0;
}

/* ---- files ---- */

const struct ctl_file *ctl_files_find(const struct ctl_files *files, const char *path)
{
    struct ctl_file key = {.path = (char *)path};
    return files->count ? bsearch(&key, files->list, files->count, sizeof *files->list, by_path) : NULL;
}

const char *ctl_files_text(const struct ctl_files *files, const char *path)
{
    const struct ctl_file *file = ctl_files_find(files, path);
    return file ? file->text : "";
}

void ctl_files_fini(struct ctl_files *files)
{
    for (size_t i = 0; i < files->count; i++) {
        free(files->list[i].path);
        free(files->list[i].text);
    }
    free(files->list);
    *files = (struct ctl_files){0};
}
