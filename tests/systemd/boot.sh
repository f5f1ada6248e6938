#!/bin/sh
# Boots the Debian system in the directory ROOT with its systemd as the first process: boot.sh ROOT GROUP. To be run by
# `unshare --mount`, as root. GROUP is the name of a new control group for the processes of the system. systemd reports
# the end of the boot to the socket ROOT/booted (sd_notify).
set -eu
root=$1
if [ "${3:-}" != inside ]; then
    # The control group must be entered before the namespace of control groups is made: then the system sees this
    # group as the root of all groups.
    groups=$(mktemp -d)
    mount -t cgroup2 cgroup2 "$groups"
    mkdir "$groups/$2"
    echo $$ > "$groups/$2/cgroup.procs"
    umount "$groups"
    rmdir "$groups"
    exec unshare --pid --net --uts --ipc --cgroup --fork --kill-child sh "$0" "$root" "$2" inside
fi
# systemd makes mount namespaces for services, so its root directory must be the root of a mount.
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null:3 zero:5 full:7 random:8 urandom:9; do
    mknod -m 666 "$root/dev/${device%:*}" c 1 "${device#*:}"
done
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
cd "$root"
pivot_root . .
umount -l .
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin NOTIFY_SOCKET=/booted \
    chroot . /lib/systemd/systemd --log-target=journal
