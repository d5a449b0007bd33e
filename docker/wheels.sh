#!/usr/bin/env bash
# Fill docker/wheelhouse with what the images install, in the versions of the locks.
#   wheels.sh        for client, load, gateway, server-cpu and export, by a Python of the image's version
#   wheels.sh gpu    for server-gpu and export on NGC's images, whose Python is a newer one
# torch is the build that pip's index gives: for the CPU build name an index that has it, by
#   PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make wheels
set -euo pipefail
cd "$(dirname "$0")/.."
source docker/versions.env
python=${PYTHON:-.venv/bin/python}
folder=docker/wheelhouse
pip=("$python" -m pip --disable-pip-version-check -qq)
tools=("pip==$PIP_VERSION" "hatchling==$HATCHLING_VERSION")
asked=$(mktemp)
trap 'rm -f "$asked"' EXIT

# The stamp says for whom, so that a change of mind or of a version fills it anew.
stamp="$folder/filled-${1:-cpu}"
if [[ -e $stamp && $stamp -nt pyproject.toml && $stamp -nt requirements.lock && $stamp -nt requirements-load.lock \
    && $stamp -nt docker/versions.env ]]; then
    exit 0
fi
rm -f "$folder"/*.whl "$folder"/filled-*
if [[ ${1:-} == gpu ]]; then
    "$python" docker/requirements.py pyproject.toml server export torch \
        --without nvidia-pytriton >"$asked"
    "$python" docker/requirements.py pyproject.toml server \
        --without nvidia-pytriton \
        --instead onnxruntime=onnxruntime-gpu >>"$asked"
    "${pip[@]}" download --dest "$folder" --constraint requirements.lock --requirement "$asked" "${tools[@]}" \
        --python-version "$NGC_PYTHON_VERSION" --only-binary :all: \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux2014_x86_64
else
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if [[ $version != "$PYTHON_VERSION" ]]; then
        echo "wheels: PYTHON must be Python $PYTHON_VERSION as in the images, got $version of $python" >&2
        exit 2
    fi
    "$python" docker/requirements.py pyproject.toml signals gateway server export torch >"$asked"
    "${pip[@]}" wheel --wheel-dir "$folder" --constraint requirements.lock --requirement "$asked" "${tools[@]}"
    "$python" docker/requirements.py pyproject.toml load >"$asked"
    "${pip[@]}" wheel --wheel-dir "$folder" --constraint requirements-load.lock --requirement "$asked"
fi
touch "$stamp"
du -sh "$folder"
