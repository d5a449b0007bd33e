"""LitServe server of the same wake word, for comparison (`python -m` this module).

It runs the same graphs of the model repository in ONNX Runtime, with LitServe's own batching. Audio passes
through feature extraction (transformers' extractor or our graph), the backbone and the head; features pass
through the fused graph. A request is JSON with the tensor in base64.
"""

from __future__ import annotations

import base64
import sys
from enum import StrEnum
from pathlib import Path
from typing import Any

import litserve
import numpy as np
import onnxruntime
from numpy.typing import NDArray

from slipway_serving.families.wakeword.audio import Extractor
from slipway_serving.families.wakeword.request import SAMPLE_RATE_HZ
from slipway_serving.families.wakeword.words import FUSED_SUFFIX, head_model

FIELD = "data"
# Longest time that LitServe waits to fill a batch.
BATCH_TIMEOUT_S = 0.002


class Kind(StrEnum):
    """Kind of requests to a server, and how it extracts features from audio."""

    AUDIO = "audio"
    AUDIO_GRAPH = "audio-graph"
    FEATURES = "features"


class WakeWord(litserve.LitAPI):  # type: ignore[misc]
    """LitServe API that maps the audio or features of one clip to the word's probability.

    Args:
        repository: Exported model repository.
        word: Wake word whose head runs.
        kind: Kind of the requests.
        threads: Number of threads of each ONNX Runtime session.
        batch: Largest number of requests in a batch.
    """

    def __init__(self, repository: Path, word: str, *, kind: Kind, threads: int, batch: int) -> None:
        super().__init__(max_batch_size=batch, batch_timeout=BATCH_TIMEOUT_S)
        self.repository, self.word, self.kind, self.threads = repository, word, kind, threads

    def setup(self, device: str) -> None:
        """Load the graphs."""
        head = head_model(self.word)
        if self.kind is Kind.FEATURES:
            self.fused = self._session(head + FUSED_SUFFIX)
            self.shape = tuple(int(size) for size in self.fused.get_inputs()[0].shape[1:])
            return
        self.backbone, self.head = self._session("wakeword_backbone"), self._session(head)
        if self.kind is Kind.AUDIO:
            self.extractor = Extractor(self.repository / "wakeword_decide" / "1")
        else:
            self.features = self._session("wakeword_features")

    def decode_request(self, request: dict[str, str]) -> NDArray[np.float32]:
        """Return the tensor of a request."""
        return np.frombuffer(base64.b64decode(request[FIELD]), np.float32)

    def batch(self, inputs: list[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
        """Return the clips unstacked, because an extractor makes the features of each clip separately."""
        return inputs

    def predict(self, inputs: list[NDArray[np.float32]]) -> list[float]:
        """Return each clip's probability."""
        if self.kind is Kind.FEATURES:
            whole = np.stack([clip.reshape(self.shape) for clip in inputs])
            (probability,) = self.fused.run(["probability"], {"input_values": whole})
        else:
            (embedding,) = self.backbone.run(["embedding"], {"input_values": self._features(inputs)})
            (probability,) = self.head.run(["probability"], {"embedding": embedding})
        return [float(value) for value in probability]

    def unbatch(self, output: list[float]) -> list[float]:
        """Return the answers one by one."""
        return output

    def encode_response(self, output: float) -> dict[str, Any]:
        """Return the answer as JSON."""
        return {"probability": output}

    def _features(self, clips: list[NDArray[np.float32]]) -> NDArray[np.float32]:
        if self.kind is Kind.AUDIO:
            return np.stack([self.extractor(clip, SAMPLE_RATE_HZ).input_values for clip in clips])
        features: NDArray[np.float32]
        (features,) = self.features.run(["input_values"], {"audio": np.stack(clips)})
        return features

    def _session(self, model: str) -> onnxruntime.InferenceSession:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        path = self.repository / model / "1" / "model.onnx"
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def main(port: int, repository: Path, word: str, kind: str, threads: int, batch: int) -> None:
    """Serve until the process ends."""
    api = WakeWord(repository, word, kind=Kind(kind), threads=threads, batch=batch)
    server = litserve.LitServer(api, accelerator="cpu", devices=1, workers_per_device=1)
    server.run(port=port, host="127.0.0.1", generate_client_file=False, log_level="error", num_api_servers=1)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]), int(sys.argv[6]))
