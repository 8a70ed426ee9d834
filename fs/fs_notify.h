/*
 * Word to the service manager about where the daemon is in its life (the protocol of sd_notify(3)).
 */
#ifndef FS_NOTIFY_H
#define FS_NOTIFY_H

#include <stdbool.h>
#include <sys/types.h>

/* True when the environment names a service manager that wants to know. */
bool fs_notify_wanted(void);

/*
 * Sends state ("READY=1", "STOPPING=1") in the name of the process pid to the socket that the environment
 * names; does nothing when it names none. Another pid than one's own takes privilege; without it the message
 * goes out in one's own name, which the unit must allow (NotifyAccess=all). Any thread; never blocks.
 * 0, or -errno when it could not be sent.
 */
int fs_notify(pid_t pid, const char *state);

#endif
