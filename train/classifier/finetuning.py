"""A pretrained text encoder, and the head that is put on it."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from flax import nnx

from transformer_jax.inference.embed import MODULES, read_pooling
from transformer_jax.models.config import EncoderClassifierConfig
from transformer_jax.models.text_encoder import EncoderClassifier, MaskedLanguageModel, TextEncoder
from transformer_jax.nn.layers import Linear
from transformer_jax.nn.parameters import AbstractRngs
from transformer_jax.pretrained import PretrainedError, from_pretrained
from transformer_jax.pretrained.family import family_of
from transformer_jax.pretrained.files import CONFIG, Settings

POOLINGS = ("cls", "mean")


class Pretrained(NamedTuple):
    """What a folder gives for a classifier."""

    encoder: TextEncoder  # without a pooler
    config: EncoderClassifierConfig  # of some number of classes
    linear: Linear | None  # the map before the last one, where the folder has it


def load_encoder(folder: Path, pooling: str | None = None) -> Pretrained:
    """The encoder of a published model or of a run folder; `pooling` in place of what its files
    say.

    A sentence encoder is pooled as it was trained, without a map between, what `train.mlm` leaves
    by the mean. Others give the vector of the first token to the map that their family has there:
    BERT's own pooler, whose weights come along.

    Raises PretrainedError where the folder holds no text encoder, RunFolderError where it is a
    damaged run folder.
    """
    settings = Settings(folder / CONFIG)
    published = "model_type" in settings.values
    if published and "encoder" not in family_of(settings).ARCHITECTURES.values():
        raise settings.error(
            f"a {settings.text('model_type')} is no text encoder; BERT and its kin are"
        )
    model = from_pretrained(folder, kind="encoder" if published else None)
    encoder = getattr(model, "text", model)
    if not isinstance(encoder, TextEncoder):
        raise PretrainedError(f"{folder} holds a {type(model).__name__}, which has no text encoder")
    found, activation, linear = "cls", "tanh", encoder.pooler
    if isinstance(model, EncoderClassifier):
        found, activation, linear = model.config.pooling, model.config.activation, model.linear
    elif (folder / MODULES).is_file():
        found, activation, linear = read_pooling(folder).name, None, None
    elif isinstance(model, MaskedLanguageModel):
        # Of train.mlm, where no vector of [CLS] has learned to stand for a text.
        found, activation, linear = "mean", None, None
    elif published:
        head = family_of(settings).read_config(settings, "classifier", set())
        activation = getattr(head, "activation", activation)
    pooling = pooling or found
    if pooling not in POOLINGS:
        raise PretrainedError(
            f"{folder} pools by {pooling!r}; pass --pooling {' or '.join(POOLINGS)}"
        )
    if pooling == "mean":
        activation = linear = None
    encoder.pooler = None
    text = replace(encoder.config, pooler=False)
    config = EncoderClassifierConfig(text, pooling=pooling, activation=activation)
    return Pretrained(encoder, config, linear)


def classifier_of(pretrained: Pretrained, num_classes: int, *, rngs: nnx.Rngs) -> EncoderClassifier:
    """The encoder, with the dropout that the configuration has, and a new head; its weights are
    shared.
    """
    config = replace(pretrained.config, num_classes=num_classes)
    # Laid out, not drawn: random numbers for a whole encoder would take longer than reading it.
    model = nnx.eval_shape(lambda: EncoderClassifier(config, rngs=AbstractRngs()))
    D = config.text.encoder.embed_dim
    nnx.update(model.text, nnx.state(pretrained.encoder, nnx.Param))
    if config.activation is not None:
        model.linear = pretrained.linear or Linear(D, D, rngs=rngs)
    model.head = Linear(D, num_classes, rngs=rngs)
    return model
