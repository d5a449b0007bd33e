"""The tokenizer program: cleaning as diffusers does, limits, padding."""

from pathlib import Path

import numpy as np
import pytest
from diffusers.pipelines.wan.pipeline_wan import prompt_clean
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from slipway_serving.diffusion.tokenizer import PromptTokenizer, cased, clean
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.in_process import InProcessModels
from slipway_serving.runtime.program import Call, Settings

DEMO = Path(__file__).parents[3] / "training" / "slipway_demo"


@given(
    st.text()
    | st.lists(st.sampled_from(["&amp;", "&amp;lt;", "\u00e2\u20ac\u2122", " ", "\t\n", "a"])).map("".join)
)
@example("  A  lake&amp;nbsp;&lt;b&gt;\n\u00e2\u20ac\u0153quoted\u00e2\u20ac\x9d ")
@example("")
def test_clean_equals_diffusers(text: str) -> None:
    assert clean(text) == prompt_clean(text)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PromptTokenizer:
    folder = tmp_path_factory.mktemp("model")
    words = {"<pad>": 0, "</s>": 1, "<unk>": 2, "a": 3, "lake": 4}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="</s>")
    fast.save_pretrained(folder / "tokenizer")
    config = {"parameters": {"max_tokens": {"string_value": "8"}}}
    return PromptTokenizer(Settings("wan_t2v_tokenizer", folder, config))


def ask(tokenizer: PromptTokenizer, *prompts: bytes) -> dict[str, NDArray[np.int64]]:
    tensor = np.array([[prompt] for prompt in prompts], np.object_)
    (answer,) = tokenizer.run(Call({"prompt": tensor}, InProcessModels(Path("nowhere"))))
    return dict(answer)


def test_prompts_are_padded_to_the_longest_when_they_differ_in_length(tokenizer: PromptTokenizer) -> None:
    answer = ask(tokenizer, b"a   lake", b"", "lac\u00e9 a lake a".encode())
    assert answer["input_ids"].tolist() == [[3, 4, 1, 0, 0], [1, 0, 0, 0, 0], [2, 3, 4, 3, 1]]
    assert answer["attention_mask"].sum(axis=1).tolist() == [3, 1, 5]
    assert {array.dtype for array in answer.values()} == {np.dtype(np.int64)}


def test_prompt_is_refused_when_it_has_too_many_tokens(tokenizer: PromptTokenizer) -> None:
    assert ask(tokenizer, b"a " * 7)["input_ids"].shape == (1, 8)
    with pytest.raises(InvalidRequest, match="prompt must be at most 8 tokens, got 9; try a shorter text"):
        ask(tokenizer, b"a", b"a " * 8)


def test_case_is_kept_unless_the_checkpoint_has_lower_case_only(
    tokenizer: PromptTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(tokenizer, b"A Lake")["input_ids"].tolist() == [[2, 2, 1]]
    monkeypatch.setitem(tokenizer._tokenizer.init_kwargs, "do_lower_case", True)
    assert ask(tokenizer, b"A Lake")["input_ids"].tolist() == [[3, 4, 1]]


@pytest.mark.parametrize("name", ["wan_t2v/tokenizer", "framepack_i2v/tokenizer"])
def test_demo_reads_a_prompt_with_capitals_like_one_without(name: str) -> None:
    words = AutoTokenizer.from_pretrained(str(DEMO / name), local_files_only=True)
    plain, capital = (words(cased(words, text))["input_ids"] for text in ("a red ball", "A Red BALL"))
    assert plain == capital
    # What surrounds the prompt, such as LLaMA's template, keeps its case.
    assert words("Describe")["input_ids"] != words("describe")["input_ids"]


@pytest.mark.parametrize(
    ("prompt", "text"),
    [(b"a\xff", "UTF-8 text, got byte 0xff"), (b"a\0", "without NUL"), (b"x" * 2**20, "16384 characters")],
)
def test_prompt_is_refused_when_it_is_no_text_or_too_long(
    tokenizer: PromptTokenizer, prompt: bytes, text: str
) -> None:
    with pytest.raises(InvalidRequest, match=text):
        ask(tokenizer, b"a lake", prompt)


@pytest.mark.parametrize("value", ["", "0", "-1", "many", "1.5"])
def test_model_is_refused_when_its_token_limit_is_no_number(tmp_path: Path, value: str) -> None:
    config = {"parameters": {"max_tokens": {"string_value": value}}}
    with pytest.raises(InvalidRequest, match="parameter max_tokens of config.pbtxt must be a whole number"):
        PromptTokenizer(Settings("wan_t2v_tokenizer", tmp_path, config))


def test_model_is_refused_when_its_tokenizer_is_missing(tmp_path: Path) -> None:
    config = {"parameters": {"max_tokens": {"string_value": "8"}}}
    with pytest.raises(InvalidRequest, match="must be the tokenizer's folder"):
        PromptTokenizer(Settings("wan_t2v_tokenizer", tmp_path, config))
