# `make demo`, `make test`, `make test-all` and `make docs` set up .venv by themselves: the demo installs what a forecast needs,
# the tests add PyTorch and the tools, all tests Ray and JAX, the documents their site generator. They can be run in any order.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PLAIN := $(VENV)/.installed-plain
STAMP := $(VENV)/.installed
ALL := $(VENV)/.installed-all
DOCS := $(VENV)/.installed-docs
PROGRAMS := $(VENV)/.programs
# Of the packages, a third of the files is ever imported. So pip compiles none; what forecasts, searches and tests import is
# imported once right after: where PYTHONDONTWRITEBYTECODE is set, as in many containers, every start would compile it anew.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
COMPILE := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python
RUNTIME := import traincast.cli.main, rich.progress, rich.table, pyarrow.parquet, safetensors.numpy, numba; numba.njit(lambda: 0)()

.PHONY: demo test test-all lint types unit unit-forecasts unit-searches ledger docs bench graphs format clean

$(PLAIN): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	$(COMPILE) -m compileall -q src/traincast
	$(COMPILE) -c '$(RUNTIME)'
	touch $@

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[dev]'
	$(PIP) --no-deps 'HolisticTraceAnalysis>=0.5'
	$(COMPILE) -m compileall -q src/traincast
	$(COMPILE) -c '$(RUNTIME); import torch, transformers'
	touch $(PLAIN) $(DOCS) $@

$(ALL): $(STAMP)
	$(PIP) -e '.[ray,jax]'
	touch $@

$(DOCS): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[docs]'
	touch $(PLAIN) $@

# The tests of pages need Chromium, those of shaped networks ip, tc, nsenter and root. Without them, and without the right to
# install them, these tests are skipped and say so.
$(PROGRAMS):
	@mkdir -p $(VENV)
	@missing=; \
	{ command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null || missing=chromium; \
	{ command -v ip && command -v tc && command -v nsenter; } >/dev/null || missing="$$missing iproute2 util-linux"; \
	if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing for the tests: $$missing"; \
		(apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing) >/dev/null 2>&1 \
			|| echo "could not install $$missing: the tests that need them are skipped"; \
	elif [ -n "$$missing" ]; then \
		echo "not here: $$missing; the tests that need them are skipped"; \
	fi
	@touch $@

demo: $(PLAIN)
	mkdir -p demo
	$(BIN)/traincast predict llama3-8b --cluster dgx-h100:4 --strategy dp=8,tp=4 --global-batch 256 --tokens 1e12 --trace demo/llama3-8b.trace.json --html demo/llama3-8b.html

# Two tiers of tests (tests/tiers.py): `make test` leaves out what is marked long and is run before a commit; `make test-all`
# runs everything, with Ray and JAX, and compares the whole ledger. Packages of Python and programs of the system are installed
# at once. The types are checked beside the tests: forecasts in one process, types and then searches in the other.
TIER := -m 'not long'

test:
	$(MAKE) --no-print-directory -j2 $(STAMP) $(PROGRAMS)
	$(MAKE) --no-print-directory lint
	$(MAKE) --no-print-directory -j2 unit-forecasts types unit-searches

test-all:
	$(MAKE) --no-print-directory -j2 $(ALL) $(PROGRAMS)
	$(MAKE) --no-print-directory lint
	$(MAKE) --no-print-directory -j2 TIER= unit-forecasts types unit-searches
	$(MAKE) --no-print-directory ledger

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell src tests docs examples benchmarks README.md CHANGELOG.md CONTRIBUTING.md

types: $(STAMP)
	$(BIN)/mypy

# Two processes of about the same length, of one thread each: threads that wait for a core of the other would take longer; tests that start processes themselves are in the second. Those of engines come
# last: they load Ray, beside which no process is forked.
SEARCHES := tests/laws tests/fitting tests/searching tests/scheduling tests/cli tests/profiling tests/testbed tests/engines

unit: $(STAMP) $(PROGRAMS)
	$(MAKE) --no-print-directory -j2 unit-forecasts unit-searches

unit-forecasts: $(STAMP) $(PROGRAMS)
	OMP_NUM_THREADS=1 $(COMPILE) -m pytest $(TIER) $(SEARCHES:%=--ignore=%)

unit-searches: $(STAMP) $(PROGRAMS)
	OMP_NUM_THREADS=1 $(COMPILE) -m pytest $(TIER) $(SEARCHES)

# The whole ledger of exact values; entries of tables that are not here are skipped.
ledger: $(STAMP)
	$(BIN)/python -m benchmarks.ledger compare

# The documents as a site, in build/site. It is built and read without network; a warning is an error.
docs: $(DOCS)
	$(BIN)/python -m sphinx -q -W --keep-going docs build/site
	@echo 'open build/site/index.html'

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# The captured models that ship with the package, made anew (seven minutes): after a change of the code that captures (CAPTURING in src/traincast/graph/cache.py) or of the zoo.
graphs: $(STAMP)
	$(BIN)/python -m benchmarks.graphs

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) demo
