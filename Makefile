# Two commands matter to a newcomer: `make demo` and `make test`. `make help` lists the rest.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export TM_PARTS_DIR ?= $(CURDIR)/.parts
# KERNEL=python: nothing is compiled, and nothing compiled is used.
ifdef KERNEL
export TM_KERNEL := $(KERNEL)
endif
UV := $(shell command -v uv 2>/dev/null || echo $(BIN)/uv)

.PHONY: help setup demo docs test lint types unit vectors soak lock log-store schemas release-schemas java

help: ## what can be made here
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

setup: $(STAMP) ## the virtual environment with everything in it
	@$(if $(filter python,$(KERNEL)),,$(BIN)/python kernel/install.py)

$(STAMP): pyproject.toml requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Python 3.11 or newer is needed, and '$(PYTHON)' is not that. Install it (Debian: apt install python3.11 python3.11-venv) or say make PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  echo "python -m venv failed: install the venv module (Debian: apt install python3-venv)"; exit 1; }
	@command -v uv >/dev/null || test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

java:
	@java -version 2>&1 | grep -qE 'version "?(1[7-9]|[2-9][0-9])' || { \
	  echo "Java 17 or newer is needed on the PATH for Spark and Kafka (Debian: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17)"; exit 1; }

demo: setup java ## replay, event bus and lakehouse on bundled, synthetic sample data
	$(BIN)/python examples/demo.py --output demo-output $(if $(KEEP),--keep)

test: setup java lint types unit vectors ## everything CI checks

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache

types:
	$(BIN)/mypy

# What needs Spark runs beside the rest, and is printed after it: most of both is waiting.
SPARK_TESTS := $(VENV)/spark-tests.txt

unit:
	@set -m; $(BIN)/python -m pytest -m spark >$(SPARK_TESTS) 2>&1 & spark=$$!; \
	trap 'kill -INT $$spark 2>/dev/null && wait $$spark' EXIT; trap 'exit 130' INT TERM; \
	failed=0; $(BIN)/python -m pytest -m "not spark" || failed=$$?; \
	echo "Waiting for the tests that need Spark: tail -f $(SPARK_TESTS)"; \
	wait $$spark || failed=$$?; cat $(SPARK_TESTS); exit $$failed

soak: setup java ## new examples for properties, 10,000 hostile requests, minutes of outages and deaths; SOAK_S=600 for more
	$(BIN)/python -m pytest --hypothesis-profile "look further" -m "hypothesis and not spark"
	FUZZ_CASES=2500 $(BIN)/python -m pytest --timeout 3600 tests/clients/test_fuzz.py
	$(BIN)/python -m pytest tests/publish/soak.py tests/live/soak.py

vectors: ## the shared exchange vectors, where they are there
	@if test -d ../shared/vectors; then for each in $$($(BIN)/python -m tests.kernels); do \
	    TM_KERNEL=$$each $(BIN)/python -m tests.vectors ../shared/vectors ../shared/reference/exchanges.json; done; \
	  else echo "no ../shared/vectors here: nothing to compare with"; fi

docs: setup ## renew the pages that are made from settings and registry
	$(BIN)/tardis-machine config --markdown > docs/configuration.md
	$(BIN)/tardis-machine exchanges --markdown > docs/exchanges.md

COMPILE := $(UV) pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-header
SERVER_EXTRAS := kafka aws redis nats arrow

lock: ## renew the locked versions
	@test -x $(BIN)/uv || $(MAKE) setup
	$(COMPILE) --upgrade --extra all --group dev pyproject.toml -o requirements/dev.txt
	$(COMPILE) -c requirements/dev.txt $(addprefix --extra ,$(SERVER_EXTRAS)) pyproject.toml -o requirements/server.txt
	$(COMPILE) -c requirements/dev.txt $(addprefix --extra ,$(SERVER_EXTRAS) spark) pyproject.toml -o requirements/spark.txt

LAKE := src/tardis_machine/lake

log-store: setup ## compile the stores of Delta's log, on S3 and on this machine (needs a JDK)
	rm -rf build/log-store && mkdir -p build/log-store
	javac --release 17 -d build/log-store $(LAKE)/java/tardismachine/lake/*.java -cp \
	  "$$($(BIN)/python -c 'import pyspark; from tardis_machine.lake.session import jars; print(":".join([pyspark.__path__[0] + "/jars/*", *map(str, jars())]))')"
	jar --create --file $(LAKE)/log-stores.jar --date=2020-01-01T00:00:00Z -C build/log-store tardismachine

BUF := cd schemas && PATH="$(CURDIR)/$(BIN):$$PATH" buf
DESCRIPTORS := ../src/generated/lakehouse/descriptors.binpb

schemas: setup ## format, lint and check the schemas, and generate code from them
	$(BUF) format --write
	$(BUF) lint
	$(BUF) breaking --against released.binpb
	$(BUF) generate
	$(BUF) build --as-file-descriptor-set --output $(DESCRIPTORS)

release-schemas: schemas ## make the schemas as they are what later changes must not break
	$(BUF) build --output released.binpb
