#!/usr/bin/env bash
# Put Compose v2 into FOLDER, for Debian 12, whose docker-compose is of version 1:
#   compose_plugin.sh FOLDER     then: DOCKER_CONFIG=FOLDER docker compose version
# Debian 13's package is fetched and checked by apt, with package lists of its own, and unpacked, not installed.
set -euo pipefail
folder=${1:?compose_plugin.sh: FOLDER must be given}
version=2.26.1-4
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch"/{state/lists/partial,cache/archives/partial}
: >"$scratch/status"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main" \
    >"$scratch/sources.list"
apt=(apt-get -qq -o "Dir::State=$scratch/state" -o "Dir::State::status=$scratch/status"
    -o "Dir::Cache=$scratch/cache" -o "Dir::Etc::SourceList=$scratch/sources.list" -o Dir::Etc::SourceParts=-
    -o Acquire::Languages=none -o APT::Sandbox::User=root)
"${apt[@]}" update
(cd "$scratch" && "${apt[@]}" download "docker-compose=$version")
dpkg -x "$scratch"/docker-compose_*.deb "$scratch/unpacked"
mkdir -p "$folder/cli-plugins"
cp "$scratch/unpacked/usr/libexec/docker/cli-plugins/docker-compose" "$folder/cli-plugins/"
