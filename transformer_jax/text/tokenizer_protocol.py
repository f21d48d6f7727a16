"""The interface of a tokenizer, which models, programs and run folders use."""

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int, Int32

from transformer_jax.runtime.errors import TokenizerError
from transformer_jax.text.encoding import Located, Truncation


@runtime_checkable  # for beartype in the tests
class TextTokenizer(Protocol):
    """A vocabulary with the rules that turn a text into token ids and back.

    `text.tokenizer.Tokenizer` (learned from texts here) and
    `text.pretrained_tokenizer.PretrainedTokenizer` (published with a model) are tokenizers of this
    kind; a third one needs these methods and an entry in `text.tokenizer_formats`. The frame of a
    text is the special tokens around it, [CLS] and [SEP] in BERT.
    """

    @property
    def vocab_size(self) -> int:
        """Number of ids; the largest is one less."""
        ...

    @property
    def spec(self) -> str:
        """Kind and size, as "bpe:16384"."""
        ...

    # The ids of the special tokens; None where the vocabulary has no such token.
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
        """The token that ends a generated text."""
        ...

    def encode(
        self, texts: Sequence[str], max_length: int, truncate: Truncation = "head"
    ) -> list[Int32[np.ndarray, " _"]]:
        """Return the ids of each text in its frame, at most `max_length`, without padding."""
        ...

    def encode_with_cuts(
        self, texts: Sequence[str], max_length: int, truncate: Truncation = "head"
    ) -> tuple[list[Int32[np.ndarray, " _"]], Int32[np.ndarray, " B"]]:
        """Return what `encode` returns, and the number of tokens that each text lost."""
        ...

    def locate(self, text: str, max_length: int, truncate: Truncation = "head") -> Located:
        """Return what `encode` returns for one text, and where in the text each token stands."""
        ...

    def pieces(self, texts: Sequence[str]) -> list[Int32[np.ndarray, " _"]]:
        """Return the ids of each text, uncut and without its frame."""
        ...

    def decode(self, ids: Sequence[int] | Int[np.ndarray, " T"]) -> str:
        """Return the text of the ids, without padding and frames."""
        ...

    def token(self, token_id: int) -> str:
        """Return the name of a token."""
        ...

    def id_of(self, token: str) -> int | None:
        """Return the id of the token of this name, None where there is none."""
        ...

    def prompt(self, text: str, *, framed: bool) -> Int[np.ndarray, " T"]:
        """Return the ids of a text that a language model continues.

        `framed` says whether the model was trained on texts in frames.
        """
        ...

    def continuation(self, prompt: Int[np.ndarray, " T"], ids: Sequence[int]) -> str:
        """Return the text of the ids generated after a prompt."""
        ...

    def spell(self, token_id: int) -> str:
        """Return a token as it stands in a text."""
        ...

    def to_files(self) -> dict[str, str]:
        """Return the contents of the files of the tokenizer by name, to be written in a folder."""
        ...


def special_id(tokenizer: TextTokenizer, role: Literal["pad", "cls", "sep", "mask"]) -> int:
    """Return the id of a special token. Raises TokenizerError where the vocabulary has none."""
    token_id = getattr(tokenizer, f"{role}_id")
    if token_id is None:
        raise TokenizerError(f"the vocabulary of {tokenizer.spec} has no {role} token")
    return token_id
