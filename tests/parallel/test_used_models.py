"""Models that are loaded, used and fine-tuned on a mesh give what they give on one device, and each
process reads only what its devices hold.

XLA makes several devices of one CPU when it is told to before it starts, so a process of its own
calls `check_on_eight_devices`.
"""

import contextlib
import io
import math
import re
from collections import Counter

import jax
import numpy as np
import pytest
from flax import nnx

from tests.helpers.checkpoint_files import FOLDER, NAMES
from tests.helpers.kills import ROOT
from tests.parallel.test_mesh import measured, run
from tests.train.classifier.test_finetuning import arguments, place  # noqa: F401 (a fixture)
from train.imdb import main as finetune
from transformer_jax import load
from transformer_jax.__main__ import main
from transformer_jax.generation import generate as generation
from transformer_jax.generation.options import make_options
from transformer_jax.parallel.axes import named_parameters
from transformer_jax.parallel.mesh import use_mesh
from transformer_jax.parallel.placement import at_rest, gathered, split_filled
from transformer_jax.pretrained import PretrainedError, from_pretrained
from transformer_jax.pretrained.files import Entry
from transformer_jax.runtime.errors import RunFolderError
from transformer_jax.serialization import run_folder
from transformer_jax.serialization.run_folder import load_model

RUNS = ROOT / "tests/data/run_folders"
MESH = "fsdp=4,tensor=2"
PROMPTS = np.array([[1, 2, 3, 4], [5, 6, 7, 0], [8, 9, 0, 0]])  # the devices have four parts


def parameters(model):
    return dict(named_parameters(nnx.state(model, nnx.Param)))


def assert_close(found, right, atol=1e-5):
    np.testing.assert_allclose(np.asarray(found), np.asarray(right), rtol=0, atol=atol)


def check_at_rest(found, right, requests):
    """Each array is as on one device, lies as at rest, and was read part by part, each once.

    `requests` are the sizes of the parts that were read, in the order of reading.
    """
    sizes = Counter()
    for name, array in parameters(found).items():
        expected = at_rest(name, array.shape)
        assert array.sharding.is_equivalent_to(expected, array.ndim), name
        np.testing.assert_array_equal(np.asarray(array), np.asarray(right[name]))
        part = math.prod(expected.shard_shape(array.shape))
        sizes[part] += array.size // part
    assert Counter(requests) == sizes


def check_loading(monkeypatch):
    requests = []
    read_part, finite = Entry.read_part, run_folder._finite

    def counted(entry, index):
        part = read_part(entry, index)
        requests.append(part.size)
        return part

    def counted_finite(path, name, array):
        requests.append(array.size)
        return finite(path, name, array)

    monkeypatch.setattr(Entry, "read_part", counted)
    monkeypatch.setattr(run_folder, "_finite", counted_finite)
    loaders = [(from_pretrained, FOLDER / name) for name in NAMES]
    kinds = ("lm", "mlm", "imdb", "imdb-finetune", "translate")
    loaders += [(lambda folder: load_model(folder).model, RUNS / kind) for kind in kinds]
    for read, folder in loaders:
        right = parameters(read(folder))
        del requests[:]
        with use_mesh(MESH):
            found = read(folder)
            check_at_rest(found, right, requests)
    with use_mesh(MESH):
        model = from_pretrained(FOLDER / "gpt2", dtype="bfloat16")
    right = parameters(from_pretrained(FOLDER / "gpt2", dtype="bfloat16"))
    for name, array in parameters(model).items():
        assert array.dtype == right[name].dtype
        np.testing.assert_array_equal(np.asarray(array), np.asarray(right[name]))


def check_damage(folder):
    """A value that is not finite, or a file that is cut, is told as on one device."""
    with use_mesh(MESH):
        with pytest.raises(RunFolderError, match="holds values that are not finite"):
            run_folder._finite(folder, "head.kernel", np.array([1, np.nan]))
        entry = Entry("x", FOLDER / "gpt2/config.json", "F32", (2**20, 4), 0)
        with pytest.raises(PretrainedError, match="is cut: it ends inside x"):
            entry.read_part((slice(0, 1), slice(0, 4)))


def uses_of_a_language_model():
    """Every use of a language model: of three texts at once, and of a prompt."""
    writer = load(RUNS / "lm", "language")
    model = writer.trained.model
    batch = {"tokens": PROMPTS, "is_token": PROMPTS > 0, "max_tokens": 6}
    sampled = {"sampling": generation.Sampling(top_p=0.9), "key": jax.random.key(3)}
    searched = {"search": generation.BeamSearch(3), "stop": (2,)}
    yield from generation.generate(model, **batch)
    yield from generation.generate(model, **batch, **searched)
    yield np.stack(list(generation.stream(model, **batch, **sampled)))
    yield from generation.next_tokens(model, PROMPTS, PROMPTS > 0, 3)
    yield writer.generate("the", max_tokens=5, greedy=True)


def uses_of_other_models():
    yield load(RUNS / "translate").translate(["one two", "four", "three one two"])
    ((guess, *_),) = load(RUNS / "mlm").fill("the film was [MASK]")
    yield guess.token
    yield np.array([guess.probability])
    yield load(RUNS / "mlm", "encoder").embed(["a film", "a play", "the plot of a film"])
    for name in ("imdb", "imdb-finetune"):
        yield load(RUNS / name).predict_proba(["a fine film", "the plot was dull", "dull"])


def check_uses(uses):
    right = list(uses())
    with use_mesh(MESH):
        found = list(uses())
    assert len(found) == len(right) > 3
    for one, other in zip(found, right, strict=True):
        if isinstance(one, str | list) or np.asarray(one).dtype.kind in "iu":
            assert np.array_equal(one, other)
        else:
            assert_close(one, other)


def check_collectives():
    """The loop over tokens has no gather of a weight or of the cache: they lie as at work."""
    model = load_model(RUNS / "lm").model
    with use_mesh(MESH):
        graph, params = nnx.split(model, nnx.Param)
        work, rows = gathered(params), split_filled(PROMPTS, PROMPTS > 0)
        options = make_options(model, 6, None, None, (), 0)
        program = generation._generate.lower(
            graph, work, *rows, jax.random.key(0), options.traced, options=options.static
        ).compile()
    shapes = re.findall(r"= \w+\[([\d,]*)\]\S* all-gather(?:-start)?\(", program.as_text())
    largest = max(math.prod(map(int, filter(None, shape.split(",")))) for shape in shapes)
    assert largest <= PROMPTS.shape[0] * 8, shapes  # less than any kernel, or the keys of a row


def check_transformations():
    """On a mesh generation can be compiled by its caller; a caller's own mesh changes nothing."""
    model = load_model(RUNS / "lm").model

    def generate(tokens):
        return generation.generate(model, tokens, tokens > 0, max_tokens=6).tokens

    right = generate(PROMPTS)
    with use_mesh(MESH):
        assert np.array_equal(jax.jit(generate)(PROMPTS), right)
    with jax.set_mesh(jax.make_mesh((8,), ("x",))):
        assert np.array_equal(generate(PROMPTS), right)


def check_commands(capsys):
    words = ["generate", str(RUNS / "lm"), "the", "--tokens", "5", "--greedy", "--mesh", MESH]
    assert main(words) == 0
    assert capsys() == "the and \n"


def check_on_eight_devices(arguments):
    assert jax.device_count() == 8
    with pytest.MonkeyPatch.context() as patch:
        check_loading(patch)
    check_damage(RUNS / "lm")
    check_uses(uses_of_a_language_model)
    check_uses(uses_of_other_models)
    check_collectives()
    check_transformations()
    with contextlib.redirect_stdout(io.StringIO()) as out:
        check_commands(out.getvalue)
    assert finetune([*arguments, "--mesh", "data=2,fsdp=2,tensor=2"]) == 0


@pytest.mark.slow
def test_models_are_loaded_in_parts_used_and_fine_tuned_on_a_mesh(place, tmp_path):  # noqa: F811
    def with_lora(folder):
        return arguments(place, tmp_path / folder, "--epochs", "1", "--lora", "2")

    code = "from tests.parallel import test_used_models as these; these.check_on_eight_devices"
    run(["-c", f"{code}({with_lora('mesh')})"], 8)
    assert finetune(with_lora("one")) == 0
    right = measured(tmp_path / "one")
    assert len(right) == 2  # of training and of validation
    assert_close(measured(tmp_path / "mesh"), right)


def test_a_mesh_that_the_devices_do_not_fill_is_an_error_of_a_command(capsys):
    assert main(["generate", str(RUNS / "lm"), "the", "--mesh", "fsdp=3"]) == 2
    told = capsys.readouterr().err
    assert re.search(r"error: --mesh fsdp=3 needs a multiple of 3 devices, and there", told)
    assert told.count("\n") == 1
