/*
 * A mounted fabric as its files tell: nodes, links, jobs, ranks, findings. What status, top and report show.
 *
 * `metrics` has the figures of every job, also of those that this user may not enter; stats and members of a
 * job add what it lacks. A figure that is not known is -1, a text "". Nothing in the files is trusted:
 * numbers that are none are not known, names and lists are cut to their size.
 */
#ifndef CTL_FABRIC_H
#define CTL_FABRIC_H

#include "utils/ctl_reader.h"

#define CTL_FABRIC_WORLD_MAX 1024u
#define CTL_FABRIC_BUCKETS 64u

/* Durations of one kind, microseconds. */
struct ctl_spread {
    double p50, p90, p99, p999, max, sum, count;
};

/* How many durations, ever, were at most so long. */
struct ctl_bucket {
    double until_us, count;
};

struct ctl_fabric_rank {
    double node, pid, last; /* last: number of its last operation */
    char state[16];         /* absent joined present lost dropped */
    bool suspect;
    double arrived_last;             /* operations in which it came last */
    double late_sum_us, late_max_us; /* after the first rank */
};

struct ctl_fabric_job {
    char name[65];
    bool open;    /* its stats and members could be read */
    double world; /* also the length of ranks, 0 when not known */
    double in;    /* ranks that are joined or present, on all nodes */
    double lost, ops, failed, refused, bytes, memory_used;
    double waiting;   /* ranks that ask now */
    char missing[64]; /* those they wait for: "1,3" */
    double algbw_gbps, busbw_gbps;
    double phase_wait_us, phase_local_us, phase_ring_us, phase_copy_us;
    char last_failure[512];
    struct ctl_spread latency, wait, work;         /* write to answer; first rank to last; last rank to end */
    struct ctl_bucket buckets[CTL_FABRIC_BUCKETS]; /* of latency, ascending */
    size_t bucket_count;
    struct ctl_fabric_rank *ranks; /* [world] */
};

struct ctl_fabric_node {
    double number;
    char state[16]; /* self absent greeting up suspect down */
    char why[256], host[65], memory[64], window[256];
    char device[16], hardware[16], bottleneck[160], suspect_why[256];
    double gbytes_s, possible_gbytes_s, data_gbytes_s; /* of the path; 10^9 bytes a second */
    double errors;                                     /* AER, all kinds */
    double degraded, suspect;                          /* 1 or 0 */
    double put_bytes, sessions;
};

/* A line of health. */
struct ctl_fabric_finding {
    char severity[8]; /* warn error */
    char object[80];  /* "nodes/1", "jobs/J", "memory" */
    char fact[512], next[256];
};

struct ctl_fabric {
    struct ctl_files files; /* what all this was read from */
    char name[65], version[32], buffer_mode[16], kernel[16];
    double node, pid, uptime_s, memory_used, memory_limit;
    struct ctl_fabric_node *nodes; /* by number */
    size_t node_count;
    struct ctl_fabric_job *jobs; /* by name */
    size_t job_count;
    struct ctl_fabric_finding *findings;
    size_t finding_count;
};

/* Makes the model of files, which it takes. 0 or -ENOMEM; in both cases files is empty then. */
int ctl_fabric_build(struct ctl_files *files, struct ctl_fabric *fabric);

/* Reads and builds, blocking until the deadline of want at most. 0, or -errno with the reason in err. */
int ctl_fabric_load(const struct ctl_want *want, struct ctl_fabric *fabric, struct ut_err *err);

/* Frees it and leaves it empty. */
void ctl_fabric_fini(struct ctl_fabric *fabric);

/* The job of that name, or NULL. */
struct ctl_fabric_job *ctl_fabric_find_job(const struct ctl_fabric *fabric, const char *name);

/* The node of that number, or NULL. */
struct ctl_fabric_node *ctl_fabric_find_node(const struct ctl_fabric *fabric, double number);

/* Whether it is this node, or one that can be reached. */
bool ctl_fabric_is_up(const struct ctl_fabric_node *node);

/* What there is to say of it in a few words: what is wrong, else what memory it is reached by. The node's. */
const char *ctl_fabric_about(const struct ctl_fabric_node *node);

/* The rank that has kept the others waiting for longest, all operations together; -1 when none has. */
int ctl_fabric_slowest(const struct ctl_fabric_job *job);

/* How often any rank came last: the operations that lateness is counted over. */
double ctl_fabric_arrivals(const struct ctl_fabric_job *job);

/* How long after the first rank this one comes on the mean, microseconds; -1 when it is not known. */
double ctl_fabric_late_us(const struct ctl_fabric_job *job, const struct ctl_fabric_rank *rank);

/* Puts the figures of the file `metrics` in, of nodes and jobs that are there already. */
void ctl_fabric_take_metrics(struct ctl_fabric *fabric, const char *text);

#endif
