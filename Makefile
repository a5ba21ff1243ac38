# Two commands: `make demo` shows the product at work, `make test` proves it. Both set up what they need, once.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: help
help:
	@echo "make demo    set everything up and run it: Kafka, demo records, Spark, and the tables at one URL"
	@echo "make test    set everything up and run linters, types and all tests"
	@echo "make check   the quick part of it: linters, types, and tests without Kafka and Spark"
	@echo "make bench   measure the pipeline, the server, the whole way beside the peer, and swaps (see docs/BENCHMARKS.md)"
	@echo "make chaos   random control messages, mishaps, kills and swaps against real processes (about half an hour)"
	@echo "make lock    resolve the Python dependencies anew into requirements.lock"
	@echo "make clean   remove everything that set-up made"

.PHONY: demo
demo: .venv/ready .jars/ready
	@$(BIN)/livetables up --demo

.PHONY: test
test: lint .jars/ready
	@echo "two runs side by side: what needs Kafka and Spark, and mostly waits for them; and the rest, shown at the end"
	@rest=$$(mktemp); $(BIN)/pytest -p no:cacheprovider -m "not spark and not kafka" > $$rest 2>&1 & running=$$!; \
	$(BIN)/pytest -m "spark or kafka"; heavy=$$?; \
	wait $$running; light=$$?; cat $$rest; rm $$rest; exit $$((heavy || light))

.PHONY: check
check: lint
	$(BIN)/pytest -m "not spark and not kafka"

.PHONY: lint
lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.PHONY: bench
bench: .venv/ready .jars/ready
	$(BIN)/python -m bench
	$(BIN)/python -m bench.serving
	$(BIN)/python -m bench.whole
	$(BIN)/python -m bench.swap

.PHONY: chaos
chaos: .venv/ready .jars/ready
	$(BIN)/python -m tests.chaos

.PHONY: lock
lock: .venv/ready
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--extra dev pyproject.toml --output-file requirements.lock

.PHONY: clean
clean:
	rm -rf .venv .jars .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis

.venv/ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "livetables needs Python 3.11 or newer: set PYTHON=/path/to/it"; exit 1; }
	@echo "setting up Python packages in .venv"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

.jars/ready: jvm/spark/pom.xml jvm/broker/pom.xml
	@command -v java >/dev/null || { echo "livetables needs Java 17: install openjdk-17-jre-headless"; exit 1; }
	@command -v mvn >/dev/null || { echo "livetables needs Maven to fetch the Kafka jars: install maven"; exit 1; }
	@echo "fetching the Kafka and Spark jars into .jars"
	@rm -rf .jars
	@for set in spark broker; do \
		mvn --batch-mode --quiet --file jvm/$$set/pom.xml dependency:copy-dependencies \
			-DincludeScope=runtime -DoutputDirectory="$(CURDIR)/.jars/$$set" || exit 1; \
	done
	@touch $@
