"""The interface of tokenizers that models, programs and run folders use."""

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int, Int32

from transformer_jax.runtime.errors import TokenizerError
from transformer_jax.text.encoding import Located, Truncation


@runtime_checkable  # for beartype in the tests
class TextTokenizer(Protocol):
    """A vocabulary with the rules that turn a text into token ids and back.

    It is implemented by `text.tokenizer.Tokenizer`, which is trained on texts, and by
    `text.pretrained_tokenizer.PretrainedTokenizer`, which is published with a model. Another
    implementation needs these methods and an entry in `text.tokenizer_formats`. The frame of a text
    is the special tokens around it, [CLS] and [SEP] in BERT.
    """

    @property
    def vocab_size(self) -> int:
        """The number of ids, which is the largest id plus one."""
        ...

    @property
    def spec(self) -> str:
        """The kind and size of the vocabulary, such as "bpe:16384"."""
        ...

    # The ids of the special tokens; None if the vocabulary has no such token.
    @property
    def pad_id(self) -> int | None: ...
    @property
    def cls_id(self) -> int | None: ...
    @property
    def sep_id(self) -> int | None: ...
    @property
    def unk_id(self) -> int | None: ...
    @property
    def mask_id(self) -> int | None: ...

    @property
    def end_id(self) -> int | None:
        """The id of the token that ends a generated text, or None."""
        ...

    def encode(
        self, texts: Sequence[str], max_length: int, truncate: Truncation | None = None
    ) -> list[Int32[np.ndarray, " _"]]:
        """Return the ids of each text with its frame, at most `max_length`, without padding."""
        ...

    def encode_with_cuts(
        self, texts: Sequence[str], max_length: int, truncate: Truncation | None = None
    ) -> tuple[list[Int32[np.ndarray, " _"]], Int32[np.ndarray, " B"]]:
        """Return the result of `encode`, and the number of tokens that each text lost."""
        ...

    def locate(self, text: str, max_length: int, truncate: Truncation | None = None) -> Located:
        """Return the result of `encode` for one text, and the position of each token in it."""
        ...

    def pieces(self, texts: Sequence[str]) -> list[Int32[np.ndarray, " _"]]:
        """Return the ids of each text, without truncation and without a frame."""
        ...

    def decode(self, ids: Sequence[int] | Int[np.ndarray, " T"]) -> str:
        """Return the text of the ids, without padding and frames."""
        ...

    def token(self, token_id: int) -> str:
        """Return the name of a token."""
        ...

    def id_of(self, token: str) -> int | None:
        """Return the id of the token with this name, or None."""
        ...

    def prompt(self, text: str, *, framed: bool) -> Int[np.ndarray, " T"]:
        """Return the ids of a prompt for a language model.

        `framed` tells whether the model was trained on texts with frames.
        """
        ...

    def continuation(self, prompt: Int[np.ndarray, " T"], ids: Sequence[int]) -> str:
        """Return the text of the ids generated after a prompt."""
        ...

    def spell(self, token_id: int) -> str:
        """Return the text of a token."""
        ...

    def for_table(self, rows: int) -> "TextTokenizer":
        """Return the tokenizer for a model whose embedding table has `rows` rows.

        Raises TokenizerError, there or for a text, if a token is beyond the table.
        """
        ...

    def to_files(self) -> dict[str, str]:
        """Return the content of each of the tokenizer's files, by file name."""
        ...


def special_id(tokenizer: TextTokenizer, role: Literal["pad", "cls", "sep", "mask"]) -> int:
    """Return the id of a special token. Raises TokenizerError if the vocabulary has none."""
    token_id = getattr(tokenizer, f"{role}_id")
    if token_id is None:
        raise TokenizerError(f"the vocabulary of {tokenizer.spec} has no {role} token")
    return token_id
