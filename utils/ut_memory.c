#include "utils/ut_memory.h"

#include "utils/ut_num.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The number a limit file holds; UINT64_MAX when it is not there or says "max". */
static uint64_t read_limit(const char *path)
{
    char word[32];
    uint64_t limit = UINT64_MAX;
    FILE *file = fopen(path, "re");
    if (!file)
        return UINT64_MAX;
    if (fgets(word, sizeof(word), file)) {
        word[strcspn(word, "\n")] = '\0';
        if (ut_num_u64(word, UINT64_MAX, &limit))
            limit = UINT64_MAX;
    }
    fclose(file);
    return limit;
}

static uint64_t lower(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The lowest limit from the group called name up to the root of the hierarchy mounted at `root`. */
static uint64_t lowest_limit(const char *root, char *name, const char *limit_file)
{
    uint64_t lowest = UINT64_MAX;
    for (;;) {
        char path[PATH_MAX];
        int len = snprintf(path, sizeof(path), "%s%s/%s", root, name, limit_file);
        if (len > 0 && (size_t)len < sizeof(path))
            lowest = lower(lowest, read_limit(path));
        char *slash = strrchr(name, '/');
        if (!slash)
            return lowest;
        *slash = '\0';
    }
}

/* Lines of /proc/self/cgroup are id:controllers:/name; version 2 has the one with id 0 and no controllers. */
static uint64_t group_limit(char *line)
{
    char *controllers = strchr(line, ':');
    char *name = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!name)
        return UINT64_MAX;
    *name++ = '\0';
    name[strcspn(name, "\n")] = '\0';
    if (strcmp(line, "0:") == 0)
        return lowest_limit("/sys/fs/cgroup", name, "memory.max");
    if (strcmp(controllers + 1, "memory") == 0)
        return lowest_limit("/sys/fs/cgroup/memory", name, "memory.limit_in_bytes");
    return UINT64_MAX;
}

uint64_t ut_memory_bytes(void)
{
    uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    char line[PATH_MAX + 64];
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file && fgets(line, sizeof(line), file))
        bytes = lower(bytes, group_limit(line));
    if (file)
        fclose(file);
    return bytes;
}
