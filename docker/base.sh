#!/usr/bin/env bash
# Make a base image from Debian's packages alone, for machines that reach no image registry:
#   base.sh NAME
# Needs root, debootstrap and an engine. Use it by `make image BASE=NAME`.
set -euo pipefail
name=${1:?base.sh: NAME of the image must be given, e.g. slipway-base:bookworm}
docker=${DOCKER:-docker}
rootfs=$(mktemp -d)
trap 'rm -rf "$rootfs"' EXIT
debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv,libpython3.11 \
    bookworm "$rootfs" >"$rootfs.log" || { cat "$rootfs.log" >&2; exit 1; }
rm -rf "$rootfs.log" "$rootfs"/var/cache/apt/archives/*.deb "$rootfs"/var/lib/apt/lists/* \
    "$rootfs"/usr/share/{doc,man,locale,info}/*
tar -C "$rootfs" -c . | "$docker" import --change 'ENV LANG=C.UTF-8' - "$name" >/dev/null
echo "$name"
