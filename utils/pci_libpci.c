#include "utils/pci_libpci.h"

#include <errno.h>
#include <pci/pci.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ut_pci_lib {
    struct pci_access *access;
    bool usable; /* pci_init went through */
    char error[160];
};

/* libpci hands its error handler no context, so the way back lies in the thread that made the call. */
static __thread struct {
    sigjmp_buf back;
    struct ut_pci_lib *lib;
} call;

static void keep_text(struct ut_pci_lib *lib, const char *fmt, va_list args)
    __attribute__((format(printf, 2, 0)));
static void keep_text(struct ut_pci_lib *lib, const char *fmt, va_list args)
{
    vsnprintf(lib->error, sizeof lib->error, fmt, args);
    for (char *p = lib->error; *p; p++)
        if (*p < ' ')
            *p = ' ';
}

static void on_error(char *msg, ...) __attribute__((format(printf, 1, 2), noreturn));
static void on_error(char *msg, ...)
{
    va_list args;
    va_start(args, msg);
    keep_text(call.lib, msg, args);
    va_end(args);
    siglongjmp(call.back, 1);
}

static void on_warning(char *msg, ...) __attribute__((format(printf, 1, 2)));
static void on_warning(char *msg, ...)
{
    va_list args;
    va_start(args, msg);
    keep_text(call.lib, msg, args);
    va_end(args);
}

static void on_debug(char *msg, ...) __attribute__((format(printf, 1, 2)));
static void on_debug(char *msg, ...)
{
    (void)msg;
}

/* Runs fn(lib, arg) with a way back. 0, or -EIO when libpci raised an error in it. */
static int contained(struct ut_pci_lib *lib, void (*fn)(struct ut_pci_lib *lib, void *arg), void *arg)
{
    call.lib = lib;
    if (sigsetjmp(call.back, 0))
        return -EIO;
    fn(lib, arg);
    return 0;
}

static void init(struct ut_pci_lib *lib, void *arg)
{
    (void)arg;
    pci_init(lib->access);
    lib->usable = true;
}

int ut_pci_lib_open_names(struct ut_pci_lib **out)
{
    struct ut_pci_lib *lib = calloc(1, sizeof *lib);
    struct pci_access *access = lib ? pci_alloc() : NULL;
    if (!access) {
        free(lib);
        return -ENOMEM;
    }
    access->error = on_error;
    access->warning = on_warning;
    access->debug = on_debug;
    lib->access = access;
    *out = lib;
    return 0;
}

int ut_pci_lib_open_at(const char *dir, struct ut_pci_lib **out)
{
    int rc = ut_pci_lib_open_names(out);
    if (rc)
        return rc;
    struct pci_access *access = (*out)->access;
    access->method = PCI_ACCESS_SYS_BUS_PCI; /* the others reach for I/O ports */
    rc = dir ? pci_set_param(access, (char *)"sysfs.path", (char *)dir) : 0;
    return rc ? -ENOMEM : contained(*out, init, NULL);
}

int ut_pci_lib_open(struct ut_pci_lib **out)
{
    return ut_pci_lib_open_at(NULL, out);
}

static void cleanup(struct ut_pci_lib *lib, void *arg)
{
    (void)arg;
    pci_cleanup(lib->access);
}

void ut_pci_lib_close(struct ut_pci_lib *lib)
{
    if (!lib)
        return;
    contained(lib, cleanup, NULL);
    free(lib);
}

struct config_read {
    struct ut_pci_addr addr;
    struct pci_dev *dev;
    uint8_t *cfg;
    size_t size, len;
};

static void get_dev(struct ut_pci_lib *lib, void *arg)
{
    struct config_read *r = arg;
    r->dev = pci_get_dev(lib->access, (int)r->addr.domain, r->addr.bus, r->addr.dev, r->addr.fn);
}

/* In steps of what Linux gives unprivileged users, conventional space, Express space: a step that fails
 * leaves the ones before it. */
static void read_config(struct ut_pci_lib *lib, void *arg)
{
    static const size_t STEPS[] = {64, 256, 4096};
    struct config_read *r = arg;
    (void)lib;
    for (size_t i = 0; i < sizeof STEPS / sizeof STEPS[0] && STEPS[i] <= r->size; i++) {
        if (!pci_read_block(r->dev, (int)r->len, r->cfg + r->len, (int)(STEPS[i] - r->len)))
            return;
        r->len = STEPS[i];
    }
}

static void free_dev(struct ut_pci_lib *lib, void *arg)
{
    struct config_read *r = arg;
    (void)lib;
    pci_free_dev(r->dev);
}

ssize_t ut_pci_lib_config(struct ut_pci_lib *lib, struct ut_pci_addr addr, uint8_t *cfg, size_t size)
{
    struct config_read r = {.addr = addr, .cfg = cfg, .size = size};
    if (!lib->usable || contained(lib, get_dev, &r))
        return -EIO;
    int rc = contained(lib, read_config, &r);
    contained(lib, free_dev, &r);
    return rc && !r.len ? -EIO : (ssize_t)r.len;
}

struct bars_read {
    struct config_read device; /* first: get_dev and free_dev know it */
    struct ut_pci_bars bars;
};

/* Errors of libpci end it: a function without a resource file is one that has gone. */
static void read_bars(struct ut_pci_lib *lib, void *arg)
{
    struct bars_read *r = arg;
    struct pci_dev *dev = r->device.dev;
    (void)lib;
    pci_fill_info(dev, PCI_FILL_BASES | PCI_FILL_SIZES | PCI_FILL_IO_FLAGS | PCI_FILL_DRIVER);
    const char *driver = pci_get_string_property(dev, PCI_FILL_DRIVER);
    r->bars.vendor = pci_read_word(dev, PCI_VENDOR_ID);
    r->bars.command = pci_read_word(dev, PCI_COMMAND);
    snprintf(r->bars.driver, sizeof r->bars.driver, "%s", driver ? driver : "");
    for (int i = 0; i < 6; i++) {
        bool io = dev->flags[i] & UT_PCI_RES_IO;
        r->bars.bar[i].start =
            dev->base_addr[i] & (io ? PCI_BASE_ADDRESS_IO_MASK : PCI_BASE_ADDRESS_MEM_MASK);
        r->bars.bar[i].bytes = dev->size[i];
        r->bars.bar[i].flags = dev->flags[i];
        r->bars.bar[i].reg = pci_read_long(dev, PCI_BASE_ADDRESS_0 + 4 * i);
    }
}

int ut_pci_lib_bars(struct ut_pci_lib *lib, struct ut_pci_addr addr, struct ut_pci_bars *out)
{
    struct bars_read r = {.device = {.addr = addr}};
    if (!lib->usable || contained(lib, get_dev, &r))
        return -EIO;
    int rc = contained(lib, read_bars, &r);
    contained(lib, free_dev, &r);
    if (rc)
        return -ENODEV;
    *out = r.bars;
    return 0;
}

struct command_write {
    struct config_read device; /* first */
    uint16_t bits;
    int done;
};

static void write_command(struct ut_pci_lib *lib, void *arg)
{
    struct command_write *w = arg;
    struct pci_dev *dev = w->device.dev;
    (void)lib;
    w->done = pci_write_word(dev, PCI_COMMAND, (u16)(pci_read_word(dev, PCI_COMMAND) | w->bits));
}

int ut_pci_lib_command(struct ut_pci_lib *lib, struct ut_pci_addr addr, uint16_t bits)
{
    struct command_write w = {.device = {.addr = addr}, .bits = bits};
    if (!lib->usable || contained(lib, get_dev, &w))
        return -EIO;
    int rc = contained(lib, write_command, &w);
    contained(lib, free_dev, &w);
    return rc || !w.done ? -EIO : 0;
}

struct name_lookup {
    uint16_t vendor, device;
    char *out;
    size_t size;
    char *name;
};

static void look_up(struct ut_pci_lib *lib, void *arg)
{
    struct name_lookup *l = arg;
    l->name =
        pci_lookup_name(lib->access, l->out, (int)l->size,
                        PCI_LOOKUP_VENDOR | PCI_LOOKUP_DEVICE | PCI_LOOKUP_NO_NUMBERS | PCI_LOOKUP_NO_HWDB,
                        l->vendor, l->device);
}

void ut_pci_lib_name(struct ut_pci_lib *lib, uint16_t vendor, uint16_t device, char *out, size_t size)
{
    struct name_lookup l = {vendor, device, out, size, NULL};
    out[0] = '\0';
    if (contained(lib, look_up, &l) || !l.name)
        out[0] = '\0';
    else if (l.name != out)
        snprintf(out, size, "%s", l.name);
}

const char *ut_pci_lib_error(const struct ut_pci_lib *lib)
{
    return lib->error;
}
