"""The base class of the tasks: the steps of a training run, from its folder to its report."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from train.evaluation.curves import draw_curves
from train.evaluation.html_report import write_page
from train.evaluation.provenance import training_facts
from train.evaluation.report import write_report
from train.optim.precision import compute_dtype
from train.trainer.config import FitConfig
from train.trainer.faults import faults_of
from train.trainer.fit import FitResult, fit
from train.trainer.metrics_log import event_log
from train.trainer.run import Run
from train.trainer.signals import stop_if_asked
from train.trainer.step import LossSum
from train.trainer.together import agreed_stop, check_same
from transformer_jax.parallel.mesh import current_sizes, whole_share
from transformer_jax.parallel.processes import is_first
from transformer_jax.serialization.run_folder import WEIGHTS, save_specification, save_weights


class Task(ABC):
    """The base class of a training task.

    Each program has a subclass with its data, model, objective and evaluation. The constructor
    reads the data; `train` does the rest. `build` must call `begin`, after which the run can be
    resumed.
    """

    data: Any  # has a name and a source
    model: nnx.Module  # the model that is saved
    spec: Any  # of the saved model, once training begins
    loss: LossSum  # of the model, a batch and random number generators
    select: str  # the metric of `validate` that selects the weights; higher is better
    written: tuple[str, ...] = (
        "report.html",
        "report.md",
        "report.json",
    )  # files named in the last lines

    def __init__(self, run: Run, recipe: Any, tokenizer: Any, batch_tokens: int, dtype: str | None):
        self.run, self.options, self.folder = run, run.options, run.folder
        self.recipe, self.tokenizer, self.batch_tokens = recipe, tokenizer, batch_tokens
        self.dtype = compute_dtype(run.options.dtype or dtype)
        self.resources = ExitStack()  # closed when training ends, however it ends

    @abstractmethod
    def build(self) -> None:
        """Build the model, its loss, and everything that `batches` and `validate` need."""

    @abstractmethod
    def batches(self, epoch: int) -> Sequence[Any]:
        """Return the batches of an epoch, each made on access."""

    @abstractmethod
    def count_tokens(self, batch: Any) -> int:
        """Return the number of tokens in a batch, without padding."""

    @abstractmethod
    def validate(self, params: nnx.State) -> dict[str, float]:
        """Return the validation metrics after an epoch."""

    @abstractmethod
    def evaluate(self, fitted: FitResult) -> dict[str, Any]:
        """Return the report entries on the task, computed with the best weights."""

    @abstractmethod
    def summary(self, report: dict[str, Any]) -> str:
        """Return the lines that the program prints at its end."""

    @abstractmethod
    def example(self) -> str:
        """Return a command that uses the model."""

    @staticmethod
    @abstractmethod
    def result(report: dict[str, Any]) -> str:
        """Return the main result of a report as a short phrase."""

    @classmethod
    def write_page(cls, folder: Path, report: dict[str, Any]) -> None:
        """Write the page of a finished run from its other files."""
        write_page(folder, cls.result(report))

    def train(self) -> None:
        """Build, fit and evaluate, and write the model and the report."""
        with faults_of(self.folder, self.batch_tokens), self.resources:
            stop_if_asked()
            self.build()
            leaves = jax.tree.leaves(nnx.state(self.model, nnx.Param))
            parameters = sum(leaf.size for leaf in leaves)
            print(
                f"model       {parameters:,} parameters, {self.tokenizer.spec}, "
                f"{self.batch_tokens:,} tokens per batch, {self.dtype}"
            )
            self.say_mesh()
            fitted = self.fit()
            stop_if_asked()
            with agreed_stop():
                evaluated = self.evaluate(fitted)
                report = {**evaluated, "parameters": parameters, **self.made(fitted)}
                if is_first():
                    draw_curves(self.folder / "metrics.jsonl", self.folder / "curves.png")
                    write_report(self.folder, report)
                    self.write_page(self.folder, report)
        files = ", ".join(str(self.folder / name) for name in self.written)
        print(f"{self.summary(report)}\nwritten: {files}\ntry         {self.example()}")

    def say_mesh(self) -> None:
        """Print the mesh, and which share of the trained parameters its axes do not split."""
        if sizes := current_sizes():
            shown = ", ".join(f"{name} {size}" for name, size in sizes.items())
            params = nnx.state(self.trained, nnx.Param)
            whole = [
                f"; {axis} leaves {whole_share(params, axis):.1%} of the parameters whole"
                for axis in ("fsdp", "tensor")
                if sizes[axis] > 1
            ]
            print(f"mesh        {shown}{''.join(whole)}")

    def made(self, fitted: FitResult) -> dict[str, Any]:
        """Return the report entries on how the weights were made."""
        command, before = self.run.command, self.run.earlier_commands
        return {
            "settings": self.settings(),
            "tokenizer": self.tokenizer.spec,
            "seed": self.options.seed,
            "compute_dtype": self.dtype,
            "batch_tokens": self.batch_tokens,
            **({"mesh": sizes} if (sizes := current_sizes()) else {}),
            **({"meshes": meshes} if len(meshes := fitted.progress.meshes) > 1 else {}),
            **({"command": command} if command else {}),
            **({"earlier_commands": before} if before else {}),
            **training_facts(fitted.progress),
        }

    def best_scores(self, fitted: FitResult) -> dict[str, float]:
        """Return the validation metrics of the best weights, if they were finite once."""
        return fitted.progress.best_metrics or self.validate(fitted.params)

    def settings(self) -> dict[str, Any]:
        """Return the recipe with the sizes of the data: those of the tokenizer and the model."""
        found = asdict(replace(self.recipe, fit=self.fit_config()))
        if type(self.spec.config) is type(self.recipe.model):
            found["model"] = asdict(self.spec.config)
        known = {"tokenizer": self.tokenizer.spec, "dtype": self.dtype}
        return found | {name: value for name, value in known.items() if name in found}

    def fit_config(self) -> FitConfig:
        return replace(self.recipe.fit, dtype=self.dtype)

    def fit(self) -> FitResult:
        """Fit the weights of the model that `build` made."""
        with event_log(self.folder, self.options.tensorboard) as log:
            return fit(
                self, self.fit_config(), self.folder, log=log, resume=bool(self.options.resume)
            )

    def begin(self, data_sha256: str, spec: Any, *beside: str) -> None:
        """Write options and configuration; raise RunError if the run began with other data."""
        resolved = {"epochs": self.recipe.fit.epochs, "dtype": self.dtype}
        if self.options.data == "auto":
            resolved["data"] = self.data.name
        self.spec = spec
        # A process that stops says whether the run can go on: before or after all of this.
        with agreed_stop():
            check_same("data", data_sha256)
            self.run.begin(data_sha256, *beside, **resolved)
            save_specification(self.folder, self.tokenizer, spec)

    @property
    def trained(self) -> nnx.Module:
        """The module whose parameters gradient steps change."""
        return self.model

    def keep(self, params: nnx.State, after: tuple[int, int] | None = None) -> None:
        """Write the weights of the saved model; `after` are the steps so far and in all."""
        save_weights(self.folder / WEIGHTS, params, after)
