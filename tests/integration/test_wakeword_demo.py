"""The trained backbone and its ready word, served: a word by a voice that no training heard, among others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slipway_client import Client
from slipway_client.listening import StreamDetector, detect_in_clips, split_recording
from slipway_client.sound import read_recording
from slipway_demo import folder
from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_serving.triton.server import Server, ServerConfig

pytestmark = pytest.mark.long

WORD = "slipway"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    repository = tmp_path_factory.mktemp("demo") / "models"
    for family, checkpoint in (("wakeword", "demo"), ("wakeword_head", WORD)):
        run_export(family_named(family), ExportOptions(checkpoint, repository))
    with (
        Server(ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)) as running,
        Client(running.grpc_url) as connected,
    ):
        yield connected


def labels() -> list[tuple[str, tuple[float, float]]]:
    """What is said in the recording, and from when to when, seconds."""
    rows = [line.split("\t") for line in (folder("wakeword_head") / "said.txt").read_text().splitlines()]
    return [(text, (float(begin), float(end))) for begin, end, text in rows]


@pytest.mark.parametrize("streamed", [False, True], ids=["clips", "stream"])
def test_word_of_an_unheard_voice_is_detected_where_it_is_said_and_nowhere_else(
    client: Client, streamed: bool
) -> None:
    recording = read_recording(folder("wakeword_head") / "said.ogg")
    said_s = [span for text, span in labels() if text == WORD]
    if streamed:
        heard = StreamDetector(client, (WORD,), cooldown_ms=1000).detect(split_recording(recording))
    else:
        heard = detect_in_clips(client, recording, (WORD,), cooldown_s=1.0)
    times_s = [each.time_s for each in heard if each.event]
    assert len(times_s) == len(said_s) == 2, times_s
    for time_s, (begin_s, end_s) in zip(times_s, said_s, strict=True):
        # The window, of a second, that ends at this time holds most of the word.
        assert begin_s + 0.3 < time_s < end_s + 0.7
