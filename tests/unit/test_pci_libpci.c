/*
 * libpci ends the process on errors; inside our container it must not. The source is included, so that a test
 * can raise an error from within.
 */
#include <criterion/criterion.h>

#include "utils/pci_libpci.c"

static void raise_error(struct ut_pci_lib *lib, void *arg)
{
    lib->access->error((char *)"%s: device %d is no more", "test", *(int *)arg);
    cr_assert_fail("libpci's error handler came back");
}

Test(pci_libpci, an_error_in_the_library_comes_back_as_an_error_code)
{
    struct ut_pci_lib *lib;
    int number = 7;
    cr_assert_eq(ut_pci_lib_open_names(&lib), 0);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(contained(lib, raise_error, &number), -EIO);
    cr_assert_str_eq(ut_pci_lib_error(lib), "test: device 7 is no more");
    ut_pci_lib_close(lib);
}

Test(pci_libpci, a_method_the_library_does_not_have_is_no_end)
{
    struct ut_pci_lib *lib;
    cr_assert_eq(ut_pci_lib_open_names(&lib), 0);
    lib->access->method = PCI_ACCESS_MAX;
    cr_assert_eq(contained(lib, init, NULL), -EIO);
    cr_assert_not(lib->usable);
    ut_pci_lib_close(lib);
}

Test(pci_libpci, a_device_that_is_not_there_reads_nothing)
{
    struct ut_pci_lib *lib;
    uint8_t cfg[4096];
    cr_assert_eq(ut_pci_lib_open_names(&lib), 0);
    cr_assert_eq(ut_pci_lib_config(lib, (struct ut_pci_addr){0xfffe, 255, 31, 7}, cfg, sizeof cfg), -EIO);
    ut_pci_lib_close(lib);
    if (ut_pci_lib_open(&lib) == 0)
        cr_assert_leq(ut_pci_lib_config(lib, (struct ut_pci_addr){0xfffe, 255, 31, 7}, cfg, sizeof cfg), 0);
    ut_pci_lib_close(lib);
}

Test(pci_libpci, names_are_cut_to_the_buffer_and_unknown_ones_empty)
{
    struct ut_pci_lib *lib;
    char name[8];
    cr_assert_eq(ut_pci_lib_open_names(&lib), 0);
    ut_pci_lib_name(lib, 0x8086, 0x1234, name, sizeof name);
    cr_assert_lt(strlen(name), sizeof name);
    ut_pci_lib_name(lib, 0xfffe, 0xfffe, name, sizeof name);
    cr_assert_str_empty(name);
    ut_pci_lib_close(lib);
}
