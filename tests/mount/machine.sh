#!/bin/sh
# A machine to throw away: runs a command as root on a copy of this one whose root directory, /etc, /tmp, /mnt and
# /dev/shm are its own, so that what is typed there as the pages print it (mkdir /fabric, a file in /etc) leaves
# nothing behind. Processes and mounts end with the command.
#
#   unshare --mount --pid --fork --kill-child tests/mount/machine.sh DIRECTORY TREE BUILD COMMAND...
#
# DIRECTORY is empty and becomes the root. The command starts in /tmp/fabricfs, a copy of the source TREE with BUILD
# as its build/, and its programs are installed in /usr/local/sbin.
set -eu
root=$1 tree=$2 build=$3
shift 3

mount -t tmpfs -o mode=755 machine "$root"
for path in /*; do
    if [ -L "$path" ]; then
        ln -s "$(readlink "$path")" "$root$path"
    elif [ -d "$path" ] && [ "$path" != /fabric ]; then
        mkdir "$root$path"
        case $path in
        /etc) cp -a /etc/. "$root/etc" ;;
        /tmp) chmod 1777 "$root/tmp" ;;
        /mnt | /proc) ;;
        *) mount --rbind "$path" "$root$path" ;;
        esac
    fi
done
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=1777 machine "$root/dev/shm"

top=$root/tmp/fabricfs
mkdir -p "$top/build"
for path in "$tree"/*; do
    case ${path##*/} in
    build* | subprojects) ;;
    *) cp -r "$path" "$top" ;;
    esac
done
mount --bind "$build" "$top/build"
mount -t tmpfs -o mode=755 machine "$root/usr/local/sbin"
ln -s /tmp/fabricfs/build/fs/fabricfs /tmp/fabricfs/build/utils/fabricctl "$root/usr/local/sbin"

# shellcheck disable=SC2016 # the inner shell's
exec chroot "$root" /usr/bin/env -i HOME=/root TERM=dumb LC_ALL=C \
    PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin \
    /bin/sh -c 'cd /tmp/fabricfs && exec "$@"' sh "$@"
