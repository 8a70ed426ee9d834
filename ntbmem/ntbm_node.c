#include "ntbmem/ntbm_node.h"

#include "ntbmem/ntbm_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* The kernel's boot id, "xxxxxxxx-xxxx-...", as 16 bytes. */
static int read_boot_id(uint8_t out[16])
{
    char text[64] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t len = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (len < 0)
        return -errno;
    unsigned at = 0, byte;
    for (const char *hex = text; at < 16; hex += 2) {
        hex += *hex == '-';
        if (sscanf(hex, "%2x", &byte) != 1)
            return -EIO;
        out[at++] = (uint8_t)byte;
    }
    return 0;
}

int ntbm_node_identify(struct ntbm_node_attr *attr, char host_buf[32])
{
    int rc = read_boot_id(attr->boot_id);
    if (rc)
        return rc;
    if (getrandom(&attr->incarnation, sizeof(attr->incarnation), 0) != sizeof(attr->incarnation))
        return -EIO;
    attr->incarnation |= 1;
    attr->pid = (uint32_t)getpid();
    if (gethostname(host_buf, 32) < 0 && errno != ENAMETOOLONG)
        return -errno;
    host_buf[31] = '\0';
    attr->host = host_buf;
    return 0;
}

static void write_header(struct ntbm_node *node)
{
    struct ntbm_header header = {
        .ident = node->self.ident, .landing_bytes = node->landing_bytes, .beat = ++node->beat};
    ntbm_copy_to_shared(node->self.landing, &header, sizeof(header));
}

/* What an earlier daemon's peers left there was not meant for us. */
static void clear_areas(struct ntbm_node *node)
{
    const struct ntbm_ident *ident = &node->self.ident;
    for (uint32_t i = 0; i + 1 < ident->node_count; i++)
        ntbm_clear_shared(node->self.landing + NTBM_HEADER_BYTES + (uint64_t)i * ident->geometry.area_bytes,
                          ntbm_slot_offset(&ident->geometry, 0));
}

static struct ntbm_ident ident_of(const struct ntbm_node_attr *attr, const struct ntbm_geometry *geo)
{
    struct ntbm_ident ident = {
        .magic = NTBM_MAGIC,
        .version = NTBM_VERSION,
        .bytes = sizeof(ident),
        .node = attr->node,
        .node_count = attr->node_count,
        .geometry = *geo,
        .incarnation = attr->incarnation,
        .pid = attr->pid,
    };
    strncpy(ident.fabric, attr->fabric, sizeof(ident.fabric) - 1);
    strncpy(ident.host, attr->host, sizeof(ident.host) - 1);
    memcpy(ident.boot_id, attr->boot_id, sizeof(ident.boot_id));
    return ident;
}

int ntbm_node_init(struct ntbm_node *node, const struct ntbm_node_attr *attr, struct ut_err *err)
{
    struct ntbm_geometry geo;
    int rc = ntbm_landing_cut(attr->landing_bytes, attr->node_count, &geo, err);
    if (rc)
        return rc;
    if (attr->node >= attr->node_count)
        return ut_err_set(err, -EINVAL, "node %u is not one of %u: they count from 0", attr->node,
                          attr->node_count);
    if (!*attr->fabric || strlen(attr->fabric) > 31)
        return ut_err_set(err, -EINVAL, "the name of a fabric has 1 to 31 bytes, not \"%.40s\"",
                          attr->fabric);
    struct ntbm_peer **peers = calloc(attr->node_count, sizeof(*peers));
    if (!peers)
        return -ENOMEM;
    *node = (struct ntbm_node){.landing_bytes = attr->landing_bytes, .peers = peers};
    node->self = (struct ntbm_self){.ident = ident_of(attr, &geo),
                                    .landing = attr->landing,
                                    .limit_ns = attr->limit_ns ? attr->limit_ns : NTBM_LIMIT_NS,
                                    .random = attr->incarnation};
    clear_areas(node);
    write_header(node);
    return 0;
}

int ntbm_node_add(struct ntbm_node *node, uint32_t peer_node, struct ntbm_link *link,
                  const struct ntbm_peer_ops *ops, void *ctx, struct ntbm_peer **out)
{
    if (peer_node >= node->self.ident.node_count || peer_node == node->self.ident.node)
        return -EINVAL;
    if (node->peers[peer_node])
        return -EEXIST;
    struct ntbm_peer *peer = malloc(sizeof(*peer));
    if (!peer)
        return -ENOMEM;
    ntbm_peer_init(peer, &node->self, peer_node, link, ops, ctx);
    node->peers[peer_node] = peer;
    *out = peer;
    return 0;
}

bool ntbm_node_poll(struct ntbm_node *node, uint64_t now_ns)
{
    bool moved = false;
    if (now_ns >= node->beat_due_ns) {
        /* All of it each time: whoever wrote garbage over it would otherwise keep peers away for ever. */
        write_header(node);
        node->beat_due_ns = now_ns + node->self.limit_ns / 10;
    }
    for (uint32_t i = 0; i < node->self.ident.node_count; i++)
        if (node->peers[i])
            moved |= ntbm_peer_poll(node->peers[i], now_ns);
    return moved;
}

void ntbm_node_renew(struct ntbm_node *node, const char *reason)
{
    for (uint32_t i = 0; i < node->self.ident.node_count; i++)
        if (node->peers[i])
            ntbm_peer_close(node->peers[i], reason);
    clear_areas(node);
    write_header(node);
}

void ntbm_node_fini(struct ntbm_node *node)
{
    for (uint32_t i = 0; i < node->self.ident.node_count; i++) {
        if (!node->peers[i])
            continue;
        ntbm_peer_fini(node->peers[i]);
        free(node->peers[i]);
    }
    free(node->peers);
    ntbm_clear_shared(node->self.landing, sizeof(struct ntbm_header));
}
