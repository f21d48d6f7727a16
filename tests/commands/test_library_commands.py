"""Every documented command that trains or uses a model runs."""

import pytest

pytestmark = pytest.mark.commands

# What stands in braces is a fixture: data, or a run folder of a training program.
COMMANDS = [
    "train.imdb --data {reviews} --unlabelled --vectors --max-steps 2 --out out",
    "train.imdb --data {reviews} --recipe tutorial --tokenizer char --max-length 16 --max-steps 1"
    " --no-baseline --out out",
    "train.imdb --data {reviews} --pretrained {encoder} --max-steps 2 --no-baseline --out out",
    "train.classify --data {reviews} --max-steps 1 --no-baseline --out out",
    "train.imdb --resume {classifier}",
    "train.imdb --config {classifier}/options.json --max-steps 1 --no-baseline --out out",
    "transformer_jax predict {classifier} 'A wonderful film.' 'Dull from start to finish.'",
    "transformer_jax predict {classifier} --file {reviews}/test.parquet -o labelled.csv",
    "transformer_jax attention {classifier} 'A wonderful film.' --html maps.html",
    "transformer_jax explain {classifier} 'A wonderful film.'",
    "transformer_jax generate {writer} 'The film '",
    "transformer_jax next {writer} 'The film '",
    "transformer_jax translate {translator} 'word1 word2'",
    "transformer_jax embed {encoder} {book} -o vectors.npy",
    "transformer_jax similar {encoder} 'a film about the sea' {book}",
    "transformer_jax fill {encoder} 'The film was [MASK].'",
    "transformer_jax runs {folder}",
    "transformer_jax export {finetuned} out",
    "transformer_jax walk 'money bank grows'",
    "transformer_jax walk --list",
    "transformer_jax walk --worked cat_sat",
    "transformer_jax build",
    "transformer_jax tokens unbelievable",
    "transformer_jax cost bert-base --length 512",
    "transformer_jax cost gpt2 --mesh data=2,fsdp=2,tensor=2 --device tpu-v5p --batch 8",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_runs(command, python, words_of, tmp_path, request):
    python(words_of(command, request), tmp_path)


def test_training_on_a_mesh_is_simulated_as_the_guide_shows(python, book, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "8")
    tiny = "--max-steps 2 --layers 1 --embed-dim 16 --batch-tokens 512 --length 32"
    mesh = ["--mesh", "data=2,fsdp=2,tensor=2", *tiny.split()]
    python(["train.lm", "--data", book, *mesh, "--out", "out"], tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        "imdb DATA={reviews} ARGS='--max-steps 2 --no-baseline --out {tmp_path}/run'",
        "imdb-best DATA={reviews} BEST={tmp_path}/best ARGS='--max-steps 2'",
        "docs ARGS='--site-dir {tmp_path}/site'",
        "figures ARGS=--list",
        "serve ARGS=--help",  # the build is that of `make docs`
    ],
)
def test_the_target_of_make_runs(words, make, words_of, request):
    make(words_of(words, request))
