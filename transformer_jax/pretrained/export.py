"""Export of a fine-tuned classifier: a folder that Transformers loads, with a model card."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from transformer_jax.models.config import EncoderClassifierConfig
from transformer_jax.pretrained.family import family_of_config
from transformer_jax.pretrained.model_card import model_card
from transformer_jax.pretrained.saving import save_pretrained, written_config
from transformer_jax.runtime.errors import RunFolderError, one_line
from transformer_jax.runtime.files import write_text
from transformer_jax.runtime.texts import read_text
from transformer_jax.serialization.folder_files import check_new_folder
from transformer_jax.serialization.run_folder import CONFIG, Trained, load_classifier, read_spec

CARD, REPORT, TOKENIZER_CONFIG = "README.md", "report.json", "tokenizer_config.json"
SIDES = {"head": "right", "tail": "left", "head-tail": "right"}  # of a text that is cut


def export_classifier(run: str | Path, folder: str | Path) -> Trained:
    """Save the classifier of a run folder as Transformers loads it, and return it.

    `AutoModelForSequenceClassification` and `AutoTokenizer` read the new `folder` and compute the
    same logits for a text of at most max_length tokens. A longer one is cut at its end there, while
    the truncation "head-tail" also keeps its end. README.md is the model card: labels, and the
    results in report.json if the run has one.

    Raises RunFolderError if `run` holds no classifier that Transformers can compute, which are
    those fine-tuned from BERT, RoBERTa, XLM-R or DistilBERT with the vector of the first token,
    and InputError if `folder` exists. Nothing is left behind then.
    """
    run, folder = Path(run), Path(folder)
    check_new_folder(folder)
    spec = read_spec(run / CONFIG, "TextClassifier", "EncoderClassifier")
    if reason := _refusal(spec.config):
        raise RunFolderError(f"{run} cannot be exported: {reason}")
    trained = load_classifier(run)
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        beside.mkdir(parents=True)
        _write(trained, run, beside, folder.name)
        os.rename(beside, folder)
    except RunFolderError:
        raise
    except ValueError as error:
        raise RunFolderError(f"{run} cannot be exported: {one_line(error)}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return trained


def _refusal(config: Any) -> str | None:
    """Return why Transformers has no model that computes the same, or None."""
    if not isinstance(config, EncoderClassifierConfig):
        return (
            "it was trained from scratch, and Transformers has no model with its layers; "
            "--pretrained MODEL fine-tunes one that it has"
        )
    family = family_of_config(config)
    if family is None or "classifier" not in family.ARCHITECTURES.values():
        return "its encoder is not that of BERT, RoBERTa, XLM-R or DistilBERT"
    try:
        written_config(config.text, family, "encoder")
    except ValueError as error:
        return f"its encoder is not that of a published model: {one_line(error)}"
    if config.ngrams:
        return "its logits include those of n-grams, which no model of Transformers has"
    if config.pooling != "cls":
        return (
            f"its head reads the {config.pooling} over all tokens, and the one of Transformers "
            "the first token; train with --pooling cls"
        )
    if config.activation is None:
        return "its head has one layer, and the one of Transformers two"
    return None


def _write(trained: Trained, run: Path, folder: Path, name: str) -> None:
    """Write all files of the export into `folder`; the card calls the model `name`."""
    spec = trained.spec
    tokenizer: Any = trained.tokenizer  # a published one, as every EncoderClassifier has
    save_pretrained(trained.model, folder, tokenizer=tokenizer, classes=spec.classes)
    pad = json.loads(read_text(folder / CONFIG))["pad_token_id"]
    if pad != tokenizer.pad_id:  # RoBERTa counts positions from tokens that are not padding
        raise RunFolderError(
            f"{run} cannot be exported: its padding token has the id {tokenizer.pad_id}, and "
            f"that of its encoder's family {pad}"
        )
    # Padding on the left would come first, where the head reads the vector.
    sides = {"padding_side": "right", "truncation_side": SIDES[spec.truncate]}
    settings = json.loads(read_text(folder / TOKENIZER_CONFIG)) | sides
    settings["model_max_length"] = spec.max_length
    write_text(folder / TOKENIZER_CONFIG, json.dumps(settings, ensure_ascii=False, indent=2) + "\n")
    write_text(folder / CARD, model_card(spec, _report(run), name))


def _report(run: Path) -> dict[str, Any]:
    """Return the report of a run, empty if it has none."""
    try:
        found = json.loads(read_text(run / REPORT))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise RunFolderError(f"{run / REPORT} cannot be read: {one_line(error)}") from None
    return found if isinstance(found, dict) else {}
