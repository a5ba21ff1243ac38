# Two commands: `make demo` shows the product at work, `make test` proves it. Both set up what they need, once.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

# The page, built into the Python package, and what it is built from.
PAGE := src/livetables/web/index.html
PAGE_SOURCES := $(shell find web/core/src web/angular/src web/angular/ag-grid web/app/src web/app/angular.json -type f)

.PHONY: help
help:
	@echo "make demo    set everything up and run it: Kafka, demo records, Spark, and the tables at one URL"
	@echo "make test    set everything up and run linters, types and all tests"
	@echo "make check   the quick part of it: linters, types, and tests that start no processes"
	@echo "make coverage  the tests without Kafka and Spark, and which lines they run"
	@echo "make bench   measure the pipeline, the server, the whole way beside the peer, and swaps (see docs/BENCHMARKS.md)"
	@echo "make chaos   1,000 faults, control messages, kills and swaps against real processes, and the oldest Angular (an hour and a half)"
	@echo "make wheel   build livetables and livetables-client into dist"
	@echo "make npm     pack @livetables/client and @livetables/angular into dist"
	@echo "make lock    resolve the dependencies anew: Python's into requirements.lock, Java's into src/livetables/jvm/jars.sha256"
	@echo "make clean   remove everything that set-up made"

.PHONY: demo
demo: .venv/ready .jars/ready $(PAGE)
	@$(BIN)/livetables up --demo

# What mostly waits for Kafka and Spark in one run, whole systems among it, and the web packages; in another, at the same
# time, what needs neither, and the page in a browser. The second is shown when both have ended. What takes longest is in
# `make chaos`.
SHORT := (spark or kafka) and not chaos
QUICK := not spark and not kafka and not chaos

# Java's quick compiler alone: no test runs long enough to win back what the thorough one takes from two cores.
test chaos: export JDK_JAVA_OPTIONS := -XX:TieredStopAtLevel=1

.PHONY: test
test:
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=target lint .jars/ready $(PAGE) packages npm
	@echo "two runs side by side; the second is shown at the end"
	@second=$$(mktemp); { \
		$(BIN)/pytest -p no:cacheprovider -m "$(QUICK)"; quick=$$?; \
		npm --prefix web run --silent test -w e2e; exit $$((quick || $$?)); \
	} > $$second 2>&1 & running=$$!; \
	$(BIN)/pytest -m "$(SHORT)"; first=$$?; \
	npm --prefix web run --silent check; web=$$?; \
	wait $$running; other=$$?; cat $$second; rm $$second; exit $$((first || web || other))

.PHONY: check
check: lint
	$(BIN)/pytest -m "$(QUICK) and not processes"

# The tests without Kafka and Spark, with the lines that they run counted, and the floor of `pyproject.toml`. Apart: the
# tracer makes them slower.
.PHONY: coverage
coverage: .venv/ready
	@mkdir -p .cache
	$(BIN)/coverage run -m pytest -m "$(QUICK)"
	$(BIN)/coverage report

.PHONY: lint
lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.PHONY: bench
bench: .venv/ready .jars/ready
	$(BIN)/python -m bench
	$(BIN)/python -m bench.serving
	$(BIN)/python -m bench.frames
	$(BIN)/python -m bench.whole
	$(BIN)/python -m bench.swap

.PHONY: chaos
chaos: .venv/ready .jars/ready $(PAGE) packages npm
	$(BIN)/pytest -m chaos
	$(BIN)/python -m tests.chaos
	npm --prefix web run --silent oldest -w e2e

.PHONY: wheel
wheel: .venv/ready $(PAGE)
	@$(BIN)/python -m wheels

.PHONY: npm
npm: web/node_modules/ready
	@npm --prefix web run --silent pack

.PHONY: lock
lock: .venv/ready
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--extra dev pyproject.toml --output-file requirements.lock
	$(BIN)/python -m livetables.jvm --list

.PHONY: clean
clean:
	rm -rf .venv .jars .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis dist src/livetables/web
	rm -rf web/node_modules web/*/node_modules web/*/dist web/*/.angular

.venv/ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "livetables needs Python 3.11 or newer: set PYTHON=/path/to/it"; exit 1; }
	@echo "setting up Python packages in .venv"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

web/node_modules/ready: web/package-lock.json
	@command -v npm >/dev/null || { echo "the page is built with Node 20 and npm: install nodejs"; exit 1; }
	@echo "setting up the web packages in web/node_modules"
	@npm --prefix web ci --silent --no-audit --no-fund
	@touch $@

$(PAGE): web/node_modules/ready $(PAGE_SOURCES)
	@echo "building the page into src/livetables/web"
	@npm --prefix web run --silent build
	@touch $@

# What the tests take from the system's packages: the browser for the page, and the library that sets clocks.
.PHONY: packages
packages:
	@missing=$$(command -v chromium >/dev/null || echo chromium; \
		compgen -G "/usr/lib/*/faketime/libfaketimeMT.so.1" >/dev/null || echo libfaketime); \
	test -z "$$missing" || { echo "installing from the system's packages:" $$missing; \
		{ apt-get update -qq && apt-get install -qq --yes --no-install-recommends $$missing >/dev/null; } \
		|| { echo "the tests need more of the system's packages: install (as root)" $$missing; exit 1; }; }

.jars/ready: src/livetables/jvm/jars.sha256 $(wildcard src/livetables/jvm/java/*.java) requirements.lock | .venv/ready
	@command -v javac >/dev/null || test -x "$$JAVA_HOME/bin/javac" || { echo "two classes are compiled for Spark: install a JDK 17 (openjdk-17-jdk-headless)"; exit 1; }
	@$(BIN)/python -m livetables.jvm .jars
	@touch $@
