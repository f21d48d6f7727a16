"""The wheel alone is enough to import the pure functions and to run the commands."""

import json
import re
import sys

import pytest

# What the installed wheel says of itself.
METADATA = """
import json
from importlib import metadata

(script,) = metadata.distribution("transformer_jax").entry_points.select(group="console_scripts")
found = metadata.metadata("transformer_jax")
print(json.dumps([script.name, script.value, found.get_all("Classifier")]))
"""

pytestmark = pytest.mark.commands


@pytest.mark.timeout(1200)
def test_the_first_example_runs_with_the_installed_wheel(call, root, tmp_path):
    pip = ["-m", "pip", "--quiet", "--disable-pip-version-check"]
    newest = "newest" in sys.prefix
    pins = root / ("constraints-newest.txt" if newest else "constraints.txt")
    call([sys.executable, *pip, "wheel", root, "--no-deps", "--wheel-dir", tmp_path], tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    call([sys.executable, "-m", "venv", tmp_path / "fresh"], tmp_path)
    python = tmp_path / "fresh" / "bin" / "python"
    call([python, *pip, "install", "--no-compile", "--constraint", pins, wheel], tmp_path)
    example = re.search(r"```python\n(.*?)```", (root / "README.md").read_text(), re.DOTALL)[1]
    assert "■ ■ ■ · ·" in call([python, "-I", "-c", example], tmp_path)
    assert "cat" in call(
        [python, "-I", "-m", "transformer_jax", "walk", "--worked", "cat_sat"], tmp_path
    )
    script, value, classifiers = json.loads(call([python, "-I", "-c", METADATA], tmp_path))
    assert value == "transformer_jax.__main__:script"
    pythons = {found.rpartition(" ")[2] for found in classifiers if ":: Python ::" in found}
    assert pythons == {"3", "3.11", "3.12", "3.13", "3.14"}
    shown = call([python.with_name(script), "walk", "--help"], tmp_path)
    assert shown.startswith("usage: transformer-jax walk ")
