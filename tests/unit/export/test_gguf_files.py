"""GGUF files: blocks are dequantized when they are read, with diffusers' dequantization as the reference."""

from __future__ import annotations

from pathlib import Path

import layout_files as files
import numpy as np
import pytest
import torch

from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.layouts.names import GGUF_UMT5, WAN_TRANSFORMER
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import family_named
from slipway_export.spec import Loading, Precision
from slipway_serving.protocol.errors import InvalidRequest

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")

WAN = family_named("wan_t2v")
WIDTH = 256
K_QUANTS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q5_1", "Q4_0"])
def test_transformer_is_dequantized_when_it_is_gguf(kind: str, checkpoint: Path, tmp_path: Path) -> None:
    state = files.renamed(files.weights(checkpoint, "transformer"), WAN_TRANSFORMER)
    file = files.gguf_file(tmp_path / "wan.gguf", state, kind)
    dtype = gguf.GGMLQuantizationType[kind]
    block = gguf.GGML_QUANT_SIZES[dtype][0]
    with open_checkpoint(WAN, str(checkpoint), {"transformer": str(file)}) as opened:
        stored = opened.stored("transformer")
        for key, tensor in files.weights(checkpoint, "transformer").items():
            found = stored[key]
            assert found.shape == tensor.shape
            flat = tensor.float().reshape(tensor.shape[0], -1) if tensor.ndim == 5 else tensor.float()
            blocks = flat.ndim == 2 and flat.shape[-1] % block == 0 and kind != "F32"
            wanted = flat.numpy()
            if blocks:
                wanted = gguf.quants.dequantize(gguf.quants.quantize(wanted, dtype), dtype)
            assert torch.equal(found.read(), torch.from_numpy(np.array(wanted)).reshape(tensor.shape)), key
            if tensor.ndim == 2:
                assert torch.equal(found.read(1, 3), found.read()[1:3])
                indices = torch.tensor([[0], [1]])
                assert torch.equal(found.rows(indices), found.read()[indices])
        plan = WAN.plan(opened, axes_of(WAN, opened, {}))
        denoiser = next(c for c in plan.components if c.name == "denoiser_high")
        for loading in Loading:
            denoiser.load(Precision.FP32, loading)


@pytest.mark.parametrize("kind", K_QUANTS)
def test_blocks_are_those_of_diffusers_when_they_are_k_quants(kind: str, tmp_path: Path) -> None:
    from diffusers.quantizers.gguf.utils import dequantize_functions

    from slipway_export.checkpoint.layouts.tensor_files import tensors_of

    dtype = gguf.GGMLQuantizationType[kind]
    size = gguf.GGML_QUANT_SIZES[dtype][1]
    blocks = np.random.default_rng(0).integers(0, 256, (8, 2 * size), dtype=np.uint8)
    # Scales in half precision must be finite: their exponents are cleared to small ones.
    halves = {"Q2_K": (-4, -2), "Q3_K": (-2,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (-2,)}[kind]
    for at in halves:
        for begin in (0, size):
            high = (begin + at if at >= 0 else begin + size + at) + 1
            blocks[:, high] &= 0b00111011
    writer = gguf.GGUFWriter(path := tmp_path / "x.gguf", "wan")
    writer.add_tensor("x", blocks, raw_dtype=dtype)
    for write_part in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
    ):
        write_part()
    writer.close()
    found = tensors_of(path, "here", "x.gguf")["x"].read()
    by_block = torch.from_numpy(blocks.reshape(-1, size))
    wanted = dequantize_functions[dtype](by_block, 256, size, dtype=torch.float32)
    torch.testing.assert_close(found, wanted.reshape(8, -1), rtol=1e-6, atol=0)


def test_text_encoder_is_read_when_it_has_llama_cpps_names(checkpoint: Path, tmp_path: Path) -> None:
    state = {k: v for k, v in files.weights(checkpoint, "text_encoder").items() if "embed_tokens" not in k}
    file = files.gguf_file(tmp_path / "umt5.gguf", files.renamed(state, GGUF_UMT5), "Q8_0", "t5encoder")
    with open_checkpoint(WAN, str(checkpoint), {"text_encoder": str(file)}) as opened:
        stored = opened.stored("text_encoder")
        assert stored.keys() == state.keys()
        largest = max((stored[key].read() - state[key]).abs().max() / state[key].abs().max() for key in state)
        assert largest < 0.01
        plan = WAN.plan(opened, axes_of(WAN, opened, {}))
        encoder = next(c for c in plan.components if c.name == "text_encoder")
        for loading in Loading:
            encoder.load(Precision.FP32, loading)


def file_pages() -> int:
    """Return the bytes of mapped files that are resident in this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssFile"))


def test_pages_of_the_file_are_let_go_of_when_a_tensor_was_read(tmp_path: Path) -> None:
    from slipway_export.checkpoint.layouts.tensor_files import tensors_of

    size = 2**22
    state = {f"{number}": torch.full((4, size), float(number)) for number in range(2)}
    path = files.gguf_file(tmp_path / "x.gguf", state, "F32")
    found = tensors_of(path, "here", "x.gguf")
    before = file_pages()
    for number, tensor in enumerate(found.values()):
        assert torch.equal(tensor.read(), state[f"{number}"])
    assert file_pages() - before < 4 * size


def test_file_is_named_when_gguf_is_cut_short(checkpoint: Path, tmp_path: Path) -> None:
    state = files.renamed(files.weights(checkpoint, "transformer"), WAN_TRANSFORMER)
    file = files.gguf_file(tmp_path / "wan.gguf", state, "Q8_0")
    file.write_bytes(file.read_bytes()[:9000])
    with (
        pytest.raises(InvalidRequest, match=r"wan.gguf must be a complete GGUF file, got .*; try to copy it"),
        open_checkpoint(WAN, str(checkpoint), {"transformer": str(file)}),
    ):
        pass
