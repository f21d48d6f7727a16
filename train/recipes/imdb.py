"""The recipes of `train.imdb`: every setting that affects the result, except data and seed."""

from dataclasses import replace

from train.classifier.recipe import PretrainedConfig, Recipe, VectorConfig
from train.optim.config import OptimizerConfig, Rates
from train.trainer.config import FitConfig
from transformer_jax.models.config import ClassifierConfig
from transformer_jax.nn.config import StackConfig

# The classifier of "The Transformers, a complete architectural breakdown" (2026), listings
# 1.20-1.38. Eight heads, because its six do not divide 256. Four layers, as its constructor
# asks for; the model that it prints has six.
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

# The tokens are whole words, because sub-words lose three points here. The network has features
# of short phrases, independent of their position, and one attention layer over them. Attention
# reads the strongest of every four phrases; reading all takes twice the time. It shares the
# embedding table of the phrases: a table of its own would memorize the training texts. A linear
# n-gram part is added to the network; a solver fits it and gradient steps do not change it. It is
# more often right than the network, and makes different errors.
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
            # Adam moves every weight by about the learning rate, but the weights of a word must
            # change a lot in the few steps in which it occurs. The region features are a tenth
            # the size of normalized ones, so the weights of the head must become large too.
            rates=Rates(faster=(("regions.region", 5.0), ("head", 3.0))),
        ),
    ),
    batch_examples=64,
    buckets=6,
    token_dropout=0.3,
    margin=True,
    evidence_weight=6.0,
    dtype="float32",  # mostly lookups and sums, few matrix products: bfloat16 is no faster
)

# With --unlabelled there are three times as many texts, so there are fewer epochs. The network is
# then as accurate as the n-grams, so the n-grams get less weight.
FAST_UNLABELLED = replace(FAST, fit=replace(FAST.fit, epochs=2), evidence_weight=3.0)

# With --vectors the n-grams are fitted to the logits of logistic regression on the text vectors,
# which are log-odds already, so their weight starts at 1.
FAST_VECTORS = replace(FAST_UNLABELLED, evidence_weight=1.0, vectors=VectorConfig())

# `fast` on the built-in sample, whose texts differ from reviews: about thirty words, all of which
# matter, and a label that depends on word order over whole sentences. Attention reads every word.
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
    dtype="float32",  # bfloat16 ended at an accuracy of 0.9545, float32 at 0.9995
)

# High learning rates make a pretrained encoder forget, so lower layers get lower rates (Howard and
# Ruder, 2018, https://arxiv.org/abs/1801.06146). The head starts from random weights and gets a
# higher rate, because an untrained head distorts the layers below it (Kumar et al., 2022,
# https://arxiv.org/abs/2202.10054).
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

# An encoder of `train.mlm` is small, was pretrained on these texts and without dropout, so its
# weights may and must change more: one higher rate for all layers. Token dropout is safe, because
# pretraining had mask tokens. It reads whole reviews, like `fast`, in passages of the encoder's
# length, and has the same n-grams.
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

# In the built-in sample only word order determines the label, which takes longer to learn. With a
# higher rate for the head it was not learned at all: 50% accuracy after eight epochs. At twice
# this rate some runs stayed at 50%; at half of it two runs were at 66% and 65% after six epochs.
FINETUNE_RUN_SAMPLE = replace(
    FINETUNE_RUN,
    model=replace(FINETUNE.model, dropout_rate=0.0),
    fit=replace(
        FINETUNE_RUN.fit,
        epochs=8,
        optimizer=replace(FINETUNE_RUN.fit.optimizer, learning_rate=1e-3),
    ),
    token_dropout=0.0,
    dtype="float32",
)

# With --lora the encoder is frozen, so it cannot forget, and the low-rank updates of its kernels
# start at zero. So the rate is higher, and the same for all layers (Hu et al., 2021,
# https://arxiv.org/abs/2106.09685, appendix D).
FINETUNE_LORA = replace(
    FINETUNE,
    dtype="float32",  # in bfloat16 a small update added to a kernel would be rounded away
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
