/*
 * Who keeps the mount busy: processes with a file of it open or mapped, or their working directory in it.
 * Said when the daemon stops, since it goes all the same.
 */
#ifndef FS_HOLDERS_H
#define FS_HOLDERS_H

struct fs;

/* Logs up to sixteen of them, by the names in /proc; asks the mount itself nothing. */
void fs_holders_log(struct fs *fs);

#endif
