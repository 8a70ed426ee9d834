/*
 * Files of a tree that somebody else made: read by name below a directory, never outside of it, never more
 * than asked for, never waiting (a named pipe or a device in place of an attribute is refused).
 *
 * Threads: any. May block on the file system.
 */
#ifndef UT_PCI_FILE_H
#define UT_PCI_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Opens the directory at path below dir_fd, following links only while they stay below. A descriptor for the
 * functions here, or -errno. */
int ut_pci_file_dir(int dir_fd, const char *path);

/* Opens the regular file at path below dir_fd to read it. A descriptor, or -errno (-EINVAL when it is no
 * regular file). */
int ut_pci_file_open(int dir_fd, const char *path);

/* Reads an open text attribute from its beginning, as ut_pci_file_text. */
ssize_t ut_pci_file_again(int fd, char *buf, size_t size);

/* Reads up to size bytes of the regular file at path below dir_fd. The count, or -errno (-EINVAL when it is
 * no regular file). */
ssize_t ut_pci_file_read(int dir_fd, const char *path, void *buf, size_t size);

/* Reads a text attribute, at most size - 1 bytes, without the newlines at its end. The length, or -errno. */
ssize_t ut_pci_file_text(int dir_fd, const char *path, char *buf, size_t size);

/* Reads one number: decimal with a sign, or hex with 0x. 0, -errno of reading, or -EINVAL. */
int ut_pci_file_number(int dir_fd, const char *path, int64_t *out);

/* Where the link at path points, or what a text file of that name says in its place. The length, or -errno.
 */
ssize_t ut_pci_file_link(int dir_fd, const char *path, char *buf, size_t size);

#endif
