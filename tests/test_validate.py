"""Every checked argument comes with advice."""

import ast
import pathlib

import pytest

import keras_gdp
from keras_gdp import _validate

CHECKERS = ("count", "non_negative", "one_of", "positive", "probability", "real")


def calls():
    """Yields the place and the call of every checker in the package."""
    for path in sorted(pathlib.Path(keras_gdp.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(
                tuple(f"_validate.{checker}" for checker in CHECKERS)
            ):
                yield f"{path.name}:{node.lineno}", node


def test_every_check_says_what_to_do():
    found = list(calls())
    assert len(found) > 80
    for place, call in found:
        advised = len(call.args) >= (4 if "one_of" in ast.unparse(call.func) else 3)
        name = call.args[0]
        general = isinstance(name, ast.Constant) and name.value in _validate._ADVICE
        assert advised or general, f"{place} gives no advice on {ast.unparse(name)}"


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        ("exct", "Did you mean 'exact'[?]"),
        ("RDP", "Did you mean 'rdp'[?]"),
        ("gaussian", "'exact' is the tightest"),
        (3, "'exact' is the tightest"),
    ],
)
def test_a_wrong_choice_lists_the_choices_and_the_nearest(value, advice):
    listed = f"must be 'exact' or 'rdp'. Received: accountant={value!r}. {advice}"
    with pytest.raises(ValueError, match=listed):
        _validate.one_of("accountant", value, ["exact", "rdp"])
