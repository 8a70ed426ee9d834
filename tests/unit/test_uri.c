/* Memory as it is named in the configuration. */
#include "ntbmem/ntbm_mem.h"
#include "ntbmem/ntbm_uri.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

static struct ntbm_uri parsed(const char *text)
{
    struct ntbm_uri uri;
    struct ut_err err = {""};
    cr_assert_eq(ntbm_uri_parse(text, &uri, &err), 0, "%s: %s", text, err.text);
    return uri;
}

static void refused(const char *text, const char *because)
{
    struct ntbm_uri uri = {.name = "untouched"};
    struct ut_err err = {""};
    cr_assert_eq(ntbm_uri_parse(text, &uri, &err), -EINVAL, "%s", text);
    cr_assert(strstr(err.text, because), "\"%s\" is refused with: %s", text, err.text);
    cr_assert_str_eq(uri.name, "untouched");
}

Test(uri, names_kind_and_memory)
{
    struct ntbm_uri uri = parsed("shm:demo-0");
    cr_assert_eq(uri.kind, &ntbm_kind_shm);
    cr_assert_str_eq(uri.name, "demo-0");
    cr_assert_eq(uri.length_bytes, 0);
    cr_assert_eq(parsed("file:/dev/shm/x").kind, &ntbm_kind_file);
    cr_assert_eq(parsed("dax:/dev/dax0.0").kind, &ntbm_kind_dax);
    cr_assert_eq(parsed("pci:0000:05:00.0/2").kind, &ntbm_kind_pci);
    cr_assert_str_eq(parsed("pci:10000:05:00.0/2+64K:1M").name, "10000:05:00.0/2");
}

Test(uri, a_part_has_offset_and_length_with_units)
{
    struct ntbm_uri uri = parsed("dax:/dev/dax0.0+2M:1G");
    cr_assert_str_eq(uri.name, "/dev/dax0.0");
    cr_assert_eq(uri.offset_bytes, 2ull << 20);
    cr_assert_eq(uri.length_bytes, 1ull << 30);
}

Test(uri, a_plus_that_begins_no_part_belongs_to_the_name)
{
    cr_assert_str_eq(parsed("file:/tmp/a+b").name, "/tmp/a+b");
    cr_assert_str_eq(parsed("file:/tmp/c++11").name, "/tmp/c++11");
    struct ntbm_uri uri = parsed("file:/tmp/a+b+0:64K");
    cr_assert_str_eq(uri.name, "/tmp/a+b");
    cr_assert_eq(uri.length_bytes, 65536);
}

Test(uri, shows_the_text_it_was_parsed_from)
{
    const char *texts[] = {"shm:demo", "file:/tmp/a+b", "dax:/dev/dax0.0+2M:1G", "file:/x+0:65536"};
    const char *shown[] = {"shm:demo", "file:/tmp/a+b", "dax:/dev/dax0.0+2M:1G", "file:/x+0:64K"};
    for (int i = 0; i < 4; i++) {
        char text[256];
        struct ntbm_uri uri = parsed(texts[i]);
        ntbm_uri_show(&uri, text, sizeof(text));
        cr_assert_str_eq(text, shown[i]);
    }
}

Test(uri, what_is_wrong_is_said)
{
    refused("", "KIND:NAME");
    refused("demo", "KIND:NAME");
    refused("pcie:0000:05:00.0/2", "shm, file, dax and pci");
    refused("sh:demo", "shm, file, dax and pci");
    refused("pci:0000:05:00.0", "0000:05:00.0/2");
    refused("pci:0000:05:00.0/6", "0 to 5");
    refused("pci:0000:05:00.0/22", "0 to 5");
    refused("pci:0000:05:20.0/2", "0000:05:00.0/2");
    refused("pci:/2", "0000:05:00.0/2");
    refused("pci:0000:05:00.0/2+0:0", "empty");
    refused("shm:", "without slashes");
    refused("shm:a/b", "without slashes");
    refused("shm:..", "dot");
    refused("file:relative", "slash");
    refused("file:", "slash");
    refused("dax:dax0.0", "/dev/dax0.0");
    refused("dax:/dev/", "/dev/dax0.0");
    refused("shm:x+0:0", "empty");
    refused("shm:x+0:", "length");
    refused("shm:x+0q:4K", "offset");
    refused("shm:x+0:4Kx", "length");
    refused("shm:x+0:-1", "length");
    refused("shm:x+9223372036854775807:9223372036854775807", "beyond");
}

Test(uri, a_name_too_long_is_refused)
{
    char text[400] = "file:/";
    memset(text + 6, 'a', 300);
    refused(text, "longer than");
    memset(text, '1', sizeof(text) - 1);
    memcpy(text, "shm:x+", 6);
    text[398] = ':';
    refused(text, "too long");
}
