"""Settings inside files: written without a change of the video, and read back from whatever is uploaded."""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import av
import pytest
from gateway_contents.sample_videos import boxes, fragmented, packets, pixels, whole
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from slipway_gateway.contents.file_tags import MAX_TAG_BYTES, MAX_TAGS, read_tags
from slipway_gateway.contents.video_settings import VideoSettings, read_settings, with_settings
from slipway_serving.protocol.errors import InvalidRequest, Unrecoverable

SETTINGS = VideoSettings(
    request={
        "prompt": 'a fox 🦊, "quoted"\nSteps: 3, on sand',
        "negative_prompt": "blur, noise",
        "steps": 20,
        "guidance_scale": 4.0,
        "flow_shift": None,
        "seed": 2**53 - 1,
        "width": 96,
        "height": 64,
        "frames": 9,
        "fps": 16,
        "nested": {"a": [1, 2.5, None, True]},
    },
    model="some_model",
    manifest_digest="sha256:0123456789abcdef",
    versions={"slipway": "0.1.0", "triton": "2.67.0"},
)
VIDEO = whole(pixels(9))


@pytest.mark.parametrize("encode", [whole, fragmented])
def test_settings_are_read_back_and_packets_stay_the_same_when_they_are_written(
    encode: Callable[[Any], bytes],
) -> None:
    source = encode(pixels(33))
    written = with_settings(source, SETTINGS)
    assert read_settings(written) == SETTINGS
    assert packets(written) == packets(source)


def test_file_begins_with_its_index_when_the_input_is_in_fragments() -> None:
    kinds = boxes(with_settings(fragmented(pixels(33)), SETTINGS))
    assert kinds.index("moov") < kinds.index("mdat")
    assert "moof" not in kinds


def test_file_is_the_same_when_settings_are_written_twice() -> None:
    assert with_settings(VIDEO, SETTINGS) == with_settings(VIDEO, SETTINGS)
    other = replace(SETTINGS, model="other")
    assert read_settings(with_settings(with_settings(VIDEO, SETTINGS), other)) == other


def test_tags_are_read_by_other_programs_when_they_are_written() -> None:
    with av.open(io.BytesIO(with_settings(VIDEO, SETTINGS)), "r") as container:
        metadata = container.metadata
        context = container.streams.video[0].codec_context
        assert (context.color_range, context.colorspace) == (1, 1)
    assert metadata["prompt"] == SETTINGS.request["prompt"]
    assert json.loads(metadata["slipway"])["manifest_digest"] == SETTINGS.manifest_digest
    assert metadata["parameters"] == (
        'a fox 🦊, "quoted"\nSteps: 3, on sand\nNegative prompt: blur, noise\n'
        f"Steps: 20, CFG scale: 4, Seed: {2**53 - 1}, Frames: 9, FPS: 16, Size: 96x64, Model: some_model,"
        ' Model hash: 0123456789, Version: "slipway 0.1.0, triton 2.67.0"'
    )


def test_settings_are_refused_when_a_prompt_does_not_fit_into_a_tag() -> None:
    with pytest.raises(InvalidRequest, match="settings: prompt must be at most"):
        with_settings(VIDEO, replace(SETTINGS, request={"prompt": "ä" * MAX_TAG_BYTES}))


@pytest.mark.parametrize("data", [b"", b"nothing", VIDEO[: len(VIDEO) // 2]])
def test_settings_are_not_written_when_the_video_is_damaged(data: bytes) -> None:
    with pytest.raises(Unrecoverable, match="settings: the video must be a valid MP4 file"):
        with_settings(data, SETTINGS)


def png(**texts: str) -> bytes:
    info, file = PngInfo(), io.BytesIO()
    for name, text in texts.items():
        info.add_itxt(name, text, zip=len(text) > 1000) if not text.isascii() else info.add_text(name, text)
    Image.new("RGB", (8, 8)).save(file, "PNG", pnginfo=info)
    return file.getvalue()


def test_settings_are_read_when_they_are_texts_of_a_picture() -> None:
    assert read_settings(png(**SETTINGS.tags)) == SETTINGS
    file = io.BytesIO()
    plain = replace(SETTINGS, request={"prompt": "x" * 5000})
    info = PngInfo()
    info.add_text("slipway", plain.to_json(), zip=True)
    Image.new("RGB", (8, 8)).save(file, "PNG", pnginfo=info)
    assert read_settings(file.getvalue()) == plain


def test_parameters_of_another_program_are_read_when_there_is_no_tag_of_ours() -> None:
    text = (
        "a cat\non a mat\nNegative prompt: dogs\nmore dogs\n"
        'Steps: 20, Sampler: DPM++ 2M, CFG scale: 7.5, Seed: 42, Size: 512x768, Model: "x, y", Clip skip: 2'
    )
    found = read_settings(png(parameters=text))
    assert dict(found.request) == {
        "prompt": "a cat\non a mat",
        "negative_prompt": "dogs\nmore dogs",
        "steps": 20,
        "guidance_scale": 7.5,
        "seed": 42,
        "width": 512,
        "height": 768,
    }
    assert found.model == "x, y"


@pytest.mark.parametrize(
    "text", ["", "a prompt alone", "a: b", "x\nSteps: 1e999, Seed: " + "9" * 5000 + ", Size: axb"]
)
def test_parameters_become_a_prompt_when_they_have_no_values(text: str) -> None:
    found = read_settings(png(parameters=text or " "))
    assert set(found.request) <= {"prompt"}


def test_parameters_are_read_in_linear_time_when_they_are_hostile() -> None:
    for text in (
        'Steps: "' + "\\" * 100_000,
        "a:" * 100_000,
        "Steps: 1," * 25_000,
        'x: "' * 50_000,
        " " * 200_000,
    ):
        read_settings(png(parameters=text))


@given(
    st.fixed_dictionaries(
        {"prompt": st.text(st.characters(exclude_categories=["Cs"]), max_size=50)},
        optional={
            "steps": st.integers(1, 10**6),
            "guidance_scale": st.floats(0, 100),
            "seed": st.integers(0, 2**63),
        },
    )
)
@settings(max_examples=25, deadline=None)
def test_settings_are_the_same_when_any_request_was_written(request: dict[str, Any]) -> None:
    wanted = VideoSettings(request, "model")
    assert read_settings(with_settings(VIDEO, wanted)) == wanted


def with_tag(text: str, name: str = "slipway") -> bytes:
    """A picture with a tag of any text; MP4 files take the same way from there."""
    raw = name.encode() + b"\0\0\0\0\0" + text.encode("utf-8", "surrogatepass")
    return picture_with(b"iTXt", raw)


def picture_with(kind: bytes, content: bytes, count: int = 1) -> bytes:
    plain = png()
    chunk = struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    return plain[:33] + chunk * count + plain[33:]


DOCUMENT = {"request": {"prompt": "x"}, "model": "m"}
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must be valid JSON"),
        ("{", "must be valid JSON"),
        (DEEP, "must be valid JSON"),
        ('{"request": {"a": ' + DEEP[90_000:-90_000] + '}, "model": "m"}', "."),
        ('{"request": {"a": [[[[[[[[1]]]]]]]]}, "model": "m"}', "at most 8 levels"),
        ('{"request": {"seed": NaN}, "model": "m"}', "must be valid JSON"),
        ('{"request": {"seed": 1e999}, "model": "m"}', "must be valid JSON"),
        ('{"request": {"seed": ' + "9" * 5000 + '}, "model": "m"}', "must be valid JSON"),
        (r'{"request": {"prompt": "\ud800"}, "model": "m"}', "must be valid JSON"),
        ("[]", "a JSON object"),
        ("null", "a JSON object"),
        (json.dumps(DOCUMENT | {"request": []}), "whose request is an object"),
        (json.dumps(DOCUMENT | {"model": 3}), "whose model and manifest_digest are texts"),
        (json.dumps(DOCUMENT | {"manifest_digest": {}}), "whose model and manifest_digest are texts"),
        (json.dumps(DOCUMENT | {"versions": {"a": 1}}), "whose versions are texts"),
    ],
)
def test_settings_are_refused_by_name_when_their_json_is_hostile(text: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        read_settings(with_tag(text))


def atom(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", len(content) + 8, kind) + content


def movie(items: bytes, keys: int = 1) -> bytes:
    key = atom(b"mdta", b"slipway")
    meta = bytes(4) + atom(b"keys", bytes(4) + struct.pack(">I", keys) + key * keys) + atom(b"ilst", items)
    return atom(b"ftyp", b"isom") + atom(b"moov", atom(b"udta", atom(b"meta", meta)))


def item(text: bytes, place: int = 1, kind: int = 1) -> bytes:
    return atom(struct.pack(">I", place), atom(b"data", struct.pack(">II", kind, 0) + text))


def test_tags_are_read_when_the_file_was_made_by_hand() -> None:
    assert read_tags(movie(item(b"{}"))) == {"slipway": "{}"}
    assert read_tags(movie(item(b"{}", place=2) + item(b"{}", place=0) + item(b"{}", kind=13))) == {}
    assert read_tags(atom(b"ftyp", b"isom") + atom(b"moov", b"")) == {}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "must be an MP4 or PNG file"),
        (b"<html>", "must be an MP4 or PNG file"),
        (b"GIF89a" * 9, "must be an MP4 or PNG file"),
        (b"\0\0\0\x18ftyp", "must be a complete MP4 file"),
        (atom(b"ftyp", b"isom"), "without its header"),
        (atom(b"ftyp", b"isom") + b"\xff\xff\xff\xffmoov", "must be a complete MP4 file"),
        (atom(b"ftyp", b"isom") + b"\0\0\0\x01moov" + b"\xff" * 8, "must be a complete MP4 file"),
        (atom(b"ftyp", b"isom") + b"\0\0\0\x07moov", "must be a complete MP4 file"),
        (atom(b"ftyp", b"isom") + atom(b"free", b"") * 100_001, "at most 100000 parts"),
        (movie(item(b"x" * (MAX_TAG_BYTES + 1))), f"tags of at most {MAX_TAG_BYTES} bytes"),
        (movie(item(b"\xff\xfe")), "tags of text"),
        (movie(item(b"x"), keys=MAX_TAGS + 1), f"at most {MAX_TAGS} parts"),
        (movie(item(b"x") * (MAX_TAGS + 1)), f"at most {MAX_TAGS} parts"),
        (png()[:40], "must be a complete PNG file"),
        (png()[:-12], "must be a complete PNG file"),
        (picture_with(b"tEXt", b"a\0b").replace(b"a\0b", b"a\0c"), "a damaged text"),
        (picture_with(b"tEXt", b"no name"), "a text without a name"),
        (picture_with(b"iTXt", b"name\0\0\0"), "a broken text"),
        (picture_with(b"iTXt", b"name\0\0\0\0\0\xff\xfe"), "tags of text"),
        (picture_with(b"zTXt", b"name\0\0rubbish"), "a damaged text"),
        (picture_with(b"zTXt", b"name\0\0" + zlib.compress(bytes(1 << 24))), "tags of at most"),
        (picture_with(b"iTXt", b"name\0\1\0\0\0" + zlib.compress(bytes(1 << 24))), "tags of at most"),
        (picture_with(b"tEXt", b"name\0" + bytes(MAX_TAG_BYTES + 1)), "tags of at most"),
        (png(comment="x"), "must have a tag slipway or parameters"),
        (VIDEO, "must have a tag slipway or parameters"),
    ],
)
def test_settings_are_refused_by_name_when_the_file_is_hostile(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=f"settings: file .*{reason}"):
        read_settings(data)


def test_texts_are_refused_when_a_picture_has_too_many() -> None:
    plain = png()
    many = b"".join(
        picture_with(b"tEXt", f"{number}\0x".encode())[33 : -len(plain) + 33]
        for number in range(MAX_TAGS + 1)
    )
    with pytest.raises(InvalidRequest, match=f"at most {MAX_TAGS} texts"):
        read_settings(plain[:33] + many + plain[33:])


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_reader_refuses_or_answers_when_bytes_of_a_file_are_changed(data: st.DataObject) -> None:
    source = bytearray(data.draw(st.sampled_from([TAGGED, png(**SETTINGS.tags), movie(item(b"{}"))])))
    for _ in range(data.draw(st.integers(1, 4))):
        source[data.draw(st.integers(0, len(source) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(source)))
    for changed in (bytes(source), bytes(source[:cut])):
        try:
            read_settings(changed)
        except InvalidRequest:
            continue


TAGGED = with_settings(VIDEO, SETTINGS)
