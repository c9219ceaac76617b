# `make demo`, `make test` and `make docs` set up .venv by themselves: the demo installs what a forecast needs, the tests add
# PyTorch and the tools, the documents add their site generator. They can be run in any order.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PLAIN := $(VENV)/.installed-plain
STAMP := $(VENV)/.installed
DOCS := $(VENV)/.installed-docs
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint types unit unit-forecasts unit-searches docs bench graphs format clean

$(PLAIN): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[dev]'
	touch $(PLAIN) $(DOCS) $@

$(DOCS): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[docs]'
	touch $(PLAIN) $@

demo: $(PLAIN)
	mkdir -p demo
	$(BIN)/traincast predict llama3-8b --cluster dgx-h100:4 --strategy dp=8,tp=4 --global-batch 256 --tokens 1e12 --trace demo/llama3-8b.trace.json --html demo/llama3-8b.html

test: lint types unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell src tests docs examples benchmarks README.md CHANGELOG.md CONTRIBUTING.md

types: $(STAMP)
	$(BIN)/mypy

# Two processes, about as long as each other: what starts processes itself stands in the second.
SEARCHES := tests/engines tests/searching tests/scheduling tests/cli

unit: $(STAMP)
	$(MAKE) --no-print-directory -j2 unit-forecasts unit-searches

unit-forecasts: $(STAMP)
	$(BIN)/python -m pytest $(SEARCHES:%=--ignore=%)

unit-searches: $(STAMP)
	$(BIN)/python -m pytest $(SEARCHES)

# The documents as a site, in build/site. It is built and read without network; a warning is an error.
docs: $(DOCS)
	$(BIN)/python -m sphinx -q -W --keep-going docs build/site
	@echo 'open build/site/index.html'

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# The captured models that ship with the package, made anew (two minutes): after any change of src/traincast/graph.
graphs: $(STAMP)
	$(BIN)/python -m benchmarks.graphs

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) demo
