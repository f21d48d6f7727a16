"""The model card of an exported classifier.

https://huggingface.co/docs/hub/model-cards
"""

import json
import re
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from transformer_jax.runtime.counted import counted
from transformer_jax.serialization.specification import EncoderClassifierSpec

TASK = "text-classification"
METRICS = ("accuracy", "log_loss", "calibration_error")  # names in report.json
# How a report describes data of the hub; other data has no public name.
HUB_DATA = re.compile(r"([\w.-]+/[\w.-]+) from the (?:local )?Hugging Face (?:Hub|cache)\b")


def model_card(spec: EncoderClassifierSpec, report: dict[str, Any], name: str) -> str:
    """Return the model card as Markdown, with its metadata in front.

    `report` is the content of report.json; what it does not say is left out. The license of the
    encoder is not known, so none is named.
    """
    parts = [
        f"---\n{_metadata(spec, report, name).to_yaml()}\n---",
        f"# {name}",
        "A text classifier, fine-tuned with transformer_jax" + _data(report) + ".",
        _usage(name),
        "## Labels\n\n" + "\n".join(f"{i}. {label}" for i, label in enumerate(spec.classes)),
        _results(report),
        _limits(spec),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _metadata(spec: EncoderClassifierSpec, report: dict[str, Any], name: str) -> ModelCardData:
    source = _public_data(report)
    data = report.get("data") or {}
    results = [
        EvalResult(TASK, source or spec.data, data.get("name") or spec.data, metric, value,
                   dataset_split="test")
        for metric, value in _metrics(report).items()
    ]  # fmt: skip
    return ModelCardData(
        library_name="transformers",
        pipeline_tag=TASK,
        tags=[TASK, "transformer_jax"],
        datasets=[source] if source else None,
        labels=list(spec.classes),
        model_name=name,
        eval_results=results or None,
    )


def _metrics(report: dict[str, Any]) -> dict[str, float]:
    """Return the metrics on the test texts that the report has."""
    found = report.get("test") or {}
    return {name: found[name] for name in METRICS if isinstance(found.get(name), float)}


def _public_data(report: dict[str, Any]) -> str | None:
    """Return the name on the hub of the training data, or None."""
    found = HUB_DATA.match((report.get("data") or {}).get("source") or "")
    return found and found[1]


def _data(report: dict[str, Any]) -> str:
    data = report.get("data") or {}
    if "name" not in data or "train" not in data:
        return ""
    named = "generated sample texts" if data["name"] == "sample" else f"texts of {data['name']}"
    return f" on {data['train']:,} {named}"


def _usage(name: str) -> str:
    return f"""## Use

```python
from transformers import pipeline

classify = pipeline("{TASK}", {json.dumps(name)}, truncation=True)
classify("A text.")
```"""


def _results(report: dict[str, Any]) -> str:
    """Return the section with the results on the test texts, empty without any."""
    metrics, test = _metrics(report), report.get("test") or {}
    if not metrics:
        return ""
    rows = [f"| {name.replace('_', ' ')} | {value:.4f} |" for name, value in metrics.items()]
    texts = f" on {counted(test['texts'], 'test text')}" if "texts" in test else ""
    return "\n".join([f"## Results{texts}", "", "| metric | value |", "| --- | ---: |", *rows])


def _limits(spec: EncoderClassifierSpec) -> str:
    cut = "at its start" if spec.truncate == "tail" else "at its end"
    told = f"A text of more than {spec.max_length} tokens is cut {cut}."
    if spec.truncate == "head-tail":
        told += " In training, the middle was left out instead."
    return f"## Limits\n\n{told}"
