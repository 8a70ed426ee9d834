#!/bin/sh
# Installs what the build, the demo and the tests need: packages of the distribution (Debian 12 or 13), and
# libfuse's source where the distribution's library is older than 3.17. Quick when all of it is there.
#
#   utils/setup.sh           for the build and the demo
#   utils/setup.sh --check   and for utils/check.sh
#   utils/setup.sh --package and for utils/package.sh
#   utils/setup.sh --compare and for utils/compare-peers: Open MPI, MPICH, PyTorch
#
# Nothing but the package manager is asked: no source list of the machine is changed.
set -eu
cd "$(dirname "$0")/.."

fuse_tarball=subprojects/packagecache/fuse-3.17.2.tar.gz
fuse_sha256=$(sed -n 's/^source_hash *= *//p' subprojects/fuse3.wrap)

say() { echo "setup: $*"; }
die() { echo "setup: $*" >&2; exit 1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        env DEBIAN_FRONTEND=noninteractive "$@"
    else
        sudo env DEBIAN_FRONTEND=noninteractive "$@"
    fi
}

packages() {
    echo gcc libc6-dev meson ninja-build pkg-config libfuse3-dev fuse3 libpci-dev libnuma-dev libinih-dev \
        libisal-dev libjansson-dev libncurses-dev libcriterion-dev python3 python3-numpy ca-certificates
    if [ "$1" = --check ]; then
        echo clang libclang-rt-dev clang-format cppcheck shellcheck busybox-static qemu-system-x86 \
            perl nodejs vim man-db procps python3-pip python3-setuptools python3-wheel python3-torch \
            python3-pyte mmdebstrap golang-go r-base-core
    fi
    if [ "$1" = --check ] || [ "$1" = --package ]; then
        echo debhelper dh-python dpkg-dev
    fi
    if [ "$1" = --compare ]; then
        echo openmpi-bin libopenmpi-dev mpich libmpich-dev python3-torch
    fi
}

is_installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

install_packages() {
    missing=
    for package in $(packages "$1"); do
        is_installed "$package" || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    say "installing$missing"
    log=$(mktemp)
    # shellcheck disable=SC2086 # a list of names
    if ! { as_root apt-get -qq update && as_root apt-get -qq -y --no-install-recommends install $missing; } \
        >"$log" 2>&1; then
        cat "$log" >&2
        rm -f "$log"
        die "the packages above could not be installed"
    fi
    rm -f "$log"
}

tarball_is_good() { echo "$fuse_sha256  $1" | sha256sum --check --status 2>/dev/null; }

# Where this machine's own distribution packages come from.
mirror() {
    # shellcheck disable=SC2016 # apt fills these in
    apt-get indextargets --format '$(CODENAME) $(REPO_URI)' "Created-By: Packages" "Origin: Debian" |
        awk -v codename="$1" '$1 == codename { print $2; exit }'
}

# apt with source list, package lists and cache of its own in $dir.
private_apt() {
    apt-get -qq -o "Dir::Etc::SourceList=$dir/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o "Dir::State::Lists=$dir/lists" -o "Dir::Cache=$dir" -o Acquire::Languages=none \
        -o "APT::Sandbox::User=$(id -un)" "$@"
}

# Debian 13's source package holds the very release. apt checks the archive's signature, and we the hash.
fetch_source() {
    codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    uri=$(mirror "$codename")
    if [ -z "$uri" ]; then # the machine has no package lists
        as_root apt-get -qq update && uri=$(mirror "$codename")
    fi
    [ -n "$uri" ] || return 1
    mkdir -p "$dir/lists/partial" "$dir/archives/partial" "$dir/source"
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri trixie main" >"$dir/sources.list"
    private_apt update && cd "$dir/source" && private_apt source --download-only --only-source fuse3
}

fetch_fuse() {
    if pkg-config --atleast-version=3.17 fuse3 || tarball_is_good "$fuse_tarball"; then
        return 0
    fi
    say "fetching the source of libfuse 3.17.2"
    dir=$(mktemp -d)
    trap 'rm -rf "$dir"' EXIT
    if (fetch_source) >"$dir/log" 2>&1; then
        for file in "$dir"/source/fuse3_*.orig.tar.*; do
            if tarball_is_good "$file"; then
                mkdir -p "$(dirname "$fuse_tarball")"
                cp "$file" "$fuse_tarball.part"
                mv "$fuse_tarball.part" "$fuse_tarball"
                return 0
            fi
        done
    fi
    cat "$dir/log" >&2
    say "apt had no libfuse 3.17.2; meson will ask the project's release page"
}

# Servers that tests start themselves: unpacked only, for installing them would start services.
fetch_tools() {
    tools=subprojects/packagecache/tools
    [ -x $tools/usr/bin/promtool ] && [ -x $tools/usr/bin/prometheus-node-exporter ] && return 0
    mkdir -p $tools
    say "fetching prometheus and prometheus-node-exporter, for tests"
    dir=$(mktemp -d)
    chmod 755 "$dir" # apt downloads as a user of its own
    # Debian 13 has promtool in a package of its own.
    if (cd "$dir" && as_root apt-get -qq update && apt-get -qq download prometheus prometheus-node-exporter \
        "$(apt-cache pkgnames promtool | grep -x promtool || echo prometheus)") >"$dir/log" 2>&1; then
        for file in "$dir"/*.deb; do
            dpkg-deb -x "$file" $tools
        done
    else
        cat "$dir/log" >&2
        say "they cannot be had; the tests that need them will be skipped"
    fi
    rm -rf "$dir"
}

install_packages "${1:-}"
fetch_fuse
if [ "${1:-}" = --check ]; then
    fetch_tools
fi
