# The two commands: `make demo` and `make test`. Both install what they need into
# .venv on first use.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export TF_CPP_MIN_LOG_LEVEL ?= 3

.PHONY: demo test lint clean

demo: $(VENV)/demo.stamp
	$(BIN)/python examples/demo.py $(ARGS)

test: $(VENV)/test.stamp lint
	$(BIN)/python -m pytest -n 2 --dist loadfile
	$(BIN)/python -m pytest -q --doctest-modules keras_gdp/accounting keras_gdp/tradeoff keras_gdp/sampling keras_gdp/tuning keras_gdp/audit

lint: $(VENV)/test.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/demo.stamp: $(VENV)/bin/python setup.cfg pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[demo]"
	touch $@

$(VENV)/test.stamp: $(VENV)/bin/python setup.cfg pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[test]"
	touch $@

clean:
	rm -rf $(VENV) out build *.egg-info .pytest_cache .mypy_cache .ruff_cache
