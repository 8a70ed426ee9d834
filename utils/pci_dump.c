/*
 * The reader of lspci hex: a line "[DOMAIN:]BB:DD.F text" begins a function, lines "OFFSET: hh hh ..." hold
 * its bytes, anything else (the text that lspci -v prints in between) is skipped.
 *
 * libpci has such a reader too, but it loses the whole file when the last line is cut, takes the bytes of a
 * function with a domain over 16 bits for those of the one before, and cannot say what is missing. So the
 * format, which is that simple, is read here.
 */
#include "utils/pci_snap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "utils/ut_text.h"

#define MAX_FILE_BYTES (256u << 20)
#define ROW_BYTES 16

struct reader {
    struct ut_pci_snap *snap;
    struct ut_pci_fn *fn; /* whose bytes come next; NULL between functions */
    size_t line_no;
    bool has_hole;  /* a row of fn did not continue where the last one ended */
    bool has_stray; /* rows outside of any function were seen since the last one */
};

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The lengths that lspci records: without root, a CardBus header, conventional and Express space. */
static bool whole_length(size_t len)
{
    return len == 64 || len == 128 || len == 256 || len == UT_PCI_CFG_BYTES;
}

/* Closes the function that was being read and gives back the memory it did not need. */
static void end_fn(struct reader *r)
{
    struct ut_pci_fn *fn = r->fn;
    if (!fn)
        return;
    r->fn = NULL;
    if (!fn->cfg_len) {
        free(fn->cfg);
        fn->cfg = NULL;
        ut_pci_snap_gap(r->snap, UT_PCI_GAP_CUT, &fn->addr, "no bytes recorded: lspci -xxxx records them");
        return;
    }
    if (!whole_length(fn->cfg_len))
        ut_pci_snap_gap(r->snap, UT_PCI_GAP_CUT, &fn->addr, "recording ends at byte 0x%x", fn->cfg_len);
    uint8_t *cfg = realloc(fn->cfg, fn->cfg_len);
    if (cfg)
        fn->cfg = cfg;
    fn->needs_root = fn->cfg_len == 64;
}

static int begin_fn(struct reader *r, struct ut_pci_addr addr)
{
    end_fn(r);
    if (r->snap->fn_count == UT_PCI_MAX_FNS) {
        ut_pci_snap_gap(r->snap, UT_PCI_GAP_DAMAGED, &addr, "more than %u functions", UT_PCI_MAX_FNS);
        return 0;
    }
    r->fn = ut_pci_snap_add(r->snap, addr);
    if (!r->fn)
        return -ENOMEM;
    r->fn->cfg = malloc(UT_PCI_CFG_BYTES);
    r->has_hole = r->has_stray = false;
    return r->fn->cfg ? 0 : -ENOMEM;
}

/* Reads "OFFSET:" with two or three digits, as lspci writes it; -1 when the line does not begin so. */
static int row_offset(const char *line, size_t len, size_t *colon)
{
    int offset = 0;
    size_t i = 0;
    for (; i < len && i < 3 && hex_value(line[i]) >= 0; i++)
        offset = offset << 4 | hex_value(line[i]);
    if (i < 2 || i + 1 >= len || line[i] != ':' || (line[i + 1] != ' ' && line[i + 1] != '\t'))
        return -1;
    *colon = i;
    return offset;
}

/* Reads up to 16 " hh" after the colon; the count, or -1 when something else stands there. */
static int row_bytes(const char *p, size_t len, uint8_t row[ROW_BYTES])
{
    int count = 0;
    while (len && count < ROW_BYTES) {
        int high = len >= 3 && (p[0] == ' ' || p[0] == '\t') ? hex_value(p[1]) : -1,
            low = high >= 0 ? hex_value(p[2]) : -1;
        if (low < 0)
            return -1;
        row[count++] = (uint8_t)(high << 4 | low);
        p += 3;
        len -= 3;
    }
    return len ? -1 : count;
}

/* Adds one row. A row that repeats, leaves a hole or holds no bytes ends what is known of the function. */
static void add_row(struct reader *r, size_t offset, const char *rest, size_t len)
{
    uint8_t row[ROW_BYTES];
    struct ut_pci_fn *fn = r->fn;
    int count = row_bytes(rest, len, row);
    if (r->has_hole)
        return;
    if (offset != fn->cfg_len || count < 0 || offset + (size_t)count > UT_PCI_CFG_BYTES) {
        r->has_hole = true;
        ut_pci_snap_gap(r->snap, UT_PCI_GAP_DAMAGED, &fn->addr,
                        "line %zu does not continue at byte 0x%x; the rest is left out", r->line_no,
                        fn->cfg_len);
        return;
    }
    memcpy(fn->cfg + offset, row, (size_t)count);
    fn->cfg_len = (uint16_t)(offset + (size_t)count);
}

/* Bytes of no function: its first line is lost, or a blank line stands in the middle of it. */
static void note_stray(struct reader *r, const char *rest, size_t len)
{
    uint8_t row[ROW_BYTES];
    if (r->has_stray || row_bytes(rest, len, row) < 1)
        return;
    r->has_stray = true;
    ut_pci_snap_gap(r->snap, UT_PCI_GAP_DAMAGED, NULL,
                    "line %zu: bytes that belong to no function are left out", r->line_no);
}

static int read_line(struct reader *r, const char *line, size_t len)
{
    char head[UT_PCI_ADDR_CHARS] = "";
    struct ut_pci_addr addr;
    size_t colon;
    r->line_no++;
    while (len && (line[len - 1] == '\r' || line[len - 1] == ' ' || line[len - 1] == '\t'))
        len--;
    if (!len) {
        end_fn(r);
        return 0;
    }
    memcpy(head, line, len < sizeof head ? len : sizeof head - 1);
    size_t taken = ut_pci_addr_scan(head, &addr);
    if (taken && (taken == len || head[taken] == ' '))
        return begin_fn(r, addr);
    int offset = row_offset(line, len, &colon);
    if (offset >= 0 && r->fn)
        add_row(r, (size_t)offset, line + colon + 1, len - colon - 1);
    else if (offset >= 0)
        note_stray(r, line + colon + 1, len - colon - 1);
    return 0;
}

static int read_lines(struct reader *r, const char *text, size_t len)
{
    const char *end = text + len;
    if (len >= 3 && !memcmp(text, "\xef\xbb\xbf", 3))
        text += 3; /* the mark that some editors put before UTF-8 */
    while (text < end) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        int rc = read_line(r, text, (size_t)((newline ? newline : end) - text));
        if (rc)
            return rc;
        if (!newline)
            break;
        text = newline + 1;
    }
    end_fn(r);
    return 0;
}

int ut_pci_snap_dump_text(const char *text, size_t len, struct ut_pci_snap **out)
{
    struct ut_pci_snap *snap = ut_pci_snap_new(UT_PCI_DUMP);
    if (!snap)
        return -ENOMEM;
    struct reader r = {.snap = snap};
    int rc = read_lines(&r, text, len);
    if (!rc && !snap->fn_count)
        rc = -ENODATA;
    if (rc) {
        ut_pci_snap_free(snap);
        return rc;
    }
    ut_pci_snap_finish(snap);
    *out = snap;
    return 0;
}

/* Appends a whole file, which may be a pipe, to the text. 0, -ENOMEM, -EFBIG or -errno. */
static int slurp(int fd, struct ut_text *text)
{
    char piece[16384];
    ssize_t got;
    while ((got = read(fd, piece, sizeof piece)) > 0) {
        if (text->len + (size_t)got > MAX_FILE_BYTES)
            return -EFBIG;
        ut_text_add(text, piece, (size_t)got);
    }
    if (got < 0)
        return -errno;
    return ut_text_failed(text) ? -ENOMEM : 0;
}

int ut_pci_snap_dump(const char *path, struct ut_pci_snap **out)
{
    struct ut_text text = {0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int rc = slurp(fd, &text);
    close(fd);
    if (!rc)
        rc = ut_pci_snap_dump_text(text.len ? text.bytes : "", text.len, out);
    ut_text_fini(&text);
    return rc;
}
