#include "utils/pci_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <pci/header.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "utils/pci_file.h"

#define REGISTERS_MAX 4
#define REGISTER_BYTES_MAX 16

/* One function on the path, and what is read of it at each look; descriptors are -1 where there is no file.
 */
struct member {
    struct ut_pci_fn *fn; /* of the watch's snapshot */
    int speed_fd, width_fd, config_fd, aer_fd[UT_PCI_AER_KINDS];
    unsigned register_count;
    struct {
        uint16_t at, len;
    } reg[REGISTERS_MAX];
    char *counted[UT_PCI_AER_KINDS]; /* the counters as they were last read; NULL: they never were */
    uint64_t last[UT_PCI_AER_KINDS]; /* their totals */
    bool gone;
    char name[UT_PCI_ADDR_CHARS];
};

struct ut_pci_watch {
    struct ut_pci_addr addr;
    struct ut_pci_snap *snap;
    struct ut_pci_model *model;
    int devices_fd; /* of bus/pci/devices; -1 before it is open */
    struct member *member;
    size_t member_count;
    uint64_t errors[UT_PCI_AER_KINDS];
    bool looked;
};

static const char *const AER_NAMES[UT_PCI_AER_KINDS] = {"aer_dev_correctable", "aer_dev_nonfatal",
                                                        "aer_dev_fatal"};

/* ---- opening ---- */

static void add_register(struct member *member, unsigned at, unsigned len)
{
    member->reg[member->register_count].at = (uint16_t)at;
    member->reg[member->register_count++].len = (uint16_t)len;
}

/* The registers that change while the machine runs. */
static void choose_registers(const struct ut_pci_caps *caps, struct member *member)
{
    if (caps->express.has_link)
        add_register(member, caps->express.at + PCI_EXP_LNKSTA, 2);
    if (caps->express.has_slot)
        add_register(member, caps->express.at + PCI_EXP_SLTSTA, 2);
    if (caps->dpc.have == UT_PCI_PRESENT)
        add_register(member, caps->dpc.at + PCI_DPC_STATUS, 2);
    if (caps->aer.have == UT_PCI_PRESENT) /* from the uncorrectable ones to the correctable ones */
        add_register(member, caps->aer.at + PCI_ERR_UNCOR_STATUS,
                     PCI_ERR_COR_STATUS + 4 - PCI_ERR_UNCOR_STATUS);
}

static void open_member(int devices_fd, struct ut_pci_fn *fn, const struct ut_pci_caps *caps,
                        struct member *member)
{
    ut_pci_addr_show(fn->addr, member->name);
    int fd = openat(devices_fd, member->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    member->fn = fn;
    member->config_fd = fn->cfg_len ? ut_pci_file_open(fd, "config") : -1;
    bool by_register = member->config_fd >= 0 && caps->express.has_link;
    if (by_register)
        fn->attrs.cur = (struct ut_pci_rate){0, 0}; /* the kernel would only read that register too */
    member->speed_fd = by_register ? -1 : ut_pci_file_open(fd, "current_link_speed");
    member->width_fd = by_register ? -1 : ut_pci_file_open(fd, "current_link_width");
    choose_registers(caps, member);
    if (!member->register_count && fn->cfg_len >= 4)
        add_register(member, PCI_VENDOR_ID, 4); /* these do not change, but tell whether it answers */
    for (int kind = 0; kind < UT_PCI_AER_KINDS; kind++)
        member->aer_fd[kind] = ut_pci_file_open(fd, AER_NAMES[kind]);
    if (fd >= 0)
        close(fd);
}

static int open_members(struct ut_pci_watch *watch, const char *dir)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/bus/pci/devices", dir ? dir : "/sys");
    watch->member = calloc(watch->snap->fn_count + 1, sizeof *watch->member);
    if (!watch->member)
        return -ENOMEM;
    watch->devices_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (watch->devices_fd < 0)
        return -errno;
    for (size_t i = 0; i < watch->snap->fn_count; i++)
        open_member(watch->devices_fd, &watch->snap->fn[i], &watch->model->node[i].caps,
                    &watch->member[watch->member_count++]);
    return 0;
}

int ut_pci_watch_open(const char *dir, struct ut_pci_addr addr, struct ut_pci_watch **out)
{
    struct ut_pci_watch *watch = calloc(1, sizeof *watch);
    if (!watch)
        return -ENOMEM;
    watch->addr = addr;
    watch->devices_fd = -1;
    int rc = ut_pci_snap_path(dir, addr, &watch->snap);
    if (!rc)
        rc = ut_pci_model_new(watch->snap, &watch->model);
    if (!rc)
        rc = open_members(watch, dir);
    if (rc) {
        ut_pci_watch_close(watch);
        return rc;
    }
    *out = watch;
    return 0;
}

static void close_member(struct member *member)
{
    for (int kind = 0; kind < UT_PCI_AER_KINDS; kind++)
        free(member->counted[kind]);
    int fds[] = {member->speed_fd,  member->width_fd,  member->config_fd,
                 member->aer_fd[0], member->aer_fd[1], member->aer_fd[2]};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

void ut_pci_watch_close(struct ut_pci_watch *watch)
{
    if (!watch)
        return;
    for (size_t i = 0; i < watch->member_count; i++)
        close_member(&watch->member[i]);
    if (watch->devices_fd >= 0)
        close(watch->devices_fd);
    free(watch->member);
    ut_pci_model_free(watch->model);
    ut_pci_snap_free(watch->snap);
    free(watch);
}

/* ---- looking ---- */

/* Puts the registers as they are now into the snapshot's bytes. All ones in all of them: nobody answers. */
static void refresh_registers(struct member *member)
{
    bool answered = !member->register_count || member->config_fd < 0;
    for (unsigned i = 0; member->config_fd >= 0 && i < member->register_count; i++) {
        uint8_t value[REGISTER_BYTES_MAX];
        unsigned len = member->reg[i].len, at = member->reg[i].at;
        if (pread(member->config_fd, value, len, at) != (ssize_t)len)
            continue;
        for (unsigned j = 0; j < len; j++)
            answered |= value[j] != 0xff;
        memcpy(member->fn->cfg + at, value, len);
    }
    member->gone |= !answered || member->fn->silent;
}

/* A device that is no longer listed has left, even where its files can still be read. */
static bool is_listed(const struct ut_pci_watch *watch)
{
    struct stat st;
    char name[UT_PCI_ADDR_CHARS];
    ut_pci_addr_show(watch->addr, name);
    return fstatat(watch->devices_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static void refresh_rate(struct member *member)
{
    char text[32];
    struct ut_pci_rate *cur = &member->fn->attrs.cur;
    ssize_t len = member->speed_fd < 0 ? 0 : ut_pci_file_again(member->speed_fd, text, sizeof text);
    if (len > 0)
        cur->mts = ut_pci_speed_of_text(text);
    member->gone |= len == -ENODEV;
    len = member->width_fd < 0 ? 0 : ut_pci_file_again(member->width_fd, text, sizeof text);
    if (len > 0)
        cur->width = ut_pci_width_of(strtoul(text, NULL, 10));
    member->gone |= len == -ENODEV;
}

static uint64_t add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* What was counted since they were read before: all of it when the counter has restarted. They are taken
 * apart only when they have changed, which they hardly ever do. */
static uint64_t take_counters(struct member *member, int kind, char *text)
{
    struct ut_pci_counters *counters = &member->fn->attrs.aer[kind];
    bool first = !member->counted[kind];
    if (!first && strcmp(member->counted[kind], text) == 0)
        return 0;
    char *copy = strdup(text);
    if (!copy)
        return 0; /* they are still news at the next look */
    free(member->counted[kind]);
    member->counted[kind] = copy;
    ut_pci_snap_counters(text, counters);
    uint64_t total = ut_pci_counter_total(counters), last = member->last[kind];
    member->last[kind] = total;
    if (first)
        return 0;
    return total >= last ? total - last : total;
}

static void refresh_counters(struct member *member, struct ut_pci_health *health, uint64_t *most)
{
    char text[4096];
    for (int kind = 0; member->fn->attrs.aer && kind < UT_PCI_AER_KINDS; kind++) {
        if (member->aer_fd[kind] < 0 || ut_pci_file_again(member->aer_fd[kind], text, sizeof text) <= 0)
            continue;
        uint64_t fresh = take_counters(member, kind, text);
        health->has_counters = true;
        health->new_errors[kind] = add(health->new_errors[kind], fresh);
        if (fresh > *most) {
            *most = fresh;
            health->noisiest = member->fn->addr;
        }
    }
}

/* Both models have the same functions in the same order, so their links correspond. */
static bool differs(const struct ut_pci_model *a, const struct ut_pci_model *b)
{
    if (a->link_count != b->link_count)
        return true;
    for (size_t i = 0; i < a->link_count; i++)
        if (a->link[i].verdict != b->link[i].verdict || a->link[i].cur.mts != b->link[i].cur.mts ||
            a->link[i].cur.width != b->link[i].cur.width)
            return true;
    return false;
}

static void find_worst(const struct ut_pci_model *m, struct ut_pci_health *health)
{
    health->worst = UT_PCI_VERDICTS;
    health->worst_link = UT_PCI_NONE;
    for (unsigned i = 0; i < health->path.hop_count; i++) {
        enum ut_pci_verdict verdict = m->link[health->path.hop[i]].verdict;
        if (health->worst_link != UT_PCI_NONE &&
            ut_pci_verdict_rank(verdict) >= ut_pci_verdict_rank(health->worst))
            continue;
        health->worst = verdict;
        health->worst_link = health->path.hop[i];
    }
}

static bool any_below_what_it_could(const struct ut_pci_model *m)
{
    for (size_t i = 0; i < m->link_count; i++)
        if (m->link[i].slower || m->link[i].narrower)
            return true;
    return false;
}

/* The model of what has been read. Only of a slow link it matters whether the device is in use and awake, so
 * that is looked up only then. */
static int build_model(const struct ut_pci_watch *watch, struct ut_pci_model **out)
{
    struct ut_pci_model *model;
    int rc = ut_pci_model_new(watch->snap, &model);
    if (rc || !any_below_what_it_could(model)) {
        *out = model;
        return rc;
    }
    ut_pci_model_free(model);
    for (size_t i = 0; i < watch->member_count; i++)
        ut_pci_snap_state(watch->devices_fd, watch->member[i].name, watch->member[i].fn);
    return ut_pci_model_new(watch->snap, out);
}

int ut_pci_watch_look(struct ut_pci_watch *watch, struct ut_pci_health *out)
{
    struct ut_pci_health health = {.noisiest = watch->addr, .gone = !is_listed(watch)};
    struct ut_pci_model *model;
    uint64_t most = 0;
    for (size_t i = 0; i < watch->member_count; i++) {
        struct member *member = &watch->member[i];
        member->gone = false;
        refresh_registers(member);
        refresh_rate(member);
        refresh_counters(member, &health, &most);
        health.gone |= member->gone;
    }
    int rc = build_model(watch, &model);
    if (rc)
        return rc;
    health.changed = watch->looked && differs(watch->model, model);
    ut_pci_model_free(watch->model);
    watch->model = model;
    watch->looked = true;
    for (int kind = 0; kind < UT_PCI_AER_KINDS; kind++)
        health.errors[kind] = watch->errors[kind] = add(watch->errors[kind], health.new_errors[kind]);
    ut_pci_path_up(model, ut_pci_model_find(model, watch->addr), &health.path);
    find_worst(model, &health);
    *out = health;
    return 0;
}

const struct ut_pci_model *ut_pci_watch_model(const struct ut_pci_watch *watch)
{
    return watch->model;
}
