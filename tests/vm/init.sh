#!/bin/busybox sh
# shellcheck shell=dash
# The first process of a guest. Does what it is told over a virtio port: lines of a number and a script in
# base64; for each, when it has ended, a line with the number, its status and all it printed, in base64. Scripts
# run side by side.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t tmpfs run /run
mount -t securityfs security /sys/kernel/security 2>/dev/null
sed -n 's/.*fabric.host=\([a-z0-9]*\).*/\1/p' /proc/cmdline >/tmp/host
hostname -F /tmp/host
while read -r module; do
    insmod "/modules/$module" || echo "init: $module is not loaded"
done </modules/order
until [ -e /dev/vport0p1 ]; do usleep 1000; done
exec 3<>/dev/vport0p1

perform() {
    echo "$2" | base64 -d >"/tmp/script.$1"
    sh "/tmp/script.$1" </dev/null >"/tmp/out.$1" 2>&1 3>&-
    status=$?
    line="@ $1 $status $(base64 "/tmp/out.$1" | tr -d '\n')"
    until mkdir /tmp/line 2>/dev/null; do usleep 1000; done # one answer at a time
    echo "$line" >&3
    rmdir /tmp/line
    rm -f "/tmp/script.$1" "/tmp/out.$1"
}

echo "@ ready" >&3
while read -r number script <&3; do
    perform "$number" "$script" &
done
poweroff -f
