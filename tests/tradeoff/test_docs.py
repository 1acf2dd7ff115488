"""The documentation's blocks, the docstrings' examples and the package's surface."""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import keras_gdp.tradeoff as package

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "tradeoff.md").read_text(), re.DOTALL
)
MODULES = [name for _, name, _ in pkgutil.iter_modules(package.__path__)]


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_documentation_block_runs(block):
    exec(block, {})


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    module = importlib.import_module(f"keras_gdp.tradeoff.{name}")
    assert doctest.testmod(module).failed == 0


def test_all_is_sorted_and_complete():
    assert package.__all__ == sorted(package.__all__)
    assert all(hasattr(package, name) for name in package.__all__)


def test_import_is_light():
    code = (
        "import sys, keras_gdp.tradeoff; "
        "heavy = {'tensorflow', 'keras', 'tensorflow_probability', 'matplotlib', "
        "'scipy.stats'}; print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_example_regenerates_the_figure(tmp_path):
    pytest.importorskip("matplotlib")
    script = ROOT / "examples" / "compare_accountants.py"
    command = [sys.executable, str(script), "--smoke", "--out", str(tmp_path)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tradeoff.png").stat().st_size > 10_000
    assert (tmp_path / "profiles.png").stat().st_size > 10_000
