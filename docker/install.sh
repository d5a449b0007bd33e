#!/bin/sh
# Runs inside a build: install into /opt/slipway from the wheelhouse alone, without a network.
#   install.sh packages [arguments of requirements.py after the project]
#   install.sh slipway [demo]
# pip runs from its own wheel, so neither it nor the wheels stay in the image.
set -eu
python=/opt/slipway/bin/python
pip=$(ls /build/wheelhouse/pip-*.whl 2>/dev/null) || {
    echo "docker/wheelhouse must hold the wheels of requirements.lock, got none; try make wheels" >&2
    exit 2
}
install() {
    "$python" "$pip/pip" --disable-pip-version-check --no-cache-dir install \
        --quiet --root-user-action=ignore --no-compile --no-index --find-links /build/wheelhouse "$@"
}

what=$1
shift
case $what in
packages)
    # What the base brings (TensorRT's Python, in NGC's images) stays importable.
    test -x "$python" || python3 -m venv --without-pip --system-site-packages /opt/slipway
    "$python" /build/requirements.py /build/pyproject.toml "$@" >/tmp/requirements.txt
    install --constraint /build/requirements.lock --requirement /tmp/requirements.txt
    rm /tmp/requirements.txt
    ;;
slipway)
    install --no-deps /build/dist/slipway_triton-*.whl ${1:+/build/dist/slipway_triton_$1-*.whl}
    ;;
esac
# Compiled now: a read-only root keeps no bytecode, and every model's process would compile its imports anew.
# What does not compile here fails where it is imported, with its name.
"$python" -m compileall -qq -j 0 /opt/slipway/lib || true
