"""Sentence vectors: those of sentence-transformers, whatever the batch, and the commands that use
them.
"""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.data.checkpoints.sentences import SENTENCES, VECTORS
from tests.helpers.checkpoint_files import FOLDER, minilm
from transformer_jax.__main__ import main
from transformer_jax.inference.embed import SentenceEncoder, most_similar
from transformer_jax.inference.sentence_files import Pooling, read_pooling
from transformer_jax.pretrained import PretrainedError

WORDS = "the a film was good bad dull long sea man woman plays sings eats and not".split()
TEXTS = [
    "the film was good",
    "a man eats",
    "",
    "the sea and the long long film was not bad",
    "dull",
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A sentence encoder in sentence-transformers' layout, of random weights."""
    folder = tmp_path_factory.mktemp("sentences")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(FOLDER / "bert-old" / name, folder)
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"]
    words = [*specials, *WORDS, *letters, *(f"[unused{i}]" for i in range(97))][:97]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    write_modules(folder)
    return folder


def write_modules(folder, pooling=None, normalise=True, length=12):
    kinds = ["Transformer", "Pooling"] + ["Normalize"] * normalise
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": "" if i == 0 else f"{i}_{kind}",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = pooling or {"pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length}))


@pytest.fixture(scope="module")
def encoder(tiny):
    return SentenceEncoder.load(tiny)


# The vectors
# -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real():
    return SentenceEncoder.load(minilm())


def test_vectors_of_a_real_model_are_those_of_sentence_transformers(real):
    right = load_file(VECTORS)["vectors"]
    np.testing.assert_allclose(real(SENTENCES), right, atol=1e-5)


def test_the_ranking_is_that_of_sentence_transformers(real):
    found, right = real(SENTENCES), load_file(VECTORS)["vectors"]
    for one, other in zip(found, right, strict=True):
        ours = [i for i, _ in most_similar(one, found, len(SENTENCES))]
        theirs = [i for i, _ in most_similar(other, right, len(SENTENCES))]
        assert ours == theirs


def test_contextual_vectors_of_every_layer_tell_two_banks_apart(real):
    """SPEC E5: what a word's vector is depends on its sentence; in the table below the layers it
    does not.
    """
    import jax.numpy as jnp

    from transformer_jax.pretrained import from_pretrained

    model = from_pretrained(minilm())
    texts = ["he sat by the river bank", "the bank lent him money", "the bank gave her a loan"]
    tokens, is_token, _ = real.tokenizer(texts)
    _, states = model(jnp.asarray(tokens), jnp.asarray(is_token), return_states=True)
    assert [state.shape for state in states] == [(3, tokens.shape[1], 384)] * 7
    places = [list(row).index(real.tokenizer.id_of("bank")) for row in tokens]

    def cosine(a, b):
        return float(a @ b / jnp.linalg.norm(a) / jnp.linalg.norm(b))

    rows = [
        model.embedding.token.embedding[row[at]] for row, at in zip(tokens, places, strict=True)
    ]
    last = [states[-1][i, at] for i, at in enumerate(places)]
    assert cosine(rows[0], rows[1]) > 0.9999
    assert cosine(last[0], last[1]) < cosine(last[1], last[2]) - 0.05


def test_a_vector_does_not_depend_on_its_batch(encoder):
    together = encoder(TEXTS)
    alone = np.concatenate([encoder([text]) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=1e-6)
    small = encoder(TEXTS, batch_tokens=16)
    np.testing.assert_allclose(together, small, atol=1e-6)


def test_vectors_have_length_one_where_the_files_say_so(encoder, tiny, tmp_path):
    np.testing.assert_allclose(np.linalg.norm(encoder(TEXTS), axis=1), 1, atol=1e-6)
    shutil.copytree(tiny, tmp_path, dirs_exist_ok=True)
    write_modules(tmp_path, normalise=False)
    plain = SentenceEncoder.load(tmp_path)(TEXTS[:1])
    assert abs(np.linalg.norm(plain) - 1) > 0.1
    np.testing.assert_allclose(plain / np.linalg.norm(plain), encoder(TEXTS[:1]), atol=1e-6)


def test_a_text_is_cut_where_the_files_say(encoder):
    long = " ".join(["film"] * 30)
    np.testing.assert_array_equal(encoder([long]), encoder([" ".join(["film"] * 10)]))
    assert np.abs(encoder([long]) - encoder([" ".join(["film"] * 9)])).max() > 1e-4


def test_the_command_takes_no_run_folder_that_is_none(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model": []}')
    (tmp_path / "texts.txt").write_text("good\n")
    arguments = ["embed", str(tmp_path), str(tmp_path / "texts.txt"), "-o", "x.npy"]
    assert main(arguments) == 2
    assert "model_type is missing" in capsys.readouterr().err


def test_no_texts_give_no_vectors(encoder):
    assert encoder([]).shape == (0, 24)


def test_the_most_similar_come_first_and_nothing_divides_by_zero():
    vectors = np.array([[0, 0], [1, 0], [0, 2], [3, 3]], np.float32)
    found = most_similar(np.array([0, 5], np.float32), vectors, 3)
    assert [i for i, _ in found] == [2, 3, 0]
    np.testing.assert_allclose([cosine for _, cosine in found], [1, 0.5**0.5, 0], atol=1e-6)


# What the files say
# ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": "mean"}, "mean"),
    ],
)
def test_pooling_is_read_in_old_and_new_spelling(content, name, tmp_path):
    write_modules(tmp_path, content)
    assert read_pooling(tmp_path) == Pooling(name, normalised=True, max_length=12)


def test_newer_files_have_the_length_with_the_tokenizer(tmp_path):
    write_modules(tmp_path)
    (tmp_path / "sentence_bert_config.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 7}))
    assert read_pooling(tmp_path).max_length == 7
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 10**30}))
    assert read_pooling(tmp_path).max_length is None


def test_without_the_files_it_is_the_mean(tmp_path):
    assert read_pooling(tmp_path) == Pooling("mean", normalised=False, max_length=None)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (
            lambda f: write_modules(f, {"pooling_mode_mean_sqrt_len_tokens": True}),
            "pooling by pooling_mode_mean_sqrt_len_tokens is not supported",
        ),
        (
            lambda f: write_modules(
                f, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
            ),
            "pooling by pooling_mode_cls_token, pooling_mode_mean_tokens is not supported",
        ),
        (
            lambda f: write_modules(f, {"pooling_mode": "attention"}),
            "pooling_mode is 'attention'; known are cls, mean",
        ),
        (
            lambda f: (f / "modules.json").write_text(
                json.dumps([{"type": "x.Dense", "path": "2_Dense"}])
            ),
            "a module of the type 'x.Dense' is not supported",
        ),
        (lambda f: (f / "modules.json").write_text("{}]"), "is not a list of modules"),
        (lambda f: shutil.rmtree(f / "1_Pooling"), r"has no config\.json"),
        (lambda f: write_modules(f, length=2), "max_seq_length must be 3 or more, got 2"),
        (lambda f: write_modules(f, length=True), "max_seq_length must be 3 or more, got True"),
        (
            lambda f: (f / "sentence_bert_config.json").write_text('{"do_lower_case": 1}'),
            "do_lower_case must be true or false, got 1",
        ),
        (
            lambda f: (f / "config_sentence_transformers.json").write_text(
                '{"default_prompt_name": "title"}'
            ),
            "default_prompt_name='title' is not among the prompts query, document",
        ),
    ],
)
def test_what_cannot_be_pooled_is_one_line(spoil, says, tmp_path):
    write_modules(tmp_path)
    spoil(tmp_path)
    with pytest.raises(PretrainedError, match=says):
        read_pooling(tmp_path)


# The commands
# ----------------------------------------------------------------------------------------------


def test_embed_writes_the_vectors_a_row_a_line(tiny, encoder, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    out = tmp_path / "vectors.npy"
    assert main(["embed", str(tiny), str(tmp_path / "texts.txt"), "-o", str(out)]) == 0
    np.testing.assert_allclose(np.load(out), encoder(TEXTS), atol=1e-6)
    assert f"wrote {out}: 5 vectors of length 24" in capsys.readouterr().err


def test_an_interrupted_embed_leaves_the_file_of_before(tiny, tmp_path, monkeypatch):
    def interrupted(encoder, texts, *, progress):
        yield np.array([1]), np.ones((1, 24), np.float32)
        raise KeyboardInterrupt

    monkeypatch.setattr(SentenceEncoder, "stream", interrupted)
    out = tmp_path / "vectors.npy"
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    out.write_text("before")
    with pytest.raises(KeyboardInterrupt):
        main(["embed", str(tiny), str(tmp_path / "texts.txt"), "-o", str(out)])
    assert out.read_text() == "before" and len([*tmp_path.iterdir()]) == 2


def test_similar_prints_the_best_lines_first(tiny, encoder, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    arguments = ["similar", str(tiny), TEXTS[1], str(tmp_path / "texts.txt"), "--top", "2"]
    assert main(arguments) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.split(maxsplit=1) == ["1.0000", TEXTS[1]]
    found = encoder(TEXTS)
    (_, _), (i, cosine) = most_similar(found[1], found, 2)
    assert second == f"{cosine:7.4f}  {TEXTS[i]}"


def test_fill_prints_the_likeliest_words(tmp_path, tiny, capsys):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(FOLDER / "bert" / name, tmp_path)
    shutil.copy(tiny / "vocab.txt", tmp_path)
    assert main(["fill", str(tmp_path), "the [MASK] was [MASK]", "--top", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7 and lines[3] == ""
    shares = [float(line.split("%")[0]) for line in lines if line]
    assert shares[:3] == sorted(shares[:3], reverse=True)
    assert all("[MASK]" in line for line in lines if line)  # the other one stays


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["embed", "{tiny}", "{texts}", "-o", "x.txt"], "--out must end with .npy, got x.txt"),
        (["embed", "{tiny}", "{empty}", "-o", "x.npy"], "empty.txt holds no text"),
        (
            ["embed", "{tiny}", "{texts}", "-o", "/nowhere/x.npy"],
            "/nowhere/x.npy cannot be written",
        ),
        (["embed", "{tiny}/no", "{texts}", "-o", "x.npy"], "is not a folder; pass one that holds"),
        (["similar", "{tiny}", "q", "{texts}", "--top", "0"], "--top must be 1 or more; got 0"),
        (
            ["embed", "{gpt2}", "{texts}", "-o", "x.npy"],
            "a gpt2 is of the kind language, not encoder",
        ),
        (["fill", "{tiny}", "no mask"], "lacks cls.predictions"),
        (["fill", "{masked}", "no mask"], "the text has no [MASK]; put one where a word is wanted"),
        (["fill", "{masked}", "[MASK] " * 40], "the text has 42 tokens; the model holds 32"),
        (["fill", "{masked}", "[MASK]", "--top", "0"], "--top must be 1 or more; got 0"),
    ],
)
def test_a_mistake_is_one_line(arguments, says, tiny, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("good\n")
    (tmp_path / "empty.txt").write_text("")
    masked = tmp_path / "masked"
    masked.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(FOLDER / "bert" / name, masked)
    shutil.copy(tiny / "vocab.txt", masked)
    places = {
        "gpt2": FOLDER / "gpt2",
        "tiny": tiny,
        "texts": tmp_path / "texts.txt",
        "empty": tmp_path / "empty.txt",
        "masked": masked,
    }
    assert main([argument.format(**places) for argument in arguments]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert says in error
