"""The pages: they build without a warning, name every function, and show what was run."""

import html
import json
import re
import runpy
import threading
import urllib.request
import warnings
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jupytext
import nbformat
import numpy as np
import pytest
from mkdocs.__main__ import cli as mkdocs

import transformer_jax as tj
from bench import figures
from docs.build import walkthrough
from docs.build.docstrings import markdown
from docs.build.pages import escape_indices, render
from tests.helpers.browser import started
from transformer_jax.__main__ import COMMANDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; --strict makes a warning (a dead link, a name that is not there) an error.

    Every page of measurements says that its code has changed, instead of looking which has.
    """
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(action="ignore"):
        patch.chdir(ROOT)
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        patch.setattr(figures, "code", lambda module: {})
        mkdocs.main(["build", "--strict", "--site-dir", str(folder)], standalone_mode=False)
    return folder


def test_the_site_builds_without_a_warning(site):
    assert (site / "index.html").exists()


@pytest.mark.parametrize("name", tj.__all__)
def test_every_exported_function_has_its_place_on_one_page(site, name):
    path = f"{getattr(tj, name).__module__}.{name}"
    pages = [page.read_text(encoding="utf-8") for page in site.glob("api/*/index.html")]
    assert sum(f'id="{path}" class="doc doc-heading"' in page for page in pages) == 1


def test_signatures_show_their_shapes(site):
    page = (site / "api" / "attention" / "index.html").read_text(encoding="utf-8")
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    assert 'query: Float[Array, "*B T N H"]' in text
    assert 'out_bias: Float[Array, "M"] | None = None' in text
    assert ') -> Float[Array, "*B N T S"]' in text


def test_a_page_shows_equation_errors_and_example(site):
    page = (site / "api" / "normalization" / "index.html").read_text(encoding="utf-8")
    assert '<code class="equation">scale (x - mean) / sqrt(variance + epsilon) + bias' in page
    assert "<strong>Raises ValueError</strong>" in page
    assert '<span class="gp">&gt;&gt;&gt; </span>' in page


def test_a_docstring_becomes_markdown():
    shown = markdown(
        "Return it\nin *words*.\n\n    a * b\n\nRaises as `f` does.\n\n>>> 1 + 1\n2",
        True,
        {"f": "m.f"},
    )
    assert shown == (
        "Return it\nin *words*.\n\n`` a * b ``{ .equation }\n\n"
        "**Raises as** [`f`][m.f] does.\n\n```pycon\n>>> 1 + 1\n2\n```"
    )


def test_what_is_indented_in_a_docstring_stays_as_it_is():
    assert markdown("A.\n\n    Raises ValueError, `f`", False, {"f": "m.f"}).endswith(
        "\n\n    Raises ValueError, `f`"
    )


def test_every_page_is_in_the_menu():
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in DOCS.glob("**/*.md"):
        assert str(page.relative_to(DOCS)) in menu, page.name


@pytest.mark.parametrize("page", ["project/features.md", "results/README.md"])
def test_every_file_that_is_named_exists(page):
    """From the root, from the library, or from the folder of the page."""
    named = re.findall(r"`([\w./-]+\.(?:py|md|json|ipynb)|[\w./-]+/)`", (DOCS / page).read_text())
    places = (ROOT, ROOT / "transformer_jax", (DOCS / page).parent)
    missing = {name for name in named if not any((place / name).exists() for place in places)}
    assert len(named) > 10 and missing <= {"report.json"}  # of any run


@pytest.mark.parametrize("page", ["index.md", "guides/masks.md"])
def test_the_code_of_the_page_runs(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    names = {}
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(code, page, "exec"), names)
    assert names["output"].shape == (2, 5, 4, 8)


RUNS = ROOT / "tests" / "data" / "run_folders"
LOADED = {
    "runs/NAME": "imdb",
    "gpt2": "lm",
    "runs/TRANSLATOR": "translate",
    "bert-base-uncased": "mlm",
    "sentence-transformers/all-MiniLM-L6-v2": "mlm",
}


def test_the_code_of_the_page_on_python_runs():
    """With small models in place of those that it names, which hold 16 tokens."""
    text = (DOCS / "guides" / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    # tests/train/test_estimator.py trains, which takes longer; the test below serves.
    others = ("train.estimator", "jax.export")
    code = "\n".join(block for block in blocks if not any(name in block for name in others))
    for name, run in LOADED.items():
        assert f'"{name}"' in code
        code = code.replace(f'"{name}"', repr(str(RUNS / run)))
    names = {}
    exec(code.replace("Once upon a time", "the").replace("max_tokens=20", "max_tokens=5"), names)
    assert names["labels"].tolist() == ["positive", "negative"]
    assert names["probabilities"].shape == (2, 2)
    assert names["text"].startswith("the") and len(names["likeliest"]) == 5
    assert names["vectors"].shape == (2, 16)


@pytest.mark.usefixtures("as_users_run_it")  # symbolic sizes are no int
def test_an_exported_classifier_is_served_as_the_page_shows(tmp_path, monkeypatch):
    pytest.importorskip("flatbuffers", reason="jax.export writes files with it")
    run, texts = RUNS / "imdb", ["a fine film and the cast was superb", "the plot was dull", ""]
    classifier = tj.load(run, "classifier")
    text = (DOCS / "guides" / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    export, serve = (block for block in blocks if "jax.export" in block)
    monkeypatch.chdir(tmp_path)
    exec(export, {"classifier": classifier})
    assert serve.count(".serve_forever()") == 1 and '"runs/NAME"' in serve and "8000" in serve
    serve = serve.replace('"runs/NAME"', repr(str(run))).replace("8000", "0")
    names = {}
    exec(
        serve.replace("HTTPServer((", "server = HTTPServer((").replace(".serve_forever()", ""),
        names,
    )
    with names["server"] as server:
        url, answers = f"http://127.0.0.1:{server.server_port}", []
        for given in (texts, []):
            thread = threading.Thread(target=server.handle_request)
            thread.start()
            with urllib.request.urlopen(url, json.dumps(given).encode(), timeout=60) as answer:
                answers.append(json.load(answer))
            thread.join()
    found, of_none = answers
    assert of_none == []
    assert [list(row) for row in found] == [["negative", "positive"]] * 3
    rows = [list(row.values()) for row in found]
    np.testing.assert_allclose(rows, classifier.predict_proba(texts), atol=1e-5)


@pytest.mark.parametrize(
    "script", sorted((DOCS / "examples").glob("*.py")), ids=lambda path: path.name
)
def test_an_example_runs(script, capsys):
    runpy.run_path(str(script))
    assert capsys.readouterr().out


@pytest.mark.parametrize("page", ["guides/training.md", "guides/pretrained.md"])
def test_what_the_page_imports_is_there(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    imports = re.findall(r"^(?:from|import) transformer_jax.*$", text, re.MULTILINE)
    assert imports
    exec("\n".join(imports), {})


@pytest.fixture(scope="module")
def notebook():
    return nbformat.read(walkthrough.NOTEBOOK, as_version=4)


def test_the_notebook_is_the_text_of_the_walkthrough(notebook):
    source = jupytext.read(walkthrough.SOURCE)
    assert [(c.cell_type, c.source) for c in notebook.cells] == [
        (c.cell_type, c.source) for c in source.cells
    ]


def test_the_notebook_was_run_from_top_to_bottom(notebook):
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"stream", "display_data"}
    assert not any(output.get("name") == "stderr" for output in outputs)


def test_the_notebook_tells_no_machine_and_no_time_and_is_small(notebook):
    nbformat.validate(notebook)
    text = walkthrough.NOTEBOOK.read_text(encoding="utf-8")
    assert len(text) < 300_000
    assert str(ROOT) not in text and str(Path.home()) + "/" not in text
    assert not any(cell.metadata for cell in notebook.cells)


def test_no_number_of_the_walkthrough_is_typed(notebook):
    """The words around the cells say what to see, the cells print it."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            assert not re.search(r"\d+\.\d|\d%", cell.source), cell.source


def test_a_page_shows_what_the_cells_print():
    cells = [
        {"cell_type": "markdown", "source": ["# A\n", "b"]},
        {
            "cell_type": "code",
            "source": "print(1)",
            "outputs": [
                {"output_type": "stream", "name": "stdout", "text": "1\n"},
                {"output_type": "display_data", "data": {"image/png": "AAA=\n", "text/plain": "x"}},
            ],
        },
    ]
    assert render({"cells": cells}) == (
        "# A\nb\n\n````python\nprint(1)\n````\n\n````text\n1\n````\n\n"
        '<img alt="figure" src="data:image/png;base64,AAA=">'
    )


def test_an_index_in_prose_is_no_link():
    assert escape_indices("a[1][2], `a[1][2]`\n```\na[1][2]\n```") == (
        "a[1]\\[2], `a[1][2]`\n```\na[1][2]\n```"
    )


def test_the_walkthrough_is_shown_with_its_outputs(site):
    page = (site / "guides" / "walkthrough" / "index.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 3
    assert "test accuracy" in page


@pytest.mark.slow
@pytest.mark.optimized
def test_the_walkthrough_runs(tmp_path, notebook):
    """Run in an empty folder, it prints the same lines, and ends on the accuracy that is shown.

    Rounding moves the end: with first weights changed by 1e-6 of their size, eight runs ended on
    99.0 to 100.0%.
    """
    done = walkthrough.execute(tmp_path)
    assert not list(tmp_path.iterdir())
    shapes = [
        [
            [output.output_type for output in cell.outputs]
            for cell in book.cells
            if cell.cell_type == "code"
        ]
        for book in (notebook, done)
    ]
    assert shapes[0] == shapes[1]
    assert json.dumps(done).count("validation accuracy") == json.dumps(notebook).count(
        "validation accuracy"
    )
    assert accuracy_of(done) == pytest.approx(accuracy_of(notebook), abs=2.0)


def accuracy_of(notebook) -> float:
    """Per cent, as the notebook prints it."""
    texts = [
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ())
    ]
    (found,) = re.findall(r"^test accuracy (.*)%$", "\n".join(texts), re.MULTILINE)
    return float(found)


def test_the_page_of_commands_has_the_help_of_every_program(site):
    page = (site / "commands" / "index.html").read_text(encoding="utf-8")
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    for name in COMMANDS:
        assert f"usage: python -m transformer_jax {name} [-h]" in text
    for name in ("classify", "imdb", "lm", "mlm", "translate"):
        assert f"usage: python -m train.{name} [-h]" in text
    assert "--class-weights {balanced}" in text and "python -m bench.startup: Measure" in text
    lines = "".join(re.findall(r"<pre>.*?</pre>", page, re.DOTALL))
    lines = html.unescape(re.sub(r"<[^>]+>", "", lines)).splitlines()
    assert len(lines) > 500 and all(len(line) <= 80 for line in lines if not line.startswith("  "))


# {what is typed: what an address among the results has}
SEARCHES = {
    "sliding window": "/api/masks/",
    "dot_product": "/api/attention/",
    "--class-weights": "/guides/own-texts/#labels",
    "--lora": "/guides/pretrained/#fine-tune-a-classifier",
    "AutoModelForSequenceClassification": "/guides/pretrained/#share-a-classifier",
    "TransformerClassifier": "/guides/python/#train-in-scikit-learn",
    "tj.load": "/api/inference/#transformer_jax.load",
    "load": "/api/inference/#transformer_jax.load",
    "transformer-jax": "/guides/install/#the-command-transformer-jax",
}


def test_a_search_finds_what_is_typed(site):
    """On a phone, in the site as a server serves it; nothing comes from another server."""
    handler = partial(QuietHandler, directory=site)
    with started() as browser, ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            home = f"http://127.0.0.1:{server.server_port}/"
            visit = browser.open(home)
            for words, page in SEARCHES.items():
                visit.search(words, page)
            assert all(url.startswith((home, "blob:")) for url in visit.requests())
            assert visit.complaints() == []
        finally:
            server.shutdown()
            thread.join()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        """Print nothing."""
