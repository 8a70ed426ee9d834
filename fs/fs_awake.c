#include "fs/fs_awake.h"

#include "utils/ut_clock.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define DEVICE "/dev/cpu_dma_latency"
#define DRIVER "/sys/devices/system/cpu/cpuidle/current_driver"

/* So many operations, each so soon after the one before, and it is worth it; after so long without one it is
 * not any more. Longer than that a training step computes, and processors may sleep. */
#define CLOSE_COUNT 3u
#define CLOSE_NS UT_NS_PER_MS
#define RELEASE_NS (5 * UT_NS_PER_MS)

/* The first idle state of a real processor (C1) is left within 2 us, and leaves its neighbours their turbo.
 */
#define WAY_US 2
#define NO_WISH_US 2000000000 /* PM_QOS_CPU_LATENCY_DEFAULT_VALUE, include/linux/pm_qos.h */

/* A guest's haltpoll driver halts the processor unless 0 is asked for (drivers/cpuidle/governors/haltpoll.c).
 */
static int32_t find_way(void)
{
    char name[16] = "";
    int fd = open(DRIVER, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, name, sizeof(name) - 1);
    if (fd >= 0)
        close(fd);
    return got > 0 && strncmp(name, "haltpoll", 8) == 0 ? 0 : WAY_US;
}

void fs_awake_init(struct fs_awake *awake, bool wanted)
{
    *awake = (struct fs_awake){.fd = -1};
    if (!wanted)
        return;
    awake->way_us = find_way();
    awake->fd = open(DEVICE, O_WRONLY | O_CLOEXEC);
    if (awake->fd < 0)
        awake->error = errno;
}

void fs_awake_fini(struct fs_awake *awake)
{
    if (awake->fd >= 0)
        close(awake->fd); /* which takes the wish back */
    awake->fd = -1;
}

static void ask(struct fs_awake *awake, bool hold)
{
    const int32_t us = hold ? awake->way_us : NO_WISH_US;
    if (write(awake->fd, &us, sizeof(us)) == sizeof(us)) {
        awake->held = hold;
        return;
    }
    awake->error = errno;
    awake->held = false;
    fs_awake_fini(awake);
}

uint64_t fs_awake_operation(struct fs_awake *awake, uint64_t now_ns)
{
    awake->close = now_ns - awake->last_ns < CLOSE_NS ? awake->close + 1 : 0;
    awake->last_ns = now_ns;
    if (awake->fd >= 0 && !awake->held && awake->close >= CLOSE_COUNT)
        ask(awake, true);
    return awake->held ? now_ns + RELEASE_NS : UINT64_MAX;
}

uint64_t fs_awake_tick(struct fs_awake *awake, uint64_t now_ns)
{
    if (awake->held && now_ns >= awake->last_ns + RELEASE_NS)
        ask(awake, false);
    return awake->held ? awake->last_ns + RELEASE_NS : UINT64_MAX;
}

void fs_awake_show(const struct fs_awake *awake, struct ut_text *out)
{
    if (awake->fd >= 0)
        ut_text_addf(out, "awake %s\n", awake->held ? "held" : "free");
    else
        ut_text_addf(out, "awake none (%s)\n", awake->error ? strerror(awake->error) : "not wanted");
}
