"""A scikit-learn estimator that trains as `train.imdb` does, on texts in memory.

    from sklearn.model_selection import cross_val_score
    from train.estimator import TransformerClassifier

    cross_val_score(TransformerClassifier(epochs=3), texts, labels, cv=5)

It works from a clone of the repository, because `train` is not part of the installed library.
"""

import os
import re
from collections.abc import Iterable
from contextlib import redirect_stdout
from dataclasses import fields
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

import transformer_jax as tj
from train.data.dataset import Dataset, Split
from train.recipes.classify_options import ImdbOptions
from train.tasks.classification import Classification
from train.trainer.options import OptionError, is_possible, make_options, type_of
from train.trainer.run import Run
from transformer_jax.inference.texts import as_texts


class TransformerClassifier(ClassifierMixin, BaseEstimator):
    """A scikit-learn classifier of texts: the transformer with n-grams of `train.imdb`.

    The parameters are options of `train.imdb`, and None leaves a choice to the recipe. A tenth of
    the texts is held out in `fit` to select and calibrate the weights. After `fit`, `classes_` has
    the labels in the order of the columns of `predict_proba`, and `classifier_` is what
    `transformer_jax.load` returns. A fitted classifier can be pickled.
    """

    def __init__(
        self,
        recipe: str | None = None,
        *,
        epochs: int | None = None,
        seed: int = 0,
        tokenizer: str | None = None,
        max_length: int | None = None,
        learning_rate: float | None = None,
        batch_tokens: int | None = None,
        dtype: str | None = None,
        pretrained: str | None = None,
    ):
        self.recipe = recipe
        self.epochs = epochs
        self.seed = seed
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.learning_rate = learning_rate
        self.batch_tokens = batch_tokens
        self.dtype = dtype
        self.pretrained = pretrained

    def fit(self, X: Iterable[str], y: Any) -> "TransformerClassifier":
        """Train on texts and their labels, which may be words, integers or booleans.

        Nothing is printed but a progress bar, on a terminal. Raises TypeError if `X` are not texts,
        and ValueError for labels or options that cannot be used.
        """
        texts = as_texts(X, "fit")
        labels = column_or_1d(y)
        check_consistent_length(texts, labels)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must have two classes or more, got {self.classes_.tolist()}")
        split = Split(texts, codes.astype(np.int32), None)
        data = Dataset(
            "texts", "texts in memory", split, split.take(np.zeros(0, int)), [],
            tuple(map(str, self.classes_)),
        )  # fmt: skip
        with TemporaryDirectory() as folder:
            try:
                run = Run("train.imdb", Path(folder), self._options())
                with redirect_stdout(StringIO()):
                    Classification(run, data).train_only()
            except OptionError as error:
                raise ValueError(_in_python(str(error))) from None
            paths = [path for path in Path(folder).iterdir() if path.is_file()]
            self.run_files_ = {path.name: path.read_bytes() for path in paths}
        self._load()
        return self

    def predict(self, X: Iterable[str]) -> np.ndarray:
        """Predict the label of every text."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]

    def predict_proba(self, X: Iterable[str]) -> np.ndarray:
        """Predict the probability of each class for every text, in the order of `classes_`."""
        check_is_fitted(self)
        return self.classifier_.predict_proba(X)

    def save(self, folder: str | Path) -> None:
        """Write a new run folder, which `transformer_jax.load` and the commands read.

        Raises FileExistsError if there is such a folder.
        """
        check_is_fitted(self)
        if os.path.lexists(folder):
            raise FileExistsError(f"{folder} exists; pass the name of a new folder")
        _write_files(Path(folder), self.run_files_)

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn asks of an estimator: the input is a list of texts."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: the files of the model instead of compiled functions."""
        return {k: v for k, v in super().__getstate__().items() if k != "classifier_"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Read the model again from its files."""
        super().__setstate__(state)
        if "run_files_" in state:
            self._load()

    def _load(self) -> None:
        with TemporaryDirectory() as folder:
            _write_files(Path(folder) / "run", self.run_files_)
            self.classifier_ = tj.load(Path(folder) / "run", "classifier")

    def _options(self) -> ImdbOptions:
        """Return the options of `train.imdb` that the parameters name."""
        values = {"classes": len(self.classes_), "no_baseline": True}
        given = self.get_params()
        for each in (each for each in fields(ImdbOptions) if each.name in given):
            value, kind = given[each.name], type_of(each)
            value = value.item() if isinstance(value, np.generic) else value
            value = float(value) if kind is float and type(value) is int else value
            if not is_possible(each, value):
                choices = each.metadata["argument"].get("choices")
                wanted = f"one of {', '.join(choices)}" if choices else f"of type {kind.__name__}"
                raise ValueError(f"{each.name} must be {wanted}; got {value!r:.60}")
            values[each.name] = value
        return make_options(ImdbOptions, values)


def _write_files(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _in_python(message: str) -> str:
    """Return a message with the names of parameters in place of the flags of the command line."""
    return re.sub(r"--([a-z][a-z-]*)", lambda match: match[1].replace("-", "_"), message)
