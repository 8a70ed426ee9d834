#!/bin/sh
# Makes the Debian packages fabricfs and python3-fabricfs of this source tree, for the Debian of this machine (12 or
# 13), and installs none of them.
#
#   utils/package.sh [DIRECTORY]    where they go; build-packages/ by default
#
# The tree is left alone: utils/debian becomes debian/ in a copy, with a changelog of one entry.
set -eu
cd "$(dirname "$0")/.."
output=${1:-build-packages}

utils/setup.sh --package
mkdir -p "$output"
output=$(realpath "$output")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

version=$(sed -n "s/^project(.* version: '\([^']*\)'.*/\1/p" meson.build)
maintainer=$(sed -n 's/^Maintainer: //p' utils/debian/control)
copy=$work/fabricfs-$version
mkdir -p "$copy/subprojects/packagecache"
tar -cf - LICENSE README.md meson.build meson_options.txt fs ntbmem reduce tests utils subprojects/*.wrap |
    tar -xf - -C "$copy"
find "$copy" -name __pycache__ -prune -exec rm -rf {} +
if [ -e subprojects/packagecache/fuse-3.17.2.tar.gz ]; then
    cp subprojects/packagecache/fuse-3.17.2.tar.gz "$copy/subprojects/packagecache"
fi
cp -r utils/debian "$copy/debian"
cat >"$copy/debian/changelog" <<END
fabricfs ($version) unstable; urgency=medium

  * Built from the source tree by utils/package.sh.

 -- $maintainer  $(date -R -r meson.build)
END

# What it needs has been installed; build-essential would add C++, which nothing here is written in.
(cd "$copy" && dpkg-buildpackage --build=binary --no-sign --no-check-builddeps) >"$work/log" 2>&1 || {
    cat "$work/log" >&2
    echo "package: the build failed" >&2
    exit 1
}
cp "$work"/*.deb "$output"
for file in "$work"/*.deb; do
    echo "$output/${file##*/}"
done
