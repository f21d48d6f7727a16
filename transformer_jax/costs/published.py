"""The configurations of published models, with the number of parameters that each paper states."""

from dataclasses import dataclass

from transformer_jax.models.config import (
    LanguageModelConfig,
    SequenceToSequenceConfig,
    TextEncoderConfig,
)
from transformer_jax.nn.config import StackConfig


@dataclass(frozen=True)
class Published:
    """A configuration of a published model. `nominal` is its number of parameters by the paper."""

    config: LanguageModelConfig | SequenceToSequenceConfig | TextEncoderConfig
    nominal: float
    source: str
    note: str = ""
    tokens: float | None = None  # number of training tokens, if the paper states it


def _bert(num_layers, embed_dim, num_heads, *, num_segments=2, pooler=True):
    stack = StackConfig(
        num_layers, embed_dim, num_heads, 4 * embed_dim, norm_epsilon=1e-12, activation="gelu"
    )
    return TextEncoderConfig(30_522, 512, stack, num_segments=num_segments, pooler=pooler)


def _gpt(num_layers, embed_dim, num_heads, *, max_length=1024):
    stack = StackConfig(
        num_layers, embed_dim, num_heads, 4 * embed_dim, norm="pre", final_norm=True,
        activation="gelu_tanh",
    )  # fmt: skip
    return LanguageModelConfig(50_257, max_length, stack)


def _llama(num_layers, embed_dim, num_heads, hidden_dim, *, num_kv_heads=None):
    stack = StackConfig(
        num_layers, embed_dim, num_heads, hidden_dim, num_kv_heads=num_kv_heads, norm="pre",
        final_norm=True, norm_kind="rms", activation="swiglu", biases=False,
    )  # fmt: skip
    return LanguageModelConfig(32_000, 4096, stack, positions="rotary", tied_head=False)


def _vaswani(embed_dim, num_heads):
    stack = StackConfig(6, embed_dim, num_heads, 4 * embed_dim)
    return SequenceToSequenceConfig(37_000, 512, stack, stack)  # sinusoids have no maximum length


VASWANI = "Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, table 3"
BERT = "Devlin et al., 2019, https://arxiv.org/abs/1810.04805, section 3"
GPT2 = "Radford et al., 2019, Language Models are Unsupervised Multitask Learners, table 2"
LLAMA2 = "Touvron et al., 2023, https://arxiv.org/abs/2307.09288, table 1"
SHARED = "both inputs and the head share one table of about 37,000 tokens"
WITH_POOLER = "with the pooler, without the pretraining heads"

PUBLISHED = {
    "transformer-base": Published(_vaswani(512, 8), 65e6, VASWANI, SHARED),
    "transformer-big": Published(_vaswani(1024, 16), 213e6, VASWANI, SHARED),
    "bert-base": Published(_bert(12, 768, 12), 110e6, BERT, WITH_POOLER),
    "bert-large": Published(_bert(24, 1024, 16), 340e6, BERT, WITH_POOLER),
    "distilbert": Published(
        _bert(6, 768, 12, num_segments=0, pooler=False),
        66e6,
        "Sanh et al., 2019, https://arxiv.org/abs/1910.01108, table 3",
        "no segment embeddings and no pooler",
    ),
    "gpt2": Published(_gpt(12, 768, 12), 117e6, GPT2, "the paper's figure is too low"),
    "gpt2-medium": Published(_gpt(24, 1024, 16), 345e6, GPT2),
    "gpt2-large": Published(_gpt(36, 1280, 20), 762e6, GPT2),
    "gpt2-xl": Published(_gpt(48, 1600, 25), 1.5e9, GPT2, "1542M in the table, 1.5B in the text"),
    "gpt3": Published(
        _gpt(96, 12_288, 96, max_length=2048),
        175e9,
        "Brown et al., 2020, https://arxiv.org/abs/2005.14165, table 2.1",
        "every other layer has banded attention of unstated width, which is counted in full",
        tokens=300e9,
    ),
    "llama2-7b": Published(_llama(32, 4096, 32, 11_008), 7e9, LLAMA2, tokens=2e12),
    "llama2-13b": Published(_llama(40, 5120, 40, 13_824), 13e9, LLAMA2, tokens=2e12),
    "llama2-70b": Published(
        _llama(80, 8192, 64, 28_672, num_kv_heads=8), 70e9, LLAMA2, tokens=2e12
    ),
}
