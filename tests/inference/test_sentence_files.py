"""Claims about inference/sentence_files.py: the settings of sentence-transformers are obeyed.

The numbers are those of sentence-transformers 6.2 on the same folder.
"""

import json
import shutil

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from tests.inference.test_embed import tiny, write_modules  # noqa: F401 (a fixture)
from transformer_jax.__main__ import main
from transformer_jax.inference.embed import SentenceEncoder, most_similar
from transformer_jax.inference.sentence_files import Pooling, read_pooling
from transformer_jax.pretrained import PretrainedError

MODEL, LENGTHS = "config_sentence_transformers.json", "sentence_bert_config.json"
TEXTS = ["The FILM was Good", "the sea and the long long film was not bad"]
PLAIN = [[0.14675, 0.42069, -0.01328, -0.01879], [0.1311, 0.54394, -0.02342, -0.02657]]
SEA = {"prompts": {"q": "the sea "}, "default_prompt_name": "q"}
CASED = {"tokenizer_config.json": {"do_lower_case": False}}
# By case: further files, the length of the vectors, and their first values.
CASES = {
    "no settings": ({}, 24, PLAIN),
    "truncate_dim": ({MODEL: {"truncate_dim": 8}}, 8, PLAIN),
    "a truncate_dim beyond the width": ({MODEL: {"truncate_dim": 800}}, 24, PLAIN),
    "no truncate_dim": ({MODEL: {"truncate_dim": None}}, 24, PLAIN),
    "a prompt": (
        {MODEL: SEA},
        24, [[0.14293, 0.51065, -0.02572, 0.00546], [0.14887, 0.49945, -0.01673, -0.01681]],
    ),
    "an empty prompt": ({MODEL: {"prompts": {"q": ""}, "default_prompt_name": "q"}}, 24, PLAIN),
    "a prompt without a text": (
        {MODEL: {"prompts": {"q": None}, "default_prompt_name": "q"}}, 24, PLAIN,
    ),
    "the usual prompt": ({MODEL: {"default_prompt_name": "query"}}, 24, PLAIN),
    "a prompt that is not the default": ({MODEL: {"prompts": {"q": "the sea "}}}, 24, PLAIN),
    "cased": (CASED, 24, [[0.18021, 0.47126, -0.02665, -0.05241], PLAIN[1]]),
    "lower-cased": (
        CASED | {LENGTHS: {"max_seq_length": 12, "do_lower_case": True}}, 24, PLAIN,
    ),
    "the file of RoBERTa": (
        {LENGTHS: None, "sentence_roberta_config.json": {"max_seq_length": 5}},
        24, [[0.15548, 0.38155, 0.0027, 0.00611], [0.16783, 0.39283, -0.00979, 0.01337]],
    ),
    "a prompt excluded that is none": (
        {"1_Pooling/config.json": {"pooling_mode": "mean", "include_prompt": False}}, 24, PLAIN,
    ),
    "no modules, and a length of the tokenizer": (
        {"modules.json": None, "tokenizer_config.json": {"model_max_length": 6}},
        24, [[0.76658, 2.19754, -0.06937, -0.09815], [0.92223, 1.94053, -0.08728, 0.11626]],
    ),
    "arguments without an effect": (
        {LENGTHS: {
            "max_seq_length": 12, "tokenizer_args": {"use_fast": True}, "config_args": {},
            "model_args": {"attn_implementation": "eager"}, "unpad_inputs": False,
            "modality_config": {"text": {
                "method": "forward", "method_output_name": "last_hidden_state"}},
            "module_output_name": "token_embeddings",
        }},
        24, PLAIN,
    ),
    "no pooling named": ({"1_Pooling/config.json": {}}, 24, PLAIN),
    "a list of poolings": (
        {"1_Pooling/config.json": {"pooling_mode": ["cls"]}},
        24, [[0.06543, 0.39608, -0.00275, -0.02052], [0.03406, 0.44768, -0.01678, -0.04382]],
    ),
}  # fmt: skip


def modules(folder, *kinds, module="sentence_transformers.models"):
    names = [f"{i}_{kind}" if i else "" for i, kind in enumerate(kinds)]
    content = [
        {"type": f"{module}.{kind}", "path": name} for kind, name in zip(kinds, names, strict=True)
    ]
    (folder / "modules.json").write_text(json.dumps(content))
    for name in names[1:]:
        if name.endswith("Pooling"):
            (folder / name).mkdir(exist_ok=True)
            (folder / name / "config.json").write_text("{}")


@pytest.mark.parametrize("case", CASES)
def test_vectors_are_those_of_sentence_transformers(case, tiny, tmp_path):  # noqa: F811
    files, length, right = CASES[case]
    shutil.copytree(tiny, tmp_path, dirs_exist_ok=True)
    for name, content in files.items():
        if content is None:
            (tmp_path / name).unlink()
        else:
            (tmp_path / name).write_text(json.dumps(content))
    encoder = SentenceEncoder.load(tmp_path)
    found = encoder(TEXTS)
    assert found.shape == (2, length) and encoder.embed_dim == length
    np.testing.assert_allclose(found[:, :4], right, atol=2e-5)


def test_dropout_and_a_norm_before_the_pooling_change_nothing(tmp_path):
    modules(tmp_path, "Transformer", "Normalize", "Dropout", "Pooling", "Dropout")
    assert read_pooling(tmp_path) == Pooling("mean", normalised=False)
    modules(tmp_path, "Transformer", "Pooling", "Dropout", "Normalize")
    assert read_pooling(tmp_path) == Pooling("mean", normalised=True)
    modules(tmp_path, "Transformer", "Pooling", module="sentence_transformers.base.modules.x")
    assert read_pooling(tmp_path) == Pooling("mean")


def test_a_text_without_tokens_has_the_vector_zero(tiny, tmp_path):  # noqa: F811
    """So it is in sentence-transformers if the tokenizer adds no special tokens."""
    shutil.copytree(tiny, tmp_path, dirs_exist_ok=True)
    lines = (tmp_path / "vocab.txt").read_text().splitlines()
    core = tokenizers.Tokenizer(models.WordLevel({w: i for i, w in enumerate(lines)}, "[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.save(str(tmp_path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    found = SentenceEncoder.load(tmp_path)(["", "the sea"])
    np.testing.assert_array_equal(found[0], 0)
    np.testing.assert_allclose(np.linalg.norm(found[1]), 1, atol=1e-6)


@pytest.mark.parametrize(
    ("similarity", "right"),
    [
        ("cosine", [(1, 1.0), (0, 0.8), (2, 0.0)]),
        ("dot", [(1, 10.0), (0, 4.0), (2, 0.0)]),
        ("euclidean", [(0, -1.0), (2, -(5**0.5)), (1, -(5**0.5))]),
        ("manhattan", [(0, -1.0), (1, -3.0), (2, -3.0)]),
    ],
)
def test_the_similarity_is_that_of_the_files(similarity, right, tmp_path):
    query, vectors = np.array([2.0, 1.0]), np.array([[2.0, 0.0], [4.0, 2.0], [0.0, 0.0]])
    found = dict(most_similar(query, vectors, 3, similarity))
    wanted = dict(right) | ({0: 2 / 5**0.5} if similarity == "cosine" else {})
    for row, value in wanted.items():
        assert abs(found[row] - value) < 1e-6
    modules(tmp_path, "Transformer", "Pooling")
    (tmp_path / MODEL).write_text(json.dumps({"similarity_fn_name": similarity}))
    assert read_pooling(tmp_path).similarity == similarity


def test_a_similarity_that_is_unknown_means_the_cosine(tmp_path):
    modules(tmp_path, "Transformer", "Pooling")
    (tmp_path / MODEL).write_text('{"similarity_fn_name": "maxsim"}')
    assert read_pooling(tmp_path).similarity == "cosine"
    with pytest.raises(ValueError, match="euclidean or manhattan, got 'maxsim'"):
        most_similar(np.zeros(2), np.zeros((1, 2)), 1, "maxsim")


def test_similar_prints_the_similarity_of_the_files(tiny, tmp_path, capsys):  # noqa: F811
    shutil.copytree(tiny, tmp_path, dirs_exist_ok=True)
    (tmp_path / MODEL).write_text('{"similarity_fn_name": "euclidean"}')
    (tmp_path / "texts.txt").write_text("a man eats\nthe sea\n")
    assert main(["similar", str(tmp_path), "a man eats", str(tmp_path / "texts.txt")]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == " 0.0000  a man eats" and second.startswith("-")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (MODEL, {"truncate_dim": 0}, "truncate_dim must be 1 or more, got 0"),
        (MODEL, {"truncate_dim": "8"}, "truncate_dim must be a whole number, got '8'"),
        (MODEL, {"truncate_dim": 8.5}, "truncate_dim must be a whole number, got 8.5"),
        (MODEL, {"default_prompt_name": 3}, "default_prompt_name must be a string, got 3"),
        (MODEL, {"prompts": ["a"]}, r"prompts must be an object, got \['a'\]"),
        (MODEL, {"prompts": {"q": 1}, "default_prompt_name": "q"}, "q must be a string, got 1"),
        (MODEL, {"model_type": "SparseEncoder"}, "model_type='SparseEncoder' is not supported"),
        (MODEL, SEA, "include_prompt=False is not supported, True is"),
        (LENGTHS, {"transformer_task": "retrieval"}, "transformer_task='retrieval' is not"),
        (LENGTHS, {"module_output_name": "x"}, "module_output_name='x' is not supported"),
        ("2_Normalize/config.json", {"module_input_name": "x"}, "module_input_name='x' is not"),
        ("2_Normalize/config.json", {"module_output_name": "x"}, "module_output_name='x' is not"),
        (LENGTHS, {"processor_kwargs": {"do_lower_case": True}}, "'do_lower_case' in processor_kw"),
        (LENGTHS, {"tokenizer_args": {"model_max_length": 5}}, "'model_max_length' in tokenizer_"),
        (LENGTHS, {"config_args": {"num_hidden_layers": 1}}, "'num_hidden_layers' in config_args"),
        (LENGTHS, {"processing_kwargs": {"text": {"max_length": 5}}}, "processing_kwargs and"),
        (LENGTHS, {"tokenizer_name_or_path": "bert"}, "tokenizer_name_or_path are not supported"),
        (
            LENGTHS,
            {"modality_config": {"text": {"method_output_name": "pooler_output"}}},
            "method_output_name='pooler_output' is not supported",
        ),
    ],
)
def test_a_setting_that_cannot_be_obeyed_is_one_line(name, content, says, tmp_path):
    write_modules(tmp_path, {"pooling_mode": "mean", "include_prompt": False})
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(PretrainedError, match=says) as error:
        read_pooling(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kinds", "says"),
    [
        (("Transformer",), "must be a Transformer and then a Pooling, got Transformer"),
        ((), "must be a Transformer and then a Pooling, got none"),
        (("Pooling", "Transformer"), "got Pooling, Transformer"),
        (("Transformer", "Pooling", "Dense"), "a module 'Dense' is not supported"),
        (("Transformer", "Pooling", "LayerNorm"), "a module 'LayerNorm' is not supported"),
    ],
)
def test_modules_that_cannot_be_computed_are_one_line(kinds, says, tmp_path):
    modules(tmp_path, *kinds)
    with pytest.raises(PretrainedError, match=says):
        read_pooling(tmp_path)


def test_a_model_in_a_folder_of_its_own_is_refused(tmp_path):
    modules(tmp_path, "Transformer", "Pooling")
    content = json.loads((tmp_path / "modules.json").read_text())
    content[0]["path"] = "."
    (tmp_path / "modules.json").write_text(json.dumps(content))
    assert read_pooling(tmp_path) == Pooling()
    content[0]["path"] = "0_Transformer"
    (tmp_path / "modules.json").write_text(json.dumps(content))
    with pytest.raises(PretrainedError, match="the path '0_Transformer' of the Transformer"):
        read_pooling(tmp_path)
