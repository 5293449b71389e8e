# make demo    set everything up and run the main job
# make test    set everything up and run the tests
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo check format test bench docs clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## make the virtual environment, install Outrider and fetch the default model
	@$(BIN)/outrider pull smollm2-135m-instruct >/dev/null

$(STAMP): pyproject.toml requirements-dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Outrider needs Python 3.11 or newer, and $(PYTHON) is older; use make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

demo: setup ## generate three texts with speculation off and on, and compare them
	$(BIN)/outrider demo

check: $(STAMP) ## lint, types, layers, and whether the generated docs are fresh
	$(BIN)/ruff format --check src tests docs benchmarks
	$(BIN)/ruff check src tests docs benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python docs/make_cli.py --check

format: $(STAMP) ## let ruff format the code
	$(BIN)/ruff check --fix src tests docs benchmarks
	$(BIN)/ruff format src tests docs benchmarks

test: setup ## all tests
	$(BIN)/python -m pytest

bench: setup ## the figures quoted in the README, written to benchmarks/results
	$(BIN)/python benchmarks/first_light.py --json benchmarks/results/first_light.json

docs: $(STAMP) ## write docs/cli.md anew from the commands' own help
	$(BIN)/python docs/make_cli.py

clean: ## remove what make has made
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
