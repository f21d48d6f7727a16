"""Loading of a pretrained text encoder, and the classifier built on it."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from flax import nnx

from transformer_jax.inference.sentence_files import MODULES, read_pooling
from transformer_jax.models.config import EncoderClassifierConfig
from transformer_jax.models.masked_language_model import MaskedLanguageModel
from transformer_jax.models.text_encoder import EncoderClassifier, TextEncoder
from transformer_jax.nn.layers import Linear
from transformer_jax.nn.parameters import AbstractRngs
from transformer_jax.pretrained import PretrainedError, from_pretrained
from transformer_jax.pretrained.family import family_of
from transformer_jax.pretrained.files import Settings
from transformer_jax.serialization.folder_files import CONFIG

POOLINGS = ("cls", "mean")


class Pretrained(NamedTuple):
    """The parts of a classifier that a pretrained model provides."""

    encoder: TextEncoder  # without a pooler
    config: EncoderClassifierConfig  # its number of classes is not set yet
    linear: Linear | None  # the linear map before the head, if the folder has one


def load_encoder(folder: Path, pooling: str | None = None) -> Pretrained:
    """Load the encoder of a published model or of a run folder.

    `pooling` overrides the pooling of the model's files. Without it, a sentence encoder is pooled
    as it was trained, and an encoder of `train.mlm` by the mean; both have no linear map before the
    head. For other models the vector of the first token goes through the map that their family has
    there, such as BERT's pooler, with its pretrained weights.

    Raises PretrainedError if the folder has no text encoder, and RunFolderError for a damaged run
    folder.
    """
    settings = Settings(folder / CONFIG)
    published = "model_type" in settings.values
    if published and "encoder" not in family_of(settings).ARCHITECTURES.values():
        raise settings.error(
            f"a {settings.text('model_type')} is not a text encoder; pass one such as BERT"
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
        # A run of train.mlm, which does not train the vector of [CLS] to represent a text.
        found, activation, linear = "mean", None, None
    elif published:
        head = family_of(settings).read_config(settings, "classifier", set())
        activation = getattr(head, "activation", activation)
    pooling = pooling or found
    if pooling not in POOLINGS:
        raise PretrainedError(
            f"{folder} uses {pooling!r} pooling; pass --pooling {' or '.join(POOLINGS)}"
        )
    if pooling == "mean":
        activation = linear = None
    encoder.pooler = None
    text = replace(encoder.config, pooler=False)
    config = EncoderClassifierConfig(text, pooling=pooling, activation=activation)
    return Pretrained(encoder, config, linear)


def classifier_of(pretrained: Pretrained, num_classes: int, *, rngs: nnx.Rngs) -> EncoderClassifier:
    """Build a classifier of the encoder and a new head.

    Dropout rates are those of the configuration. The encoder's weights are shared, not copied.
    """
    config = replace(pretrained.config, num_classes=num_classes)
    # Abstract: drawing random weights for a whole encoder takes longer than reading it.
    model = nnx.eval_shape(lambda: EncoderClassifier(config, rngs=AbstractRngs()))
    D = config.text.encoder.embed_dim
    nnx.update(model.text, nnx.state(pretrained.encoder, nnx.Param))
    if config.activation is not None:
        model.linear = pretrained.linear or Linear(D, D, rngs=rngs)
    model.head = Linear(D, num_classes, rngs=rngs)
    return model
