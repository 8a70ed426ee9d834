/* Pools and buffers, each test over both kinds of pool: a detached tmpfs (where we may mount) and memfds. */
#include "ntbmem/ntbm_buf.h"
#include "ntbmem/ntbm_guard.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define KIB 1024ull
#define MIB (1024 * KIB)

typedef int create_fn(const struct ntbm_pool_attr *attr, struct ntbm_pool **out);

struct kind {
    const char *name;
    create_fn *create;
};

static const struct kind kinds[] = {{"best", ntbm_pool_create}, {"memfd", ntbm_pool_create_memfd}};

/* Each test body runs once for each kind of pool, with the pool's quota given. */
#define POOL_TEST(name, quota)                       \
    static void name##_body(struct ntbm_pool *pool); \
    Test(buf, name)                                  \
    {                                                \
        over_both_kinds(quota, name##_body);         \
    }                                                \
    static void name##_body(struct ntbm_pool *pool)

static void over_both_kinds(uint64_t quota_bytes, void (*body)(struct ntbm_pool *pool))
{
    cr_assert_eq(ntbm_guard_init(), 0);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct ntbm_pool *pool;
        cr_assert_eq(kinds[i].create(&(struct ntbm_pool_attr){.quota_bytes = quota_bytes}, &pool), 0,
                     "pool kind %s", kinds[i].name);
        body(pool);
        ntbm_pool_put(pool);
    }
}

/* A buffer must not move, so each test declares its own and makes it here. */
static void make(struct ntbm_pool *pool, struct ntbm_buf *buf, uint64_t bytes)
{
    cr_assert_eq(ntbm_buf_create(pool, buf), 0);
    cr_assert_eq(ntbm_buf_resize(buf, bytes), 0);
}

/* The daemon's mapping of as much as the tests use. */
static char *map_of(struct ntbm_buf *buf)
{
    void *map;
    cr_assert_eq(ntbm_buf_map(buf, 4 * MIB, &map), 0);
    return map;
}

static uint64_t allocated_bytes(const struct ntbm_buf *buf)
{
    struct stat st;
    cr_assert_eq(fstat(buf->fd, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

Test(buf, root_gets_a_tmpfs_pool_and_a_memfd_pool_says_so)
{
    struct ntbm_pool *pool;
    cr_assert_eq(ntbm_pool_create_memfd(&(struct ntbm_pool_attr){.quota_bytes = MIB}, &pool), 0);
    cr_assert_not(ntbm_pool_is_tmpfs(pool));
    ntbm_pool_put(pool);
    cr_assert_eq(ntbm_pool_create(&(struct ntbm_pool_attr){.quota_bytes = MIB}, &pool), 0);
    if (geteuid() == 0)
        cr_assert(ntbm_pool_is_tmpfs(pool));
    ntbm_pool_put(pool);
}

Test(buf, a_pool_without_quota_or_with_an_absurd_one_is_refused)
{
    struct ntbm_pool *pool = NULL;
    cr_assert_eq(ntbm_pool_create(&(struct ntbm_pool_attr){.quota_bytes = 0}, &pool), -EINVAL);
    cr_assert_eq(ntbm_pool_create(&(struct ntbm_pool_attr){.quota_bytes = UINT64_MAX}, &pool), -EINVAL);
    cr_assert_null(pool);
}

Test(buf, a_policy_the_kernel_does_not_know_is_refused)
{
    struct ntbm_pool *pool = NULL;
    struct ntbm_pool_attr attr = {.quota_bytes = MIB, .huge = "nonsense"};
    if (geteuid() == 0)
        cr_assert_eq(ntbm_pool_create(&attr, &pool), -EINVAL);
    cr_assert_null(pool);
}

Test(buf, a_numa_policy_is_taken)
{
    struct ntbm_pool *pool;
    struct ntbm_pool_attr attr = {.quota_bytes = MIB, .mpol = "local"};
    cr_assert_eq(ntbm_pool_create(&attr, &pool), 0);
    ntbm_pool_put(pool);
}

POOL_TEST(the_quota_is_rounded_up_to_pages, 5000)
{
    cr_assert_eq(ntbm_pool_quota_bytes(pool), 8192);
}

POOL_TEST(a_new_buffer_is_empty, MIB)
{
    struct ntbm_buf buf;
    cr_assert_eq(ntbm_buf_create(pool, &buf), 0);
    cr_assert_eq(ntbm_buf_bytes(&buf), 0);
    cr_assert(ntbm_buf_is_reserved(&buf));
    cr_assert_eq(ntbm_buf_reserve(&buf), 0);
    ntbm_buf_fini(&buf);
    cr_assert_eq(buf.fd, -1);
}

POOL_TEST(stores_through_another_mapping_of_the_file_are_seen, MIB)
{
    struct ntbm_buf buf;
    make(pool, &buf, 8192);
    char *client = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, buf.fd, 0);
    client[5000] = 'x';
    cr_assert_eq(map_of(&buf)[5000], 'x');
    map_of(&buf)[1] = 'y';
    cr_assert_eq(client[1], 'y');
    munmap(client, 8192);
    ntbm_buf_fini(&buf);
}

POOL_TEST(resizing_keeps_the_mapping_and_the_bytes_that_stay, MIB)
{
    struct ntbm_buf buf;
    make(pool, &buf, 4096);
    char *map = map_of(&buf);
    map[10] = 'a';
    cr_assert_eq(ntbm_buf_resize(&buf, 512 * KIB), 0);
    cr_assert_eq(map_of(&buf), map);
    cr_assert_eq(map[10], 'a');
    map[512 * KIB - 1] = 'b';
    cr_assert_eq(ntbm_buf_resize(&buf, 11), 0);
    cr_assert_eq(map[10], 'a');
    ntbm_buf_fini(&buf);
}

POOL_TEST(a_longer_buffer_gets_a_mapping_beside_those_it_had, 64 * MIB)
{
    struct ntbm_buf buf;
    void *small, *again, *large;
    make(pool, &buf, 5 * MIB);
    cr_assert_eq(ntbm_buf_map(&buf, MIB, &small), 0);
    cr_assert_eq(ntbm_buf_map(&buf, 5 * MIB, &large), 0);
    cr_assert_eq(ntbm_buf_map(&buf, 1, &again), 0);
    cr_assert_eq(small, again);
    ((char *)small)[10] = 'a';
    cr_assert_eq(((char *)large)[10], 'a');
    ((char *)large)[5 * MIB - 1] = 'b';
    cr_assert_eq(ntbm_buf_map(&buf, UINT64_MAX, &again), -ENOMEM);
    cr_assert_eq(again, small);
    ntbm_buf_fini(&buf);
}

POOL_TEST(a_thousand_buffers_of_a_huge_pool_fit_into_the_address_space, UINT64_C(1) << 42)
{
    static struct ntbm_buf bufs[1000];
    void *map;
    for (int i = 0; i < 1000; i++) {
        make(pool, &bufs[i], 4096);
        cr_assert_eq(ntbm_buf_map(&bufs[i], 4096, &map), 0, "buffer %d", i);
    }
    for (int i = 0; i < 1000; i++)
        ntbm_buf_fini(&bufs[i]);
}

POOL_TEST(setting_the_length_allocates_nothing, 64 * MIB)
{
    struct ntbm_buf buf;
    make(pool, &buf, 64 * MIB);
    cr_assert_eq(allocated_bytes(&buf), 0);
    cr_assert_not(ntbm_buf_is_reserved(&buf));
    ntbm_buf_fini(&buf);
}

POOL_TEST(the_sum_of_lengths_never_exceeds_the_quota, MIB)
{
    struct ntbm_buf one, two;
    make(pool, &one, 600 * KIB);
    make(pool, &two, 400 * KIB);
    cr_assert_eq(ntbm_buf_resize(&two, 425 * KIB), -ENOSPC);
    cr_assert_eq(ntbm_buf_bytes(&two), 400 * KIB);
    cr_assert_eq(ntbm_buf_resize(&two, 424 * KIB), 0);
    cr_assert_eq(ntbm_pool_used_bytes(pool), MIB);
    cr_assert_eq(ntbm_buf_resize(&one, 0), 0);
    cr_assert_eq(ntbm_buf_resize(&two, MIB), 0);
    ntbm_buf_fini(&two);
    cr_assert_eq(ntbm_buf_resize(&one, MIB), 0);
    ntbm_buf_fini(&one);
}

POOL_TEST(lengths_count_in_whole_pages, 8192)
{
    struct ntbm_buf one, two, three;
    make(pool, &one, 1);
    make(pool, &two, 1);
    cr_assert_eq(ntbm_buf_create(pool, &three), 0);
    cr_assert_eq(ntbm_buf_resize(&three, 1), -ENOSPC);
    cr_assert_eq(ntbm_pool_used_bytes(pool), 8192);
    ntbm_buf_fini(&one);
    ntbm_buf_fini(&two);
    ntbm_buf_fini(&three);
}

POOL_TEST(a_length_beyond_counting_is_no_space, MIB)
{
    struct ntbm_buf buf;
    cr_assert_eq(ntbm_buf_create(pool, &buf), 0);
    cr_assert_eq(ntbm_buf_resize(&buf, UINT64_MAX), -ENOSPC);
    cr_assert_eq(ntbm_buf_resize(&buf, MIB + 1), -ENOSPC);
    cr_assert_eq(ntbm_buf_bytes(&buf), 0);
    ntbm_buf_fini(&buf);
}

POOL_TEST(reserving_allocates_every_page_and_keeps_the_bytes, 4 * MIB)
{
    struct ntbm_buf buf;
    make(pool, &buf, 2 * MIB + 100);
    map_of(&buf)[MIB] = 7;
    cr_assert_eq(ntbm_buf_reserve(&buf), 0);
    cr_assert(ntbm_buf_is_reserved(&buf));
    cr_assert_geq(allocated_bytes(&buf), 2 * MIB + 4096);
    cr_assert_eq(map_of(&buf)[MIB], 7);
    cr_assert_eq(ntbm_buf_bytes(&buf), 2 * MIB + 100);
    ntbm_buf_fini(&buf);
}

POOL_TEST(a_reserved_buffer_has_all_its_pages_in_the_page_tables, 4 * MIB)
{
    struct ntbm_buf buf;
    unsigned char present[256];
    void *map;
    make(pool, &buf, MIB);
    cr_assert_eq(ntbm_buf_reserve(&buf), 0);
    cr_assert_eq(ntbm_buf_map(&buf, MIB, &map), 0);
    cr_assert_eq(mincore(map, MIB, present), 0);
    for (int i = 0; i < 256; i++)
        cr_assert(present[i] & 1);
    ntbm_buf_fini(&buf);
}

POOL_TEST(a_stopped_pool_reserves_no_more, 4 * MIB)
{
    struct ntbm_buf buf;
    make(pool, &buf, MIB);
    ntbm_pool_stop(pool);
    cr_assert_eq(ntbm_buf_reserve(&buf), -ESHUTDOWN);
    cr_assert_eq(ntbm_buf_bytes(&buf), MIB);
    ntbm_buf_fini(&buf);
}

POOL_TEST(a_punched_hole_is_noticed_and_reserved_again, 4 * MIB)
{
    struct ntbm_buf buf;
    make(pool, &buf, MIB);
    cr_assert_eq(ntbm_buf_reserve(&buf), 0);
    cr_assert_eq(fallocate(buf.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 65536), 0);
    cr_assert_not(ntbm_buf_is_reserved(&buf));
    cr_assert_eq(ntbm_buf_reserve(&buf), 0);
    cr_assert(ntbm_buf_is_reserved(&buf));
    ntbm_buf_fini(&buf);
}

POOL_TEST(a_client_that_writes_far_behind_the_end_breaks_only_its_own_reserve, MIB)
{
    struct ntbm_buf buf, other;
    make(pool, &buf, 4096);
    make(pool, &other, 4096);
    cr_assert_eq(pwrite(buf.fd, "x", 1, 1ll << 40), 1);
    cr_assert_eq(ntbm_buf_bytes(&buf), (1ll << 40) + 1);
    cr_assert_not(ntbm_buf_is_reserved(&buf));
    cr_assert_eq(ntbm_buf_reserve(&buf), -ENOSPC);
    cr_assert_eq(ntbm_buf_reserve(&other), 0);
    cr_assert_eq(ntbm_buf_resize(&other, 8192), -ENOSPC);
    cr_assert_eq(ntbm_buf_resize(&buf, 4096), 0);
    cr_assert_eq(ntbm_buf_resize(&other, 8192), 0);
    ntbm_buf_fini(&buf);
    ntbm_buf_fini(&other);
}

POOL_TEST(a_quota_can_be_set_anew_down_to_what_is_allocated, 4 * MIB)
{
    struct ntbm_buf buf;
    make(pool, &buf, MIB);
    cr_assert_eq(ntbm_buf_reserve(&buf), 0);
    cr_assert_eq(ntbm_pool_held_bytes(pool), MIB);
    cr_assert_eq(ntbm_pool_set_quota(pool, MIB - 4096), -EINVAL);
    cr_assert_eq(ntbm_pool_set_quota(pool, 0), -EINVAL);
    cr_assert_eq(ntbm_pool_set_quota(pool, UINT64_MAX), -EINVAL);
    cr_assert_eq(ntbm_pool_quota_bytes(pool), 4 * MIB);
    cr_assert_eq(ntbm_pool_set_quota(pool, MIB - 1), 0);
    cr_assert_eq(ntbm_pool_quota_bytes(pool), MIB);
    cr_assert_eq(ntbm_buf_resize(&buf, MIB + 1), -ENOSPC);
    cr_assert_eq(ntbm_pool_set_quota(pool, 2 * MIB), 0);
    cr_assert_eq(ntbm_buf_resize(&buf, 2 * MIB), 0);
    cr_assert_eq(ntbm_buf_reserve(&buf), 0);
    ntbm_buf_fini(&buf);
    cr_assert_eq(ntbm_pool_held_bytes(pool), 0);
}

Test(buf, pages_that_a_client_maps_are_held_after_the_buffer_has_gone)
{
    struct ntbm_pool *pool;
    struct ntbm_buf buf;
    cr_assert_eq(ntbm_pool_create(&(struct ntbm_pool_attr){.quota_bytes = MIB}, &pool), 0);
    make(pool, &buf, 8192);
    char *client = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, buf.fd, 0);
    client[0] = 'x';
    ntbm_buf_fini(&buf);
    cr_assert_eq(ntbm_pool_used_bytes(pool), 0);
    if (ntbm_pool_is_tmpfs(pool))
        cr_assert_eq(ntbm_pool_held_bytes(pool), 4096);
    munmap(client, 8192);
    cr_assert_eq(ntbm_pool_held_bytes(pool), 0);
    ntbm_pool_put(pool);
}

Test(buf, the_kernel_gives_out_no_page_above_the_quota_of_a_tmpfs_pool)
{
    struct ntbm_pool *pool;
    struct ntbm_buf buf;
    char block[4096] = {0};
    cr_assert_eq(ntbm_pool_create(&(struct ntbm_pool_attr){.quota_bytes = 16384}, &pool), 0);
    cr_assert_eq(ntbm_buf_create(pool, &buf), 0);
    for (int i = 0; ntbm_pool_is_tmpfs(pool) && i < 4; i++)
        cr_assert_eq(pwrite(buf.fd, block, sizeof(block), i * 4096), 4096);
    if (ntbm_pool_is_tmpfs(pool)) {
        cr_assert_eq(pwrite(buf.fd, block, sizeof(block), 16384), -1);
        cr_assert_eq(errno, ENOSPC);
    }
    ntbm_buf_fini(&buf);
    ntbm_pool_put(pool);
}

static void read_first(void *arg)
{
    (void)*(volatile char *)arg;
}

POOL_TEST(access_behind_the_end_faults_and_comes_back_when_it_grows, MIB)
{
    struct ntbm_buf buf;
    make(pool, &buf, 4096);
    char *second = map_of(&buf) + 4096;
    cr_assert_eq(ntbm_guard_run(read_first, second), -EFAULT);
    cr_assert_eq(ntbm_buf_resize(&buf, 8192), 0);
    cr_assert_eq(ntbm_guard_run(read_first, second), 0);
    cr_assert_eq(ntbm_buf_resize(&buf, 4096), 0);
    cr_assert_eq(ntbm_guard_run(read_first, second), -EFAULT);
    ntbm_buf_fini(&buf);
}

Test(buf, a_pool_lives_as_long_as_its_last_buffer)
{
    cr_assert_eq(ntbm_guard_init(), 0);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct ntbm_pool *pool;
        struct ntbm_buf buf;
        cr_assert_eq(kinds[i].create(&(struct ntbm_pool_attr){.quota_bytes = MIB}, &pool), 0);
        make(pool, &buf, 4096);
        ntbm_pool_put(pool);
        cr_assert_eq(ntbm_buf_resize(&buf, 8192), 0);
        cr_assert_eq(ntbm_pool_used_bytes(buf.pool), 8192);
        ntbm_buf_fini(&buf);
    }
}

struct disturber {
    struct ntbm_buf *buf;
    atomic_bool stop;
};

static void *shrink_and_grow(void *arg)
{
    struct disturber *self = arg;
    while (!atomic_load(&self->stop)) {
        ntbm_buf_resize(self->buf, 4096);
        ntbm_buf_resize(self->buf, MIB);
    }
    return NULL;
}

static void *punch(void *arg)
{
    struct disturber *self = arg;
    while (!atomic_load(&self->stop))
        fallocate(self->buf->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, MIB);
    return NULL;
}

static void reserve_under(struct ntbm_pool *pool, void *(*disturb)(void *), int rounds)
{
    struct ntbm_buf buf;
    struct disturber disturber = {.buf = &buf};
    pthread_t thread;
    make(pool, &buf, MIB);
    cr_assert_eq(pthread_create(&thread, NULL, disturb, &disturber), 0);
    for (int i = 0; i < rounds; i++) {
        int rc = ntbm_buf_reserve(&buf);
        cr_assert(rc == 0 || rc == -EFAULT || rc == -ENOSPC, "reserve gave %d", rc);
    }
    atomic_store(&disturber.stop, true);
    pthread_join(thread, NULL);
    cr_assert_eq(ntbm_buf_resize(&buf, MIB), 0);
    cr_assert_eq(ntbm_buf_reserve(&buf), 0);
    ntbm_buf_fini(&buf);
}

POOL_TEST(reserving_survives_a_file_that_shrinks_meanwhile, MIB)
{
    reserve_under(pool, shrink_and_grow, 300);
}

POOL_TEST(reserving_survives_holes_punched_meanwhile, MIB)
{
    reserve_under(pool, punch, 300);
}
