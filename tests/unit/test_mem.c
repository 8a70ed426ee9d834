/*
 * What every kind of shared memory promises, with one body for all kinds, and what each kind has of its own.
 * DAX devices are not to be had here: their limits are tested on a copy of what sysfs shows.
 */
#include "ntbmem/ntbm_emu.h"
#include "ntbmem/ntbm_guard.h"
#include "ntbmem/ntbm_link.h"
#include "ntbmem/ntbm_mem.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition, text) cr_assert(condition, "%s", text)
#include "tests/unit/mem_contract.h"

#define KIB 1024ull

/* A place where a kind can make memory, and its file for those tests that attack it. */
struct place {
    char uri[128];
    char path[64];
};

static void place_of_shm(struct place *place)
{
    snprintf(place->uri, sizeof(place->uri), "shm:fabricfs-test-%d", getpid());
    snprintf(place->path, sizeof(place->path), "/dev/shm/fabricfs-test-%d", getpid());
}

static void place_of_file(struct place *place)
{
    snprintf(place->path, sizeof(place->path), "/tmp/fabricfs-test-%d", getpid());
    snprintf(place->uri, sizeof(place->uri), "file:%s", place->path);
}

static void (*const places[])(struct place *place) = {place_of_shm, place_of_file};

#define CONTRACT(name)                                  \
    static void name##_body(const struct place *place); \
    Test(mem, name)                                     \
    {                                                   \
        over_all_kinds(name##_body);                    \
    }                                                   \
    static void name##_body(const struct place *place)

static void over_all_kinds(void (*body)(const struct place *place))
{
    cr_assert_eq(ntbm_guard_init(), 0);
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        struct place place;
        places[i](&place);
        unlink(place.path);
        body(&place);
        unlink(place.path);
    }
}

static int open_part(const struct place *place, const char *part, enum ntbm_role role, struct ntbm_mem *mem,
                     struct ut_err *err)
{
    char text[256];
    struct ntbm_uri uri;
    snprintf(text, sizeof(text), "%s%s", place->uri, part);
    cr_assert_eq(ntbm_uri_parse(text, &uri, err), 0, "%s", err->text);
    return ntbm_mem_open(&uri, role, 64 * KIB, mem, err);
}

static struct ntbm_mem opened(const struct place *place, const char *part, enum ntbm_role role)
{
    struct ntbm_mem mem;
    struct ut_err err = {""};
    cr_assert_eq(open_part(place, part, role, &mem, &err), 0, "%s%s: %s", place->uri, part, err.text);
    return mem;
}

static void refused(const struct place *place, const char *part, enum ntbm_role role, int rc,
                    const char *because)
{
    struct ntbm_mem mem;
    struct ut_err err = {""};
    cr_assert_eq(open_part(place, part, role, &mem, &err), rc, "%s%s: %s", place->uri, part, err.text);
    cr_assert(strstr(err.text, because), "%s%s is refused with: %s", place->uri, part, err.text);
}

CONTRACT(landing_memory_is_made_zeroed_and_as_long_as_wanted)
{
    struct ntbm_mem mem = opened(place, "", NTBM_LANDING);
    cr_assert_eq(mem.bytes, 64 * KIB);
    for (uint64_t i = 0; i < mem.bytes; i++)
        cr_assert_eq(mem.base[i], 0);
    ntbm_mem_close(&mem);
    cr_assert_eq(mem.fd, -1);
    ntbm_mem_close(&mem);
}

CONTRACT(its_pages_are_allocated_so_that_no_store_can_fail)
{
    struct stat st;
    struct ntbm_mem mem = opened(place, "", NTBM_LANDING);
    cr_assert_eq(stat(place->path, &st), 0);
    cr_assert_geq(st.st_blocks * 512, 64 * (long)KIB);
    ntbm_mem_close(&mem);
}

CONTRACT(keeps_what_every_kind_promises)
{
    struct ntbm_mem whole = opened(place, "+0:128K", NTBM_LANDING);
    ntbm_mem_close(&whole);
    contract_check(&(struct contract){.landing = place->uri, .window = place->uri, .unit = 64 * KIB});
}

CONTRACT(a_window_to_memory_that_is_not_there_is_enoent)
{
    refused(place, "", NTBM_WINDOW, -ENOENT, place->uri);
}

CONTRACT(misaligned_parts_are_refused_with_the_alignment)
{
    struct ntbm_mem mem = opened(place, "", NTBM_LANDING);
    refused(place, "+100:8K", NTBM_WINDOW, -EINVAL, "multiples of 4K");
    refused(place, "+0:5000", NTBM_WINDOW, -EINVAL, "multiples of 4K");
    ntbm_mem_close(&mem);
}

CONTRACT(a_part_that_is_not_there_is_refused_with_the_size)
{
    struct ntbm_mem mem = opened(place, "", NTBM_LANDING);
    refused(place, "+32K:64K", NTBM_WINDOW, -EINVAL, "98304 are needed");
    ntbm_mem_close(&mem);
}

CONTRACT(a_second_daemon_is_refused_until_the_first_has_ended)
{
    struct ntbm_mem mem = opened(place, "", NTBM_LANDING);
    mem.base[7] = 7;
    refused(place, "", NTBM_LANDING, -EBUSY, "another daemon");
    cr_assert_eq(mem.base[7], 7);
    ntbm_mem_close(&mem);
    mem = opened(place, "", NTBM_LANDING);
    cr_assert_eq(mem.base[7], 7);
    ntbm_mem_close(&mem);
}

CONTRACT(a_refused_second_daemon_does_not_change_the_length)
{
    struct ntbm_mem mem = opened(place, "+0:128K", NTBM_LANDING);
    refused(place, "+0:64K", NTBM_LANDING, -EBUSY, "another daemon");
    mem.base[128 * KIB - 1] = 1;
    ntbm_mem_close(&mem);
}

CONTRACT(memory_that_others_may_write_is_refused)
{
    struct ntbm_mem mem = opened(place, "", NTBM_LANDING);
    cr_assert_eq(chmod(place->path, 0620), 0);
    refused(place, "", NTBM_WINDOW, -EPERM, "600");
    ntbm_mem_close(&mem);
    refused(place, "", NTBM_LANDING, -EPERM, "600");
}

CONTRACT(memory_of_another_user_is_refused)
{
    struct ntbm_mem mem = opened(place, "", NTBM_LANDING);
    ntbm_mem_close(&mem);
    if (geteuid() != 0)
        cr_skip_test("only root can give a file away");
    cr_assert_eq(chown(place->path, 65534, 65534), 0);
    refused(place, "", NTBM_LANDING, -EPERM, "belongs to user 65534");
    refused(place, "", NTBM_WINDOW, -EPERM, "belongs to user 65534");
}

CONTRACT(another_user_cannot_attach)
{
    struct ntbm_mem mem = opened(place, "", NTBM_LANDING);
    if (geteuid() != 0)
        cr_skip_test("only root can become another user");
    pid_t pid = fork();
    if (!pid) {
        struct ntbm_mem window;
        struct ut_err err;
        _exit(setuid(65534) || open_part(place, "", NTBM_WINDOW, &window, &err) != -EACCES);
    }
    int status;
    waitpid(pid, &status, 0);
    cr_assert_eq(status, 0);
    ntbm_mem_close(&mem);
}

CONTRACT(something_that_is_no_file_is_refused)
{
    cr_assert_eq(mkdir(place->path, 0700), 0);
    struct ntbm_mem mem;
    struct ut_err err = {""};
    cr_assert_lt(open_part(place, "", NTBM_LANDING, &mem, &err), 0);
    cr_assert_neq(err.text[0], '\0');
    rmdir(place->path);
}

/* ---- a link over it ---- */

struct pair {
    struct ntbm_mem landing;
    struct ntbm_mem_link link;
};

static void join(const struct place *place, struct pair *pair)
{
    struct ut_err err = {""};
    pair->landing = opened(place, "", NTBM_LANDING);
    ntbm_mem_link_init(&pair->link, &pair->landing.uri);
    cr_assert_eq(ntbm_link_attach(&pair->link.link, &err), 0, "%s", err.text);
}

CONTRACT(memory_that_goes_away_breaks_the_link_and_nothing_else)
{
    struct pair pair;
    uint8_t line[64] = {1};
    struct ut_err err = {""};
    join(place, &pair);
    cr_assert_eq(truncate(place->path, 0), 0);
    ntbm_link_put(&pair.link.link,
                  &(struct ntbm_put){.offset = 0, .bytes = line, .len = 64, .word_offset = NTBM_NO_WORD});
    cr_assert(atomic_load(&pair.link.link.broken));
    cr_assert_eq(ntbm_link_read(&pair.link.link, 0, line, 64), -EFAULT);
    ntbm_link_detach(&pair.link.link);
    cr_assert_eq(ntbm_link_attach(&pair.link.link, &err), -ENOENT);
    cr_assert(strstr(err.text, "empty"), "%s", err.text);
    cr_assert_not(atomic_load(&pair.link.link.broken));
    ntbm_mem_close(&pair.landing);
}

CONTRACT(a_dead_device_is_not_read_beyond_its_first_word_of_all_ones)
{
    struct pair pair;
    uint64_t line[8] = {0}, ones[8];
    memset(ones, 0xff, sizeof(ones));
    join(place, &pair);
    memset(pair.landing.base + 4096 - 8, 0xff, 8);
    cr_assert_eq(truncate(place->path, 4096), 0); /* what reads on is killed, or is told so */
    cr_assert_eq(ntbm_link_read(&pair.link.link, 4096 - 16, line, 64), 0);
    cr_assert_arr_eq(line, ones, sizeof(line));
    cr_assert_not(atomic_load(&pair.link.link.broken));
    ntbm_link_detach(&pair.link.link);
    ntbm_mem_close(&pair.landing);
}

static uint64_t no_time(void *ctx)
{
    (void)ctx;
    return 1;
}

CONTRACT(a_fault_that_is_emulated_where_memory_has_gone_away_breaks_the_link_and_nothing_else)
{
    struct pair pair;
    struct ntbm_emu emu;
    struct ut_err err = {""};
    join(place, &pair);
    ntbm_link_detach(&pair.link.link);
    ntbm_emu_init(&emu, &pair.link.link, &(struct ntbm_emu_attr){0}, no_time, NULL, 1);
    emu.faults.flip_permille = 1000;
    cr_assert_eq(ntbm_link_attach(&emu.link, &err), 0, "%s", err.text);
    cr_assert_eq(truncate(place->path, 0), 0);
    ntbm_link_put(&emu.link,
                  &(struct ntbm_put){.offset = 4096, .staged_len = 4096, .word_offset = 0, .word = 1});
    ntbm_link_poll(&emu.link, 1);
    cr_assert(atomic_load(&emu.link.broken));
    ntbm_link_detach(&emu.link);
    ntbm_emu_fini(&emu);
    ntbm_mem_close(&pair.landing);
}

/* ---- each kind ---- */

Test(mem, shared_memory_is_taken_away_at_a_clean_end)
{
    struct place place;
    place_of_shm(&place);
    struct ntbm_mem mem = opened(&place, "", NTBM_LANDING);
    ntbm_mem_remove(&mem);
    cr_assert_eq(access(place.path, F_OK), -1);
}

/* An owner after the other, in a process of its own, as fast as they can. */
static _Noreturn void own_and_leave(const struct place *place, unsigned times)
{
    while (times) {
        struct ntbm_mem mem;
        struct ut_err err = {""};
        if (open_part(place, "", NTBM_LANDING, &mem, &err))
            continue;
        ntbm_mem_remove(&mem);
        times--;
    }
    _exit(0);
}

Test(mem, who_opens_shared_memory_while_its_owner_ends_has_what_its_name_leads_to)
{
    enum { TIMES = 3000 };
    struct place place;
    place_of_shm(&place);
    pid_t other = fork();
    cr_assert_geq(other, 0);
    if (!other)
        own_and_leave(&place, TIMES);
    for (unsigned times = 0; times < TIMES;) {
        struct ntbm_mem mem;
        struct ut_err err = {""};
        struct stat named, ours;
        if (open_part(&place, "", NTBM_LANDING, &mem, &err))
            continue;
        cr_assert_eq(fstat(mem.fd, &ours), 0);
        cr_assert_eq(stat(place.path, &named), 0);
        cr_assert_eq(named.st_ino, ours.st_ino);
        ntbm_mem_remove(&mem);
        times++;
    }
    int status;
    cr_assert_eq(waitpid(other, &status, 0), other);
    cr_assert_eq(status, 0);
}

Test(mem, shared_memory_that_has_no_room_leaves_nothing_behind)
{
    struct place place;
    struct ntbm_mem mem;
    struct ut_err err;
    place_of_shm(&place);
    cr_assert_lt(open_part(&place, "+0:1000T", NTBM_LANDING, &mem, &err), 0);
    cr_assert_eq(access(place.path, F_OK), -1);
}

Test(mem, shared_memory_gets_the_length_of_its_new_owner)
{
    struct place place;
    place_of_shm(&place);
    struct ntbm_mem mem = opened(&place, "+0:128K", NTBM_LANDING);
    ntbm_mem_close(&mem);
    mem = opened(&place, "", NTBM_LANDING);
    struct ntbm_mem window = opened(&place, "", NTBM_WINDOW);
    cr_assert_eq(window.bytes, 64 * KIB);
    ntbm_mem_close(&window);
    ntbm_mem_remove(&mem);
}

Test(mem, a_file_stays_and_keeps_its_length)
{
    struct place place;
    place_of_file(&place);
    struct ntbm_mem mem = opened(&place, "+0:32K", NTBM_LANDING);
    ntbm_mem_remove(&mem);
    refused(&place, "+0:64K", NTBM_LANDING, -EINVAL, "holds 32768 bytes, 65536 are needed");
    cr_assert_eq(unlink(place.path), 0);
}

Test(mem, a_file_is_not_followed_to_elsewhere)
{
    struct place place;
    place_of_file(&place);
    cr_assert_eq(symlink("/etc/hostname", place.path), 0);
    refused(&place, "", NTBM_LANDING, -ELOOP, place.path);
    unlink(place.path);
}

static void write_text(const char *dir, const char *file, const char *text)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", dir, file);
    FILE *to = fopen(path, "w");
    cr_assert_not_null(to);
    fputs(text, to);
    fclose(to);
}

static void remove_text(const char *dir, const char *file)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", dir, file);
    unlink(path);
}

Test(mem, a_dax_device_says_its_size_and_alignment_in_sysfs)
{
    char dir[] = "/tmp/fabricfs-dax-XXXXXX";
    uint64_t bytes = 1, align_bytes = 1;
    cr_assert_not_null(mkdtemp(dir));
    cr_assert_eq(ntbm_dax_limits(dir, &bytes, &align_bytes), -ENOENT);
    write_text(dir, "size", "2147483648\n");
    write_text(dir, "align", "3\n");
    cr_assert_eq(ntbm_dax_limits(dir, &bytes, &align_bytes), -EINVAL);
    cr_assert_eq(bytes, 1);
    write_text(dir, "align", "2097152\n");
    cr_assert_eq(ntbm_dax_limits(dir, &bytes, &align_bytes), 0);
    cr_assert_eq(bytes, 2147483648);
    cr_assert_eq(align_bytes, 2097152);
    remove_text(dir, "size");
    remove_text(dir, "align");
    cr_assert_eq(rmdir(dir), 0);
}

Test(mem, something_that_is_no_device_is_no_dax_memory)
{
    struct ntbm_uri uri;
    struct ntbm_mem mem;
    struct ut_err err = {""};
    cr_assert_eq(ntbm_uri_parse("dax:/dev/null", &uri, &err), 0);
    cr_assert_lt(ntbm_mem_open(&uri, NTBM_WINDOW, 0, &mem, &err), 0);
    cr_assert_neq(err.text[0], '\0');
}
