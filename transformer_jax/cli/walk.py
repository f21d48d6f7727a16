"""Follow one text through attention, array by array.

    python -m transformer_jax walk "money bank grows"         a small model with random parameters
    python -m transformer_jax walk "money bank grows" --causal --html walk.html
    python -m transformer_jax walk "money bank grows" --beside "river bank flows"
    python -m transformer_jax walk "A fine film." --run RUN   the first layer of a classifier
    python -m transformer_jax walk --worked cat_sat           a worked example from the literature
    python -m transformer_jax walk --list                     the list of worked examples

prints the tokens, their embeddings and positions, Q, K and V, the raw, scaled and masked scores,
the attention weights, the weighted sum of the values, and the output of all heads. Each array is
printed with its equation and its axes:

    T queries, S keys, D embedding, N heads, H features of a head, V vocabulary
    (if a trained classifier reads patches of neighbouring words, a row is a patch)
"""

import argparse
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from transformer_jax.cli import html
from transformer_jax.cli.matrix_text import clip, show_step, wrap
from transformer_jax.cli.terminal import did_you_mean, writable, write_page
from transformer_jax.models.config import ClassifierConfig
from transformer_jax.runtime.errors import InputError, TokenizerError
from transformer_jax.serialization.folder_files import CLASSIFIER_PROGRAMS, check_run_folder
from transformer_jax.walkthrough.attention_steps import (
    attention_steps,
    context_step,
    word_model,
    word_steps,
)
from transformer_jax.walkthrough.step import Step

if TYPE_CHECKING:
    from transformer_jax.interpret.activations import Activations

DIM, HEADS, SEED = 8, 2, 0
MOST_WORDS = 1000  # then an attention map has a million weights


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", metavar="TEXT", nargs="?", help="text to follow")
    parser.add_argument(
        "--beside", metavar="TEXT", help="second text; compares the words that are in both texts"
    )
    parser.add_argument("--causal", action="store_true", help="mask the words after each query")
    parser.add_argument("--dim", type=int, help=f"embedding size D (default: {DIM})")
    parser.add_argument("--heads", type=int, help=f"number of heads N (default: {HEADS})")
    parser.add_argument("--seed", type=int, help=f"seed of the parameters (default: {SEED})")
    parser.add_argument("--head", type=int, default=0, help="head to show (default: 0)")
    parser.add_argument(
        "--run", dest="folder", metavar="RUN", help="run folder of train.classify or train.imdb"
    )
    parser.add_argument("--layer", type=int, help="layer of the run to show (default: 0)")
    parser.add_argument("--worked", metavar="ID", help="show a worked example instead of a text")
    parser.add_argument("--list", action="store_true", help="list the worked examples")
    parser.add_argument(
        "--html", metavar="FILE", help="also write an HTML page with coloured matrices"
    )


def run(options: argparse.Namespace) -> None:
    _check_together(options)
    if options.list:
        _list_examples()
        return
    title, about, steps, after = (
        _walk(options) if options.worked is None else _worked(options.worked)
    )
    if options.html is not None:
        write_page(options.html, _page(title, about, steps, after))
    for line in _lines(title, about, steps, after):
        print(writable(line))


def _check_together(options):
    """Raise InputError if options are combined that exclude each other."""
    given = [name for name in ("text", "worked") if getattr(options, name) is not None]
    if options.list:
        return
    if len(given) != 1:
        raise InputError('pass a text, such as "money bank grows", or --worked ID, or --list')
    if options.folder is not None:
        alone = ("dim", "heads", "seed", "beside")
        why = "it does not apply to a trained model (--run)"
    else:
        alone, why = ("layer",), "only a trained model (--run RUN) has several layers"
    for name in alone:
        if getattr(options, name) is not None:
            raise InputError(f"--{name} cannot be used here: {why}")


def _walk(options):
    if options.folder is not None:
        return _trained(options)
    D = DIM if options.dim is None else options.dim
    N = HEADS if options.heads is None else options.heads
    seed = SEED if options.seed is None else options.seed
    if not 1 <= D <= 1024:
        raise InputError(f"--dim must be 1 to 1024; got {D}")
    if not 1 <= N <= D or D % N:
        raise InputError(f"--heads must divide --dim; got {N} heads for {D}")
    if not 0 <= seed < 2**32:
        raise InputError(f"--seed must be 0 to {2**32 - 1}; got {seed}")
    _check_place("head", options.head, N, "heads")
    texts = [options.text] if options.beside is None else [options.text, options.beside]
    vocabulary, words = _words(texts)
    model = word_model(vocabulary, D, N, seed)
    chosen = {"head": options.head, "is_causal": options.causal}
    steps = word_steps(model, *words[0], **chosen)
    about = [
        f"An untrained model with V = {vocabulary}, D = {D}, N = {N}, H = {D // N} and parameters "
        f"drawn from seed {seed}. The numbers are random; the computation is that of every "
        "transformer."
    ]
    if options.beside is not None:
        step = context_step(model, *words, **chosen)
        if step is None:
            raise InputError("--beside needs a text with a word of the first text in it")
        steps.append(step)
    return _title(options.text), about, steps, []


def _words(texts):
    """Return the vocabulary size of all texts together, and each text as ids and words."""
    # Imported here so that help and mistakes are answered at once.
    from transformer_jax.interpret.activations import token_text
    from transformer_jax.text.tokenizer import train_tokenizer

    try:
        tokenizer = train_tokenizer("word:1000000", texts)
    except TokenizerError:
        raise InputError('the text has no words; pass some, such as "money bank grows"') from None
    found = []
    for text, ids in zip(texts, tokenizer.encode(texts, MOST_WORDS + 3), strict=True):
        ids = ids[1:-1]  # without [CLS] and [SEP]
        if not 1 <= len(ids) <= MOST_WORDS:
            raise InputError(
                f"a text must have 1 to {MOST_WORDS} words; {_title(text)!r} has "
                f"{'none' if len(ids) == 0 else 'more'}"
            )
        found.append((ids.tolist(), [token_text(tokenizer, i) for i in ids.tolist()]))
    return tokenizer.vocab_size, found


def _trained(options):
    check_run_folder(options.folder, CLASSIFIER_PROGRAMS)
    # Imported here so that help and mistakes are answered at once.
    from transformer_jax.interpret.activations import attention_parameters, read_activations
    from transformer_jax.serialization.run_folder import load_model

    classifier = load_model(options.folder, "TextClassifier")
    layers = classifier.spec.config.encoder.num_layers
    layer = options.layer or 0
    _check_place("layer", layer, layers, "layer" if layers == 1 else "layers")
    _check_place("head", options.head, classifier.spec.config.encoder.num_heads, "heads")
    inside = read_activations(classifier, options.text)
    parameters = attention_parameters(classifier, layer)
    steps = list(_input_steps(classifier.spec.config, inside, layer))
    steps += attention_steps(
        inside.attended[layer],
        parameters,
        inside.rows,
        head=options.head,
        is_causal=options.causal,
    )
    about = [
        f"{options.folder}: trained on {classifier.spec.data}. Layer {layer} of {layers}, "
        f"head {options.head} of {classifier.spec.config.encoder.num_heads}."
    ]
    if inside.cut:
        about.append(
            f"{inside.cut} tokens of the text were not read: it exceeds the model's max_length."
        )
    if options.causal:
        about.append(
            "The model was trained without a causal mask; --causal shows the effect of a mask."
        )
    return _title(options.text), about, steps, []


def _input_steps(config: ClassifierConfig, inside: "Activations", layer: int) -> Iterator[Step]:
    """Yield the steps from the token ids to the input of a layer's attention."""
    axes = "T D" if inside.patches is None else "P D"
    yield Step("ids", "vocabulary[token]", inside.ids[None], "1 T", columns=inside.tokens)
    if inside.patches is not None:
        yield from _patch_steps(config, inside, inside.patches)
    if inside.token_vectors is not None:
        yield from _token_steps(config, inside, inside.token_vectors)
    name = f"x_{layer}"
    if layer:
        before = f"layer {layer - 1} of x_{layer - 1}"
        yield Step(name, before, inside.inputs[layer], axes, inside.rows)
    yield Step(
        "X",
        f"norm({name})" if config.encoder.norm == "pre" else name,
        inside.attended[layer],
        axes,
        inside.rows,
        note="The input of this layer's attention.",
    )


def _patch_steps(
    config: ClassifierConfig, inside: "Activations", patches: np.ndarray
) -> Iterator[Step]:
    yield Step(
        "patches",
        "max over the regions of a patch",
        patches,
        "P F",
        inside.rows,
        note=f"A row is a patch of {config.patch_width} neighbouring tokens. It has the maximum "
        f"of each feature over the regions of {config.region_width} tokens around them.",
    )
    yield Step("x_0", "norm(patches W + b + position)", inside.inputs[0], "P D", inside.rows)


def _token_steps(
    config: ClassifierConfig, inside: "Activations", vectors: np.ndarray
) -> Iterator[Step]:
    neighbours = config.region_width - 1
    around = f" with its {neighbours} neighbours" if neighbours else ""
    table = " for the middle of a region." if neighbours else "."
    yield Step(
        "E",
        "table[ids]",
        vectors,
        "T D",
        inside.rows,
        note=f"The row of each token in the embedding table{table}",
    )
    yield Step(
        "x_0",
        "norm(token + position + segment)",
        inside.inputs[0],
        "T D",
        inside.rows,
        note=f"The input of the encoder: token{around}, position, and segment (0 here).",
    )


def _check_place(name: str, given: int, size: int, what: str) -> None:
    if size == 0:
        raise InputError(f"this model has no {what}, so there is no attention to show")
    if not 0 <= given < size:
        raise InputError(f"--{name} counts from 0, and this model has {size} {what}; got {given}")


def _worked(id: str):
    # Imported here so that help and mistakes are answered at once.
    from transformer_jax.walkthrough.worked.compare import beside_the_document
    from transformer_jax.walkthrough.worked.examples import EXAMPLES
    from transformer_jax.walkthrough.worked.registry import steps as worked_steps

    if id not in EXAMPLES:
        raise InputError(
            f"there is no worked example {id!r:.60}; "
            f"{did_you_mean(id, EXAMPLES)}walk --list shows all"
        )
    example = EXAMPLES[id]
    return id, [example["what"], example["source"]], worked_steps(id), beside_the_document(id)


def _list_examples() -> None:
    from transformer_jax.walkthrough.worked.examples import EXAMPLES

    left = max(map(len, EXAMPLES))
    for id, example in EXAMPLES.items():
        disagrees = "" if example["agrees"] else "   (does not agree)"
        print(writable(f"{id:<{left}}  {clip(example['what'], 58)}{disagrees}"))


def _title(text: str) -> str:
    return clip(" ".join(text.split()), 80)


def _lines(title: str, about: list[str], steps: list[Step], after: list[str]) -> Iterable[str]:
    yield title
    for text in about:
        yield from wrap(text, 98)
    for step in steps:
        yield ""
        yield from show_step(step)
    if after:
        yield ""
    for text in after:
        yield from wrap(text, 98)


def _page(title: str, about: list[str], steps: list[Step], after: list[str]) -> str:
    return html.page(
        title,
        *(html.paragraph(text) for text in about),
        *map(html.step_section, steps),
        *([html.heading("Comparison with the document")] if after else []),
        *(html.paragraph(text) for text in after),
    )
