# Everything is done from here. Needs Python 3.11 or newer as python3, gcc, git and make; nothing else is asked for.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SOCKET := var/statesvc.sock
DATA   := var/data

# Two cores are the common case of a small build machine; most tests wait for processes, so four workers pay off.
PYTEST_ARGS ?= -n 4 --dist worksteal

PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input --quiet

# What decides whether an installation is still good.
PROJECT_FILES := pyproject.toml client/pyproject.toml client/statesvc_client/_version.py

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run test test-long check lint types imports format docs pins clean

help: ## Show what can be done
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/dev.stamp ## Make .venv with everything for development

run: $(VENV)/run.stamp ## Run the daemon in the foreground, on SQLite below var/
	@install -d -m 0700 var
	@printf 'socket  %s\ntry     %s\n' '$(SOCKET)' '$(BIN)/statesvc ping --socket $(SOCKET)'
	@exec $(BIN)/statesvc serve --no-announce --socket $(SOCKET) --data $(DATA)

test: $(VENV)/dev.stamp ## Run the tests; PYTEST_ARGS="-k name" chooses
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-long: $(VENV)/dev.stamp ## The same, with every example on every engine
	STATESVC_TEST_LONG=1 $(BIN)/python -m pytest $(PYTEST_ARGS)

check: lint types imports test ## The gate: format, lint, types, import direction, tests with warnings as errors

lint: $(VENV)/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/dev.stamp
	$(BIN)/mypy

imports: $(VENV)/dev.stamp
	$(BIN)/lint-imports

format: $(VENV)/dev.stamp ## Format the code and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## Remove .venv and caches; var/ with its data stays
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

.PHONY: bench bench-quick counts

bench: $(VENV)/dev.stamp ## Measure statesvc beside its peers, 25 minutes; writes benchmarks/results and the README
	$(BIN)/python -m benchmarks.bench $(BENCH_ARGS)

bench-quick: $(VENV)/dev.stamp ## The same in two minutes, with smaller stores; BENCH_ARGS="--only pipelined" chooses
	$(BIN)/python -m benchmarks.bench --quick $(BENCH_ARGS)

counts: $(VENV)/dev.stamp ## Count what a request takes beside what is usual; COUNTS_ARGS=--write makes it the usual
	$(BIN)/python -m benchmarks.counts $(COUNTS_ARGS)

.PHONY: faults soak fuzz fuzz-quick mutants

faults: $(VENV)/dev.stamp ## Attack the promises for some minutes; FAULTS_ARGS=--full takes hours
	$(BIN)/python -m tests.faults $(FAULTS_ARGS)

soak: $(VENV)/dev.stamp ## An hour of load with a fault a minute, after half an hour to warm up; SOAK_ARGS="--minutes 600" makes it a night
	$(BIN)/python -m tests.faults.soak $(SOAK_ARGS)

fuzz: $(VENV)/dev.stamp $(VENV)/fuzz.stamp ## Millions of broken frames, and the coverage-guided fuzzer
	$(BIN)/python -m tests.faults.fuzz --frames 5000000 --socket-frames 200000 --guided-seconds 300 $(FUZZ_ARGS)

fuzz-quick: $(VENV)/dev.stamp $(VENV)/fuzz.stamp ## The same in a minute
	$(BIN)/python -m tests.faults.fuzz --frames 20000 --socket-frames 2000 --guided-seconds 20 $(FUZZ_ARGS)

mutants: $(VENV)/dev.stamp ## Plant bugs one by one, and see the tests catch each
	$(BIN)/python -m tests.faults.mutants $(MUTANTS_ARGS)

.PHONY: audit sbom dist

audit: $(VENV)/dev.stamp $(VENV)/audit.stamp ## Look up known vulnerabilities of everything pinned; exits 2 when it cannot
	$(BIN)/python .ci/audit.py $(VENV)/audit/bin/pip-audit .ci/requirements-*.txt

$(VENV)/audit.stamp: .ci/requirements-audit.txt | $(BIN)/python
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip --quiet install --require-hashes -r .ci/requirements-audit.txt
	@touch $@

sbom: $(VENV)/dev.stamp ## Write the bill of materials of the release to dist/
	$(BIN)/python .ci/sbom.py dist/statesvc.cdx.json

dist: sbom ## Build the release into dist/: both wheels and their bill of materials
	rm -f dist/*.whl
	$(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist ./client .

# ---- installation: every file is pinned by hash, nothing is downloaded twice ----

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/run.stamp: .ci/requirements-run.txt $(PROJECT_FILES) | $(BIN)/python
	$(PIP) install --require-hashes -r .ci/requirements-run.txt
	$(PIP) install --no-deps --no-build-isolation -e ./client -e .
	@touch $@

$(VENV)/fuzz.stamp: .ci/requirements-fuzz.txt $(VENV)/dev.stamp
	$(PIP) install --require-hashes -r .ci/requirements-fuzz.txt
	@touch $@

$(VENV)/dev.stamp: .ci/requirements-dev.txt $(VENV)/run.stamp
	$(PIP) install --require-hashes -r .ci/requirements-dev.txt
	@touch $@

docs: $(VENV)/dev.stamp ## Write the generated parts of the documents again
	$(BIN)/python docs/make_protocol.py
	$(BIN)/python -m statesvc.cli.manual > docs/CLI.md

$(VENV)/pins.stamp: .ci/requirements-pins.txt | $(BIN)/python
	$(PYTHON) -m venv $(VENV)/pins
	$(VENV)/pins/bin/python -m pip --quiet install --require-hashes -r .ci/requirements-pins.txt
	@touch $@

PIN = CUSTOM_COMPILE_COMMAND='make pins' ../$(VENV)/pins/bin/pip-compile --quiet --strip-extras --allow-unsafe \
	--generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links $(PIN_ARGS)

pins: $(VENV)/pins.stamp ## Write the pinned requirements again; PIN_ARGS=--upgrade takes newer versions
	cd .ci && $(PIN) --output-file requirements-run.txt requirements-run.in
	cd .ci && $(PIN) --output-file requirements-dev.txt requirements-dev.in
	cd .ci && $(PIN) --output-file requirements-audit.txt requirements-audit.in
	cd .ci && $(PIN) --output-file requirements-fuzz.txt requirements-fuzz.in
	cd .ci && $(PIN) --output-file requirements-pins.txt requirements-pins.in
	@touch $(VENV)/pins.stamp
