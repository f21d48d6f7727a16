"""Published models generate with the settings of their generation_config.json.

The texts are those of Transformers 5.24 (`AutoModelForCausalLM.from_pretrained(folder).generate`)
for the checkpoints of tests/data with the files below and the prompt 5 7 11.
"""

import json
import shutil

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from tests.helpers.checkpoint_files import FOLDER
from tests.serialization.test_run_folder import write
from transformer_jax.__main__ import main
from transformer_jax.generation.beam_search import BeamSearch
from transformer_jax.generation.generate import generate, stream
from transformer_jax.generation.sampling import Sampling
from transformer_jax.inference.generation_arguments import GenerationRequest, generation_arguments
from transformer_jax.inference.load import load
from transformer_jax.runtime.errors import InputError, PretrainedError

V, PROMPT, END = 97, (5, 7, 11), 90
one_family = pytest.mark.parametrize("checkpoint", ["gpt2"], indirect=True)


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def checkpoint(request, tmp_path_factory):
    """A folder with the weights of a family and a tokenizer whose token 5 is the word t5."""
    folder = tmp_path_factory.mktemp(request.param) / request.param
    shutil.copytree(FOLDER / request.param, folder)
    names = {f"t{i}": i for i in range(V)}
    core = tokenizers.Tokenizer(models.WordLevel(names, unk_token="t0"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.save(str(folder / "tokenizer.json"))
    special = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": f"t{END}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return folder


@pytest.fixture
def files(checkpoint, tmp_path):
    """A function that writes generation_config.json (None: none), changes config.json, and returns
    the folder.
    """

    def written(generation, config=None):
        folder = tmp_path / checkpoint.name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(checkpoint, folder)
        if generation is not None:
            text = generation if isinstance(generation, str) else json.dumps(generation)
            (folder / "generation_config.json").write_text(text)
        settings = json.loads((folder / "config.json").read_text()) | (config or {})
        (folder / "config.json").write_text(json.dumps(settings))
        return folder

    return written


def arguments(folder, **asked):
    return generation_arguments(load(folder, "language"), len(PROMPT), GenerationRequest(**asked))


def text_of(folder, **asked):
    trained = load(folder, "language")
    how = generation_arguments(trained, len(PROMPT), GenerationRequest(**asked))
    found = generate(trained.model, np.array([PROMPT]), **how)
    return found.tokens[0, : int(found.lengths[0])].tolist()


FREE = {
    "gpt2": [39, 59, 24, 14, 25, 86, 36, 36, 92],
    "llama": [33, 7, 40, 38, 10, 62, 68, 38, 50],
}
PENALISED = {
    "gpt2": [39, 59, 24, 14, 25, 86, 36, 44, 92],
    "llama": [33, 1, 14, 38, 28, 92, 73, 12, 75],
}


def test_texts_are_those_of_transformers(files):
    """Every way in which the two files say where a text ends, and how tokens are chosen."""
    name = files(None).name
    free, penalised = FREE[name], PENALISED[name]
    nine = {"do_sample": False, "max_new_tokens": 9}
    first, second = free[4], free[5]
    for generation, config, expected in (
        (nine | {"eos_token_id": second}, {}, free[:6]),
        (nine | {"eos_token_id": [second, first]}, {}, free[:5]),
        (nine | {"eos_token_id": second}, {"eos_token_id": first}, free[:6]),
        (nine, {"eos_token_id": first}, free),
        (None, nine | {"eos_token_id": second}, free[:6]),
        (None, nine | {"eos_token_id": [second, first]}, free[:5]),
        (None, nine | {"repetition_penalty": 1.5}, penalised),
        (nine | {"repetition_penalty": 1.5}, {}, penalised),
        (nine | {"max_length": 5}, {}, free),
        ({"do_sample": False, "max_length": 12}, {}, free),
        (nine | {"temperature": 0.0, "top_p": 0.5, "typical_p": 0.3, "unknown": 1}, {}, free),
    ):
        assert text_of(files(generation, config)) == expected, (generation, config)


@one_family
def test_every_loop_obeys_a_list_of_stop_tokens(files):
    free = FREE[files(None).name]
    folder = files({"do_sample": False, "max_new_tokens": 9, "eos_token_id": [free[5], free[4]]})
    trained = load(folder, "language")
    how = generation_arguments(trained, len(PROMPT))
    streamed = [int(token[0]) for token in stream(trained.model, np.array([PROMPT]), **how)]
    assert streamed == free[:5]
    how = generation_arguments(trained, len(PROMPT), GenerationRequest(beams=2))
    found = generate(trained.model, np.array([PROMPT]), **how)
    searched = found.tokens[0, : int(found.lengths[0])].tolist()
    assert not {*free[4:6]} & {*searched[:-1]}


@one_family
def test_the_command_prints_the_text_and_its_options_count_before_the_file(files, capsys):
    free = FREE["gpt2"]
    words = [f"t{i}" for i in free]
    folder = files({"do_sample": False, "max_new_tokens": 9, "eos_token_id": [2, free[5]]})
    prompt = ["generate", str(folder), "t5 t7 t11"]
    for options, length in (
        ([], 6),
        (["--tokens", "4"], 4),
        (["--stop", words[2]], 3),
        (["--stop", words[4], "--stop", words[3]], 4),
        (["--stop", "t2"], 9),
    ):
        assert main([*prompt, *options]) == 0
        assert capsys.readouterr().out.split() == ["t5", "t7", "t11", *words[:length]], options


@one_family
def test_a_file_gives_the_settings_of_sampling(files):
    settings = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1}
    folder = files({"do_sample": True, "min_p": 0.05, **settings})
    assert arguments(folder)["sampling"] == Sampling(0.6, 20, 0.9, 0.05, 1.1)
    changed = arguments(folder, temperature=1.5, top_k=7)["sampling"]
    assert changed == Sampling(1.5, 7, 0.9, 0.05, 1.1)
    greedy = arguments(folder, greedy=True)["sampling"]
    assert greedy == Sampling(repetition_penalty=1.1, greedy=True)
    assert arguments(folder, greedy=True, repetition_penalty=1.0)["sampling"] is None
    neutral = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1}
    assert arguments(files({"do_sample": True, **neutral}))["sampling"] == Sampling(top_p=1.0)
    folder = files({"do_sample": False, **settings})
    assert arguments(folder, temperature=0.9)["sampling"] == Sampling(0.9, 20, 0.9, None, 1.1)
    assert arguments(files({}))["sampling"] == Sampling(0.8)


@one_family
def test_the_limit_is_that_of_the_file(files):
    for settings, expected in (
        ({}, 256),
        ({"max_length": 10}, 7),
        ({"max_length": 10, "max_new_tokens": 4}, 4),
        ({"max_length": 10, "max_new_tokens": None}, 7),
        ({"max_new_tokens": 10**9}, 10**9),
    ):
        folder = files(settings)
        room = load(folder, "language").spec.config.max_length - len(PROMPT)
        assert arguments(folder)["max_tokens"] == min(expected, room), settings
        assert arguments(folder, max_tokens=2)["max_tokens"] == 2


@one_family
def test_a_model_without_a_stop_token_in_its_files_stops_at_the_tokenizers(files):
    assert arguments(files(None, {"eos_token_id": None}))["stop"] == (END,)
    assert arguments(files(None, {"eos_token_id": [3, 4]}))["stop"] == (3, 4)
    assert arguments(files({"pad_token_id": 8}))["stop"] == ()
    assert arguments(files({"pad_token_id": 8}))["pad_id"] == 8
    usual = arguments(files({}))["pad_id"]
    assert arguments(files({"pad_token_id": -1}))["pad_id"] == usual
    assert arguments(files({}), stop=(6,))["stop"] == (6,)


WRONG = [
    ("{", "generation_config.json cannot be read"),
    ("[1]", "generation_config.json is not a configuration"),
    ("", "generation_config.json cannot be read"),
    ({"eos_token_id": None}, "eos_token_id is null"),
    ({"eos_token_id": []}, r"eos_token_id must be a token id or a list of token ids, got \[\]"),
    ({"eos_token_id": "5"}, "eos_token_id must be a token id or a list"),
    ({"eos_token_id": True}, "eos_token_id must be a token id or a list"),
    ({"eos_token_id": 2.0}, "eos_token_id must be a token id or a list"),
    ({"eos_token_id": [2, None]}, "eos_token_id must be a token id or a list"),
    ({"eos_token_id": [[2]]}, "eos_token_id must be a token id or a list"),
    ({"eos_token_id": V}, "eos_token_id has the id 97; the vocabulary has the ids 0 to 96"),
    ({"eos_token_id": [3, -1]}, "eos_token_id has the id -1"),
    ({"pad_token_id": V}, "pad_token_id has the id 97"),
    ({"pad_token_id": [1]}, "pad_token_id must be a token id, got"),
    ({"bos_token_id": 10**20}, "bos_token_id has the id"),
    ({"do_sample": 1}, "do_sample must be true or false"),
    ({"do_sample": "yes"}, "do_sample must be true or false"),
    ({"temperature": "hot"}, "temperature must be a number"),
    ({"temperature": True}, "temperature must be a number"),
    ({"top_k": 5.5}, "top_k must be a whole number"),
    ({"top_k": -1}, "top_k must be 0 or more"),
    ({"top_p": [1]}, "top_p must be a number"),
    ({"min_p": "x"}, "min_p must be a number"),
    ({"max_new_tokens": 0}, "max_new_tokens must be 1 or more"),
    ({"max_new_tokens": 2.5}, "max_new_tokens must be a whole number"),
    ({"max_length": "20"}, "max_length must be a whole number"),
    ({"max_length": 3}, "max_length=3 leaves no room after a prompt of 3 tokens"),
    ({"num_beams": 0}, "num_beams must be 1 or more"),
    ({"num_beams": 4}, "num_beams=4 is not supported"),
    ({"do_sample": True, "temperature": 0.0}, "temperature must be above 0; got 0.0"),
    ('{"do_sample": true, "temperature": NaN}', "temperature must be a number, got nan"),
    ({"do_sample": True, "top_p": 1.5}, r"top_p must be in \(0, 1\]; got 1.5"),
    ({"repetition_penalty": 0.0, "do_sample": False}, "repetition_penalty must be above 0"),
    ({"repetition_penalty": -1, "do_sample": True}, "repetition_penalty must be above 0"),
    ({"do_sample": True, "typical_p": 0.9}, "typical_p=0.9 is not supported"),
    ({"epsilon_cutoff": 3e-4}, "epsilon_cutoff=0.0003 is not supported"),
    ({"do_sample": True, "eta_cutoff": 3e-4}, "eta_cutoff=0.0003 is not supported"),
    ({"do_sample": True, "top_h": 0.4}, "top_h=0.4 is not supported"),
    ({"min_length": 5}, "min_length=5 is not supported; set it to 0, or remove it"),
    ({"min_new_tokens": 5}, "min_new_tokens=5 is not supported"),
    ({"no_repeat_ngram_size": 3}, "no_repeat_ngram_size=3 is not supported"),
    ({"encoder_no_repeat_ngram_size": 3}, "encoder_no_repeat_ngram_size=3 is not supported"),
    ({"encoder_repetition_penalty": 1.2}, "encoder_repetition_penalty=1.2 is not supported"),
    ({"bad_words_ids": [[4]]}, "bad_words_ids=.* is not supported; set it to null, or remove it"),
    ({"suppress_tokens": [4]}, "suppress_tokens=.* is not supported"),
    ({"begin_suppress_tokens": [4]}, "begin_suppress_tokens=.* is not supported"),
    ({"sequence_bias": [[[4], 1.0]]}, "sequence_bias=.* is not supported"),
    ({"forced_bos_token_id": 4}, "forced_bos_token_id=4 is not supported"),
    ({"forced_eos_token_id": 4}, "forced_eos_token_id=4 is not supported"),
    ({"exponential_decay_length_penalty": [4, 1.1]}, "exponential_decay_length_penalty=.* is not"),
    ({"stop_strings": "end"}, "stop_strings='end' is not supported"),
    ({"token_healing": True}, "token_healing=True is not supported; set it to false, or remove it"),
    ({"guidance_scale": 1.5}, "guidance_scale=1.5 is not supported"),
    ({"watermarking_config": {"bias": 2.0}}, "watermarking_config=.* is not supported"),
    ({"num_return_sequences": 2}, "num_return_sequences=2 is not supported"),
    ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha=0.6 is not supported"),
    ({"max_time": 1.5}, "max_time=1.5 is not supported"),
]


@one_family
def test_what_is_not_obeyed_is_one_line_that_names_the_file(files):
    folder = files(None)
    trained = load(folder, "language")
    for content, says in WRONG:
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / "generation_config.json").write_text(text)
        with pytest.raises(PretrainedError, match=says) as raised:
            generation_arguments(trained, len(PROMPT))
        assert "\n" not in str(raised.value)
        assert str(folder / "generation_config.json") in str(raised.value)


@one_family
def test_fields_without_an_effect_are_fine(files):
    settings = {
        "_from_model_config": True, "transformers_version": "5.24.0", "bos_token_id": 1,
        "eos_token_id": 2, "pad_token_id": None, "use_cache": False, "num_beams": 1,
        "length_penalty": 2.0, "early_stopping": True, "typical_p": 1.0, "epsilon_cutoff": 0.0,
        "min_length": 0, "min_new_tokens": None, "no_repeat_ngram_size": 0, "bad_words_ids": None,
        "suppress_tokens": [], "stop_strings": None, "guidance_scale": 1, "output_scores": True,
        "num_return_sequences": 1, "renormalize_logits": True, "cache_implementation": "static",
        "diversity_penalty": 0.0, "num_beam_groups": 1, "temperature": None, "chat_format": "x",
    }  # fmt: skip
    found = arguments(files(settings))
    assert (found["stop"], found["sampling"]) == ((2,), Sampling(0.8))


@one_family
@pytest.mark.parametrize(
    ("settings", "asked", "error", "says"),
    [
        ({}, {"greedy": True, "temperature": 0.5}, InputError, "leave out temperature"),
        ({}, {"beams": 2, "top_k": 5, "top_p": 0.5}, InputError, "leave out top_k, top_p"),
        ({}, {"beams": 2, "repetition_penalty": 1.2}, InputError, "no repetition penalty"),
        ({"repetition_penalty": 1.2}, {"beams": 2}, InputError, "no repetition penalty"),
        ({"length_penalty": 2.0}, {"beams": 2}, PretrainedError, "length_penalty=2.0 is not"),
        ({"early_stopping": True}, {"beams": 2}, PretrainedError, "early_stopping=True is not"),
        ({}, {"beams": 0}, ValueError, "beams must be 1 or more"),
        ({}, {"repetition_penalty": 0.0, "greedy": True}, ValueError, "must be above 0"),
    ],
)
def test_requests_that_contradict_are_one_line(files, settings, asked, error, says):
    with pytest.raises(error, match=says) as raised:
        arguments(files(settings), **asked)
    assert "\n" not in str(raised.value)


@one_family
def test_a_number_of_beams_that_is_asked_for_counts_before_that_of_the_file(files):
    folder = files({"num_beams": 4, "do_sample": True})
    assert arguments(folder, beams=3)["search"] == BeamSearch(3)
    assert arguments(folder, beams=1)["sampling"] == Sampling()


def test_a_run_folder_has_no_such_file(tmp_path):
    """A file that another program left there changes nothing."""
    write(tmp_path / "run", "LanguageModel")
    (tmp_path / "run" / "generation_config.json").write_text('{"top_k": 3}')
    trained = load(tmp_path / "run", "language")
    found = generation_arguments(trained, 2)
    assert found["stop"] == (trained.tokenizer.end_id,)
    assert found["sampling"] == Sampling(0.8)
    assert found["max_tokens"] == trained.spec.config.max_length - 2
