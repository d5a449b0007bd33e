#!/usr/bin/env bash
# Build images of docker/Dockerfile, and see that each starts under the restrictions that it is made for:
#   [BASE=IMAGE] [EXPORT_BASE=IMAGE] [TRITON_BASE=IMAGE] [TORCH_BASE=server-gpu] build.sh TARGET...
# Targets: client, load, gateway, server-cpu, export, server-gpu, server-torch. EXPORT_BASE=server-cpu makes an export that
# needs no GPU; TORCH_BASE=server-gpu a server-torch that uses one. ONNXRUNTIME=onnxruntime makes a server-gpu whose Python
# models run graphs on CPUs.
set -euo pipefail
cd "$(dirname "$0")/.."
docker=${DOCKER:-docker} asked_base=${BASE:-} asked_export_base=${EXPORT_BASE:-} asked_torch_base=${TORCH_BASE:-}
asked_triton_base=${TRITON_BASE:-} asked_onnxruntime=${ONNXRUNTIME:-}
source docker/versions.env
export DOCKER_BUILDKIT=1

for target in "$@"; do
    image=slipway/$target:$SLIPWAY_VERSION
    "$docker" build --progress plain --file docker/Dockerfile --target "$target" --tag "$image" \
        --build-arg "BASE=${asked_base:-$BASE}" \
        --build-arg "TRITON_BASE=${asked_triton_base:-$TRITON_BASE}" \
        --build-arg "ONNXRUNTIME=${asked_onnxruntime:-$ONNXRUNTIME}" \
        --build-arg "EXPORT_BASE=${asked_export_base:-$TENSORRT_BASE}" \
        --build-arg "TORCH_BASE=${asked_torch_base:-server-cpu}" \
        --build-arg "VERSION=$SLIPWAY_VERSION" \
        --build-arg "REVISION=$(git rev-parse HEAD 2>/dev/null || echo unknown)" \
        .
    said=$("$docker" run --rm --read-only --cap-drop ALL --network none --entrypoint slipway "$image" --version)
    if [[ $said != "slipway $SLIPWAY_VERSION" ]]; then
        echo "build: $image must say slipway $SLIPWAY_VERSION, got $said" >&2
        exit 1
    fi
    size=$("$docker" image inspect --format '{{.Size}}' "$image")
    echo "$image: $((size / 1000000)) MB"
done
