# `make demo`, `make test` and `make docs` set up .venv by themselves: the demo installs what a forecast needs, the tests add
# PyTorch and the tools, the documents add their site generator. They can be run in any order.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PLAIN := $(VENV)/.installed-plain
STAMP := $(VENV)/.installed
DOCS := $(VENV)/.installed-docs
BROWSER := $(VENV)/.browser
TOOLS := $(VENV)/.network-tools
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint types unit unit-forecasts unit-searches docs bench graphs format clean

$(PLAIN): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[dev]'
	$(PIP) --no-deps 'HolisticTraceAnalysis>=0.5'
	touch $(PLAIN) $(DOCS) $@

$(DOCS): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[docs]'
	touch $(PLAIN) $@

# The tests of pages need Chromium. Without it, and without the right to install it, they are skipped and say so.
$(BROWSER): $(STAMP)
	@if ! { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo "installing chromium for the tests of pages"; \
			(apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium) >/dev/null 2>&1 \
				|| echo "chromium could not be installed: the tests of pages are skipped"; \
		else \
			echo "no chromium here: the tests of pages are skipped; install chromium or google-chrome to run them"; \
		fi; \
	fi
	@touch $@

# The tests of shaped networks need ip, tc and nsenter, and root. Without them they are skipped and say so.
$(TOOLS): $(STAMP)
	@if [ "$$(id -u)" = 0 ] && ! { command -v ip && command -v tc && command -v nsenter; } >/dev/null; then \
		if command -v apt-get >/dev/null; then \
			echo "installing iproute2 and util-linux for the tests of shaped networks"; \
			(apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends iproute2 util-linux) >/dev/null 2>&1 \
				|| echo "iproute2 could not be installed: the tests of shaped networks are skipped"; \
		else \
			echo "no ip, tc or nsenter here: the tests of shaped networks are skipped; install iproute2 and util-linux to run them"; \
		fi; \
	fi
	@touch $@

demo: $(PLAIN)
	mkdir -p demo
	$(BIN)/traincast predict llama3-8b --cluster dgx-h100:4 --strategy dp=8,tp=4 --global-batch 256 --tokens 1e12 --trace demo/llama3-8b.trace.json --html demo/llama3-8b.html

# The types are checked beside the tests: forecasts in one process, types and then searches in the other.
test: lint $(BROWSER) $(TOOLS)
	$(MAKE) --no-print-directory -j2 unit-forecasts types unit-searches

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell src tests docs examples benchmarks README.md CHANGELOG.md CONTRIBUTING.md

types: $(STAMP)
	$(BIN)/mypy

# Two processes of about the same length; tests that start processes themselves are in the second. Those of engines come
# last: they load Ray, beside which no process is forked.
SEARCHES := tests/laws tests/fitting tests/searching tests/scheduling tests/cli tests/profiling tests/testbed tests/engines

unit: $(STAMP) $(BROWSER) $(TOOLS)
	$(MAKE) --no-print-directory -j2 unit-forecasts unit-searches

unit-forecasts: $(STAMP) $(BROWSER)
	$(BIN)/python -m pytest $(SEARCHES:%=--ignore=%)

unit-searches: $(STAMP) $(TOOLS)
	$(BIN)/python -m pytest $(SEARCHES)

# The documents as a site, in build/site. It is built and read without network; a warning is an error.
docs: $(DOCS)
	$(BIN)/python -m sphinx -q -W --keep-going docs build/site
	@echo 'open build/site/index.html'

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# The captured models that ship with the package, made anew (seven minutes): after any change of src/traincast/graph.
graphs: $(STAMP)
	$(BIN)/python -m benchmarks.graphs

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) demo
