"""A word from recordings to served, without a restart: train, export, publish, replace, fail, take out."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import speech
from fastapi.testclient import TestClient
from server_fixtures import wait_until
from tiny_exports import checkpoint_once, exported_once

from slipway_client import Client, RetryPolicy, SlipwayError
from slipway_export.families import family_named
from slipway_export.families.wakeword.head_file import read_head
from slipway_export.families.wakeword.network import HeadConfig
from slipway_export.families.wakeword.presets import write_word
from slipway_export.options import ExportOptions
from slipway_export.spec import Precision
from slipway_export.trained_models import Library, export_model
from slipway_gateway.trained_models.app import create_app
from slipway_gateway.trained_models.management import Management
from slipway_serving.protocol.errors import InvalidRequest, NotReady
from slipway_serving.triton.control import ModelControl
from slipway_serving.triton.server import Server, ServerConfig
from slipway_training.commands import wakeword as train_command

pytestmark = pytest.mark.long

WORD, OTHER = "jarvis", "lights"
REST = [word for word in speech.WORDS if word != WORD]
CALLERS = 8
SPEAKER = speech.speaker()
HEAD = family_named("wakeword_head")


@dataclass(frozen=True)
class Site:
    """What a user has: recordings, a backbone, a folder of trained models, a repository and its server."""

    folder: Path
    backbone: Path
    server: Server

    @property
    def library(self) -> Library:
        return Library(self.folder / "trained")

    @property
    def repository(self) -> Path:
        return self.folder / "repository"

    @property
    def control(self) -> ModelControl:
        return ModelControl(self.server.http_url, self.server.control_token)


@pytest.fixture(scope="module")
def site(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The tiny backbone with random weights and one random word, served; and recordings of a new word."""
    folder = tmp_path_factory.mktemp("site")
    speech.write(folder / "positive", {WORD: 240}, SPEAKER, seed=1)
    speech.write(folder / "negative", dict.fromkeys(REST, 40), SPEAKER, seed=2)
    backbone = checkpoint_once(shared, "wakeword")
    shutil.copytree(exported_once(shared, "wakeword", str(backbone))[0], folder / "repository")
    library = Library(folder / "trained")
    write_word(library.create(OTHER), HeadConfig(embedding_dim=64), seed=0)
    export_model(HEAD, library, OTHER, ExportOptions(checkpoint="", repository=folder / "repository"))
    config = ServerConfig(
        folder / "repository",
        http_port=0,
        grpc_port=0,
        metrics_port=0,
        model_control="explicit",
        exit_timeout_s=5,
    )
    with Server(config) as server:
        yield Site(folder, backbone, server)


@pytest.fixture(scope="module")
def trained(site: Site, request: pytest.FixtureRequest) -> dict[str, Any]:
    """The status that training prints; the word is not served yet.

    Only the head is trained; its backbone is the tiny one with random weights. Such a backbone hardly knows a
    word again at another moment of the second or in noise, so training and judging use the clips as they are.
    """
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\ntraining {WORD!r} on {SPEAKER.name}; backbone: tiny, random weights, not trained")
    train_command(
        name=WORD,
        positive=site.folder / "positive",
        negative=site.folder / "negative",
        backbone=str(site.backbone),
        models=site.library.folder,
        max_false_accepts=0.02,
        variations=0,
        quiet=True,
    )
    return json.loads(json.dumps(vars(site.library.status(WORD))))


@pytest.fixture(scope="module")
def api(site: Site) -> Iterator[TestClient]:
    management = Management(HEAD, site.library, site.repository, site.control)
    with TestClient(create_app(management), base_url="http://127.0.0.1:8003") as client:
        yield client


def ask(client: Client, samples: np.ndarray, *words: str) -> dict[str, np.ndarray]:
    """Ask the served ensemble about one clip."""
    tensors: dict[str, Any] = {"audio": samples[None], "sample_rate": np.array([[speech.RATE_HZ]])}
    if words:
        tensors["words"] = np.array([[word.encode() for word in words]], np.object_)
    return client.infer("wakeword", tensors)


def share_detected(client: Client, word: str, clips: list[np.ndarray]) -> float:
    return float(np.mean([ask(client, clip, word)["detected"][0, 0] for clip in clips]))


def unheard(words: list[str], count: int, seed: int) -> list[np.ndarray]:
    """Return clips of voices that training did not hear, as a client would send them from a file."""
    random = np.random.default_rng(seed)
    return [SPEAKER.say(word, random)[: speech.RATE_HZ] for word in words for _ in range(count)]


class Callers:
    """Clients that keep asking for one word until they are told to stop, and count what they get."""

    def __init__(self, url: str, word: str) -> None:
        self._url, self._word = url, word
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(i,)) for i in range(CALLERS)]
        self.answers, self.errors = [0] * CALLERS, list[Exception]()

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    def _call(self, index: int) -> None:
        clip = unheard([self._word], 1, seed=index)[0]
        with Client(self._url, retry=RetryPolicy(budget_s=0)) as client:
            while not self._stop.is_set():
                try:
                    got = ask(client, clip, self._word)
                    assert got["word"][0, 0] == self._word.encode()
                    self.answers[index] += 1
                except Exception as error:  # noqa: BLE001  (counted, all of them)
                    self.errors.append(error)


def test_training_leaves_a_model_in_wakebuilder_s_layout_and_its_graph(
    site: Site, trained: dict[str, Any]
) -> None:
    folder = site.library.folder / "custom" / WORD
    assert {path.name for path in folder.iterdir()} == {
        "model.pt",
        "model.onnx",
        "metadata.json",
        "calibration.csv",
        "calibration.png",
    }
    assert trained["has_pt"]
    assert trained["has_onnx"]
    assert trained["onnx_is_current"]
    assert trained["onnx_error"] is None
    assert trained["onnx_size_bytes"] == (folder / "model.onnx").stat().st_size
    saved = read_head(folder / "model.pt", "model.pt")
    assert saved.threshold == trained["threshold"]
    assert saved.base_model == str(site.backbone)
    graph = onnx.load(folder / "model.onnx").graph
    assert [tensor.name for tensor in graph.input] == ["embedding"]
    assert [tensor.name for tensor in graph.output] == ["logits", "probability", "threshold"]
    assert not (site.repository / f"wakeword_head_{WORD}").exists()


def test_word_is_served_without_a_restart_while_others_keep_calling(
    site: Site, trained: dict[str, Any], api: TestClient
) -> None:
    pid = site.server.pid
    with Client(site.server.grpc_url) as client, Callers(site.server.grpc_url, OTHER) as callers:
        with pytest.raises(SlipwayError, match=WORD):
            ask(client, unheard([WORD], 1, seed=1)[0], WORD)
        wait_until(lambda: min(callers.answers) > 2, "every caller's first answers")
        assert api.post(f"/v1/models/{WORD}/export-onnx").status_code == 202
        wait_until(lambda: state(api)["export"] not in ("queued", "running"), "the export", limit_s=600)
        before = list(callers.answers)
        assert (state(api)["export"], state(api)["onnx_error"]) == ("done", None)
        assert state(api)["served"] is True
        probability = ask(client, unheard([WORD], 1, seed=1)[0], WORD)["probability"][0, 0]
        assert 0 < probability <= 1
        wait_until(lambda: all(np.subtract(callers.answers, before) > 2), "every caller's later answers")
    assert callers.errors == []
    assert site.server.pid == pid
    print(f"{sum(callers.answers)} calls for {OTHER} answered while {WORD} was published, none failed")


def state(api: TestClient, word: str = WORD) -> dict[str, Any]:
    answer = api.get(f"/v1/models/{word}/onnx-status")
    assert answer.status_code == 200
    return answer.json()


@pytest.fixture(scope="module")
def served(site: Site, trained: dict[str, Any]) -> Site:
    """The trained word, exported and served."""
    publish = lambda model: site.control.sync(site.repository, model)  # noqa: E731
    export_model(
        HEAD, site.library, WORD, ExportOptions(checkpoint="", repository=site.repository), publish=publish
    )
    return site


def test_served_word_detects_unheard_voices_and_hardly_anything_else(served: Site) -> None:
    with Client(served.server.grpc_url) as client:
        detected = share_detected(client, WORD, unheard([WORD], 60, seed=11))
        accepted = share_detected(client, WORD, unheard(REST, 10, seed=12))
    print(f"{SPEAKER.name}, random tiny backbone: {detected:.1%} detected, {accepted:.1%} false accepts")
    assert detected >= 0.95
    assert accepted <= 0.05


def test_every_loaded_word_is_judged_when_none_is_named(served: Site) -> None:
    with Client(served.server.grpc_url) as client:
        words = ask(client, unheard([WORD], 1, seed=5)[0])["word"][0]
    assert {WORD.encode(), OTHER.encode()} <= set(words)


def test_failed_load_keeps_the_old_version_served_and_in_the_repository(served: Site) -> None:
    graph = served.repository / f"wakeword_head_{WORD}" / "1" / "model.onnx"
    old, clip = graph.read_bytes(), unheard([WORD], 1, seed=7)[0]

    def break_and_publish(model: str) -> None:
        graph.write_bytes(b"not a graph")
        served.control.sync(served.repository, model)

    options = ExportOptions(checkpoint="", repository=served.repository, precision=Precision.INT8)
    with Client(served.server.grpc_url) as client:
        before = ask(client, clip, WORD)["probability"]
        with pytest.raises(NotReady, match="load failed, got .*(must be a graph|parsing failed)"):
            export_model(HEAD, served.library, WORD, options, publish=break_and_publish)
        np.testing.assert_array_equal(ask(client, clip, WORD)["probability"], before)
    assert graph.read_bytes() == old
    status = served.library.status(WORD)
    assert "load failed" in str(status.onnx_error)
    assert status.has_pt
    assert status.onnx_precision == "fp32"


def test_export_of_another_precision_replaces_the_served_one(served: Site) -> None:
    clip = unheard([WORD], 1, seed=8)[0]
    size = served.library.status(WORD).onnx_size_bytes
    publish = lambda model: served.control.sync(served.repository, model)  # noqa: E731
    options = ExportOptions(checkpoint="", repository=served.repository, precision=Precision.INT8)
    with Client(served.server.grpc_url) as client:
        before = ask(client, clip, WORD)["probability"]
        export_model(HEAD, served.library, WORD, options, publish=publish)
        after = ask(client, clip, WORD)["probability"]
    assert not np.array_equal(after, before)
    np.testing.assert_allclose(after, before, atol=0.1)
    status = served.library.status(WORD)
    assert status.onnx_precision == "int8"
    assert status.onnx_error is None
    assert size is not None
    assert status.onnx_size_bytes is not None
    assert status.onnx_size_bytes < 0.5 * size


def test_training_again_needs_force_and_makes_the_graph_stale(served: Site, tmp_path: Path) -> None:
    few = speech.write(tmp_path / "few", {WORD: 3}, SPEAKER, seed=3)
    folders = {"positive": few, "negative": served.folder / "negative"}
    same = {"name": WORD, "backbone": str(served.backbone), "models": served.library.folder, "quiet": True}
    with pytest.raises(InvalidRequest, match="name must be of no trained model, got jarvis; try --force"):
        train_command(**same, **folders)
    with pytest.raises(InvalidRequest, match="positive must hold at least 8 recordings .* got 3"):
        train_command(**same, **folders, force=True)
    assert served.library.status(WORD).onnx_is_current


def test_failed_export_after_training_keeps_the_weights_and_says_why(served: Site, tmp_path: Path) -> None:
    taken = tmp_path / "repository"
    taken.write_text("a file where the repository should be")
    models = tmp_path / "trained"
    with pytest.raises(
        InvalidRequest, match="is trained, its export failed: repository .*try `slipway export"
    ):
        train_command(
            name="again",
            positive=served.folder / "positive",
            negative=served.folder / "negative",
            backbone=str(served.backbone),
            models=models,
            repository=taken,
            variations=0,
            epochs=1,
            max_false_accepts=1.0,
            quiet=True,
        )
    status = Library(models).status("again")
    assert (status.has_pt, status.has_onnx) == (True, False)
    assert "repository must be a folder" in str(status.onnx_error)


def test_deleted_word_is_served_no_more_and_the_others_are(served: Site, api: TestClient) -> None:
    with Client(served.server.grpc_url) as client:
        answer = api.delete(f"/v1/models/{WORD}/onnx")
        assert answer.status_code == 200
        assert (answer.json()["has_onnx"], answer.json()["has_pt"], answer.json()["served"]) == (
            False,
            True,
            False,
        )
        with pytest.raises(SlipwayError, match=WORD):
            ask(client, unheard([WORD], 1, seed=1)[0], WORD)
        assert ask(client, unheard([OTHER], 1, seed=1)[0], OTHER)["word"][0, 0] == OTHER.encode()
        wait_until(client.is_ready, "the server ready without it")
    assert not (served.repository / f"wakeword_head_{WORD}").exists()
    assert api.delete(f"/v1/models/{WORD}/onnx").status_code == 404
