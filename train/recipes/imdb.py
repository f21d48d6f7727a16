"""The recipes of `train.imdb`: everything that decides what is learnt, apart from the data and the
seed.
"""

from dataclasses import replace

from train.classifier.document_vectors import VectorConfig
from train.classifier.recipe import PretrainedConfig, Recipe
from train.optim.layer_rates import Rates
from train.optim.optimizers import OptimizerConfig
from train.trainer.step import FitConfig
from transformer_jax.models.config import ClassifierConfig
from transformer_jax.nn.config import StackConfig

# The classifier of "The Transformers, a complete architectural breakdown" (2026), listings
# 1.20-1.38. Its six heads do not divide 256, so eight; its printed model has six layers, its
# constructor asks for four.
TUTORIAL = Recipe(
    name="tutorial",
    tokenizer="gpt2",
    truncate="head",
    model=ClassifierConfig(
        vocab_size=50_260,
        max_length=256,
        encoder=StackConfig(4, 256, 8, 1024, norm="pre", activation="gelu"),
        pooling=("cls",),
    ),
    fit=FitConfig(
        epochs=100,
        average_decay=0.0,
        optimizer=OptimizerConfig(
            learning_rate=3e-4,
            schedule="constant",
            warmup_fraction=0.0,
            weight_decay=0.01,
            decay_everything=True,
            clip_norm=None,
        ),
    ),
    batch_examples=16,
    buckets=1,
)

# Whole words, because sub-words lose three points here; short phrases that count wherever they
# stand, and one layer of attention over what they mean together. It reads the strongest of every
# four phrases: over all of them it takes twice the time. A table of its own in place of the
# phrases' would learn the training texts by heart. Beside both the weights of n-grams, which a
# solver finds and no step moves: right more often than the network, and wrong elsewhere.
FAST = Recipe(
    name="fast",
    tokenizer="word:30000",
    truncate="head-tail",
    model=ClassifierConfig(
        vocab_size=30_000,
        max_length=600,
        encoder=StackConfig(
            num_layers=1,
            embed_dim=64,
            num_heads=2,
            hidden_dim=128,
            norm="pre",
            final_norm=True,
            dropout_rate=0.3,
            attention_dropout_rate=0.0,
        ),
        pooling=("max", "mean"),
        region_features=300,
        region_width=3,
        patch_width=4,
        encoder_scale=0.1,
        ngrams=3,
        embedding_dropout_rate=0.5,
        head_dropout_rate=0.5,
    ),
    fit=FitConfig(
        epochs=3,
        average_decay=0.99,
        optimizer=OptimizerConfig(
            learning_rate=1e-3,
            warmup_fraction=0.05,
            clip_norm=1.0,
            b2=0.99,
            # Adam moves every weight by about the rate; a word's has to go far in the few steps
            # that meet it. What the head reads of the regions is a tenth of what norms give, so
            # that its weights have far to go too.
            rates=Rates(faster=(("regions.region", 5.0), ("head", 3.0))),
        ),
    ),
    batch_examples=64,
    buckets=6,
    token_dropout=0.3,
    margin=True,
    evidence_weight=6.0,
    dtype="float32",  # lookups and sums, few products: in bfloat16 nothing is gained
)

# With --unlabelled there are three times as many texts, so fewer passes; and the network is right
# as often as the n-grams.
FAST_UNLABELLED = replace(FAST, fit=replace(FAST.fit, epochs=2), evidence_weight=3.0)

# With --vectors the n-grams say what logistic regression says of the vectors: logarithms of odds
# already.
FAST_VECTORS = replace(FAST_UNLABELLED, evidence_weight=1.0, vectors=VectorConfig())

# `fast` on the built-in sample, which differs in kind: thirty words a text, none of which may be
# missed, and a label that hangs on their order over whole sentences: its encoder reads every word.
SAMPLE = replace(
    FAST,
    model=replace(
        FAST.model,
        region_features=200,
        patch_width=0,
        encoder_scale=1.0,
        ngrams=0,
        encoder=replace(FAST.model.encoder, embed_dim=96, hidden_dim=192, dropout_rate=0.0),
        embedding_dropout_rate=0.1,
        head_dropout_rate=0.1,
    ),
    fit=replace(
        FAST.fit,
        epochs=8,
        optimizer=replace(FAST.fit.optimizer, learning_rate=2e-3, rates=Rates()),
    ),
    batch_examples=32,
    buckets=2,
    token_dropout=0.0,
    margin=False,
    dtype="float32",  # in bfloat16 it ended on 0.9545, not 0.9995
)

# A pretrained encoder knows its language and forgets it at high rates: the lower a layer, the less
# it moves (Howard and Ruder, 2018, https://arxiv.org/abs/1801.06146). The head begins with random
# numbers and has to arrive first, or what it knows not yet would pull at the layers (Kumar et al.,
# 2022, https://arxiv.org/abs/2202.10054).
FINETUNE = Recipe(
    name="finetune",
    tokenizer=None,
    truncate="head-tail",
    model=PretrainedConfig(max_length=256),
    fit=FitConfig(
        epochs=2,
        average_decay=0.0,
        optimizer=OptimizerConfig(
            learning_rate=1e-4,
            warmup_fraction=0.06,
            weight_decay=0.01,
            clip_norm=1.0,
            rates=Rates(layer_decay=0.8, head=10.0),
        ),
    ),
    batch_examples=32,
    buckets=4,
)

# An encoder of `train.mlm` is small, has met these texts and was trained without dropout: what it
# knows of words may go further, and has to. Words that are hidden it knows from before. Whole
# reviews, as of `fast`, in passages of what it holds; and the same n-grams beside it.
FINETUNE_RUN = replace(
    FINETUNE,
    model=replace(FINETUNE.model, max_length=FAST.model.max_length, dropout_rate=0.1, ngrams=3),
    fit=replace(
        FINETUNE.fit,
        epochs=3,
        average_decay=0.99,
        optimizer=replace(FINETUNE.fit.optimizer, learning_rate=5e-4, b2=0.99, rates=Rates()),
    ),
    token_dropout=0.15,
    evidence_weight=3.0,
)

# Its words mean nothing by themselves: what of a label they tell, their order does, which is not
# learnt at once. With a faster head it was not learnt at all: half were right after eight epochs.
FINETUNE_RUN_SAMPLE = replace(
    FINETUNE_RUN,
    model=replace(FINETUNE.model, dropout_rate=0.0),
    fit=replace(
        FINETUNE_RUN.fit,
        epochs=6,
        optimizer=replace(FINETUNE_RUN.fit.optimizer, learning_rate=2e-3),
    ),
    token_dropout=0.0,
    dtype="float32",
)

# With --lora: the encoder stays as it is, so nothing of it can be forgotten, and what stands beside
# its kernels begins at zero: at a higher rate, the same in all layers (Hu et al., 2021,
# https://arxiv.org/abs/2106.09685, appendix D).
FINETUNE_LORA = replace(
    FINETUNE,
    dtype="float32",  # in bfloat16 the sum of a kernel and what is small beside it is the kernel
    fit=replace(
        FINETUNE.fit,
        optimizer=replace(
            FINETUNE.fit.optimizer,
            learning_rate=1e-3,
            rates=Rates(frozen=("model.text.",)),
        ),
    ),
)

RECIPES = {recipe.name: recipe for recipe in (FAST, TUTORIAL, FINETUNE)}
