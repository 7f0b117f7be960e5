# `make help` lists the targets. Everything runs in .venv, which `make setup` builds from a lock.

PYTHON ?= python3
PRESET ?= verdict
# Repeats of `make compare`: five to seven, until every question is decided. Seven take up to three minutes on two cores.
UNTIL := --until-decided --most-repeats 7 --smallest-effect 10%
DIR ?= $(patsubst %/,%,$(firstword $(shell ls -td results/*/ 2>/dev/null)))

BIN := .venv/bin
STAMP := .venv/.installed-lock
# Without an NVIDIA driver: both frameworks without what only a GPU needs. LOCK=requirements.lock takes all.
LOCK ?= $(if $(wildcard /proc/driver/nvidia/version /usr/lib/wsl/lib/libcuda.so*),requirements.lock,locks/cpu.lock)
PYTEST := $(BIN)/python -m pytest
# Those that share the environment of the suite: the extra `all`.
PLUGINS := plugins/hangs plugins/keras_twin

# Byte code is kept, whatever the environment says: a comparison starts a process for each run, the tests start hundreds, and
# without it each spends seconds to compile its framework's Python again.
export PYTHONDONTWRITEBYTECODE :=
# A lock names each version and its hash. A machine's constraints can only contradict it.
export PIP_CONSTRAINT := /dev/null

.DEFAULT_GOAL := help
.PHONY: another-lock lost-links help setup format check test snapshots test-all gate bench compare report docs example measurements sbom clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) $(BIN)/convtwins ## Build .venv from the lock for this machine (PYTHON=python3.12 to choose the interpreter)

# The stamp holds the lock that was installed, and is written last: an interrupted set-up starts again, a finished one does not.
# An environment of requirements.lock holds all that the lock for CPUs has, so it is kept. A lock names everything: --no-deps.
# Without --no-compile a third of the time goes to byte code, most of it of modules that nobody imports.
$(STAMP): $(LOCK) $(shell cmp -s $(LOCK) $(STAMP) || cmp -s requirements.lock $(STAMP) || echo another-lock)
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else \
	    "Python must be 3.11 to 3.13. Received: $(PYTHON) = %d.%d. Use make PYTHON=python3.12 (or 3.11, 3.13)." % v)'
	@if cmp -s $(LOCK) $@ || cmp -s requirements.lock $@; then touch $@; else \
	    set -e; \
	    echo "Setting up .venv from $(LOCK) (PyTorch and TensorFlow, about 3 GB to download): 2 to 10 minutes without a word"; \
	    rm -rf .venv; \
	    $(PYTHON) -m venv .venv; \
	    $(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --no-input --no-deps --require-hashes -r $(LOCK); \
	    cp $(LOCK) $@; \
	fi

# The command and its plug-ins, which run the code of this checkout. They are built with the lock's setuptools, and nothing is
# downloaded. Links to the code stay in build/, see pyproject.toml. JAX has an environment of its own, and so has Keras on JAX.
$(BIN)/convtwins: $(STAMP) pyproject.toml setup.py $(PLUGINS:%=%/pyproject.toml) $(shell ls -d build/__editable__* > /dev/null 2>&1 || echo lost-links)
	@$(BIN)/python -m pip install --no-index --no-deps --no-build-isolation --quiet --disable-pip-version-check $(patsubst %,--editable %,. $(PLUGINS:%=./%))
	@rm -rf build/lib build/bdist.* convtwins.egg-info $(PLUGINS:%=%/build) $(PLUGINS:%=%/*.egg-info) $(PLUGINS:%=%/src/*.egg-info)

format: setup ## Format the code and mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: setup ## Format, lint, types and the convention tests: before every commit
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/pyright --project pyright-twins.json
	$(PYTEST) tests/conventions

test: setup ## The quick suite: its parts, as many at once as there are cores, and what each took
	$(BIN)/python -m tests.suite

snapshots: setup ## Renew what is kept of everything printed, after a wanted change. Read the difference before you commit it.
	$(PYTEST) tests/compare tests/parity plugins/hangs/tests -m snapshots --snapshot-update --quiet

test-all: setup ## The quick suite and the slow tests
	$(BIN)/python -m tests.suite --slow

bench: setup run-benchmarks ## Time the frameworks: pytest-benchmark for history (.benchmarks), then the bars that are ratios
	$(BIN)/python -m tests.benchmarks.bars

gate: setup ## What the suite itself costs, against its last release (RELEASE=revision): ratios of processor time
	$(BIN)/python -m tests.benchmarks.gate $(or $(RELEASE),$(shell cat .ci/release))

.PHONY: run-benchmarks
run-benchmarks: BENCHMARK := $(PYTEST) tests/benchmarks --benchmark-only --benchmark-autosave --benchmark-save-data
run-benchmarks: setup
	$(BENCHMARK) --framework pytorch
	$(BENCHMARK) --framework tensorflow
	$(BENCHMARK)

compare: setup ## The head-to-head: train in both frameworks, serially and in parallel (PRESET=verdict)
	$(BIN)/convtwins run --preset $(PRESET) $(if $(filter verdict,$(PRESET)),$(UNTIL))

report: setup ## Tables and plots again from stored results (DIR=results/..., else the newest)
	@test -n "$(DIR)" || { echo "There are no results to report. Run make compare, or give DIR=<folder of a comparison>." >&2; exit 2; }
	$(BIN)/convtwins report "$(DIR)"

docs: setup .venv-docs/.installed ## The pages as a site, in site/. Every link is checked.
	.venv-docs/bin/mkdocs build

# An environment of its own: what makes the site needs no framework, and may need other versions.
.venv-docs/.installed: requirements-docs.txt
	$(BIN)/python -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-docs.txt
	touch $@

example: setup .venv-docs/.installed ## Train the example of docs again (five repeats, idle cores), and renew the page, the picture and the notebook that show it
	PATH="$(CURDIR)/.venv-docs/bin:$$PATH" $(BIN)/python docs/renew.py

measurements: setup ## The tables of docs/measurements.md again, from stored results
	$(BIN)/python docs/renew.py measure

sbom: setup .venv-sbom/.installed ## The software bill of materials of all locks, with licences: locks/sbom.cdx.json
	$(PYTEST) --quiet tests/conventions/test_licences.py
	.venv-sbom/bin/python locks/sbom.py

.venv-sbom/.installed: requirements-sbom.txt
	$(BIN)/python -m venv .venv-sbom
	.venv-sbom/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-sbom.txt
	touch $@

clean: ## Remove caches and build leftovers; results, .benchmarks and .venv stay
	rm -rf .pytest_cache .ruff_cache .hypothesis .coverage build/lib build/bdist.* dist *.egg-info # the rest of build is of .venv
	find . -path ./.venv -prune -o -path ./results -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
