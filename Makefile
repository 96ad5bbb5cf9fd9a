# Two commands matter to a newcomer: `make demo` and `make test`. `make help` lists the rest.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export TM_JARS_DIR ?= $(CURDIR)/.cache/jars
# KERNEL=python: nothing is compiled, and nothing compiled is used.
ifdef KERNEL
export TM_KERNEL := $(KERNEL)
endif
UV := $(shell command -v uv 2>/dev/null || echo $(BIN)/uv)

.PHONY: help setup dist demo docs test test-all unit rest format lint types vectors soak lock log-store schemas release-schemas java

help: ## what can be made here
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

setup: $(STAMP) ## the virtual environment with everything in it
	@$(BIN)/python kernel/build.py

$(STAMP): pyproject.toml requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Python 3.11 or newer is needed, and '$(PYTHON)' is not that. Install it (Debian: apt install python3.11 python3.11-venv) or say make PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  echo "python -m venv failed: install the venv module (Debian: apt install python3-venv)"; exit 1; }
	@command -v uv >/dev/null || test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.txt
	TM_KERNEL=python $(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@$(UV) pip uninstall --quiet --python $(BIN)/python tardis-machine-kernel  # of earlier clones
	@touch $@

DIST_DIR ?= dist
DIST := $(UV) build --quiet --python $(BIN)/python --no-build-isolation --out-dir $(DIST_DIR)

dist: setup ## the wheel with the kernel, the pure one and the source distribution, in dist/
	rm -rf $(DIST_DIR)
	TM_KERNEL=compiled $(DIST) --wheel
	TM_KERNEL=python $(DIST) --wheel
	$(DIST) --sdist

java:
	@java -version 2>&1 | grep -qE 'version "?(1[7-9]|[2-9][0-9])' || { \
	  echo "Java 17 or newer is needed on the PATH for Spark and Kafka (Debian: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17)"; exit 1; }

demo: setup java ## replay, event bus and lakehouse on bundled, synthetic sample data
	$(BIN)/python examples/demo.py --output demo-output $(if $(KEEP),--keep)

# Tests of `rest` have a marker that says why they are not in `test`; pyproject.toml explains them.
REST := faults or slow or cluster or fuzz or memory or python_kernel
# Two workers, also where there are more cores: one has all that needs Java (tests/conftest.py).
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --durations 10

test: setup java lint types unit vectors ## every check, and a whole path through each real server: ten minutes

test-all: test rest ## and faults, kills, outages, clusters, fuzzing, memory, both kernels: forty minutes

unit: setup java
	$(PYTEST) -m "not ($(REST))"

rest: setup java ## what test-all has beyond test
	$(PYTEST) -m "$(REST)"
	$(if $(filter python,$(KERNEL)),,TM_KERNEL=python $(MAKE) vectors)

CARGO := $(shell cd kernel && cargo --version >/dev/null 2>&1 && echo cargo)

format: ## write Python and Rust as the linters want them
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format --quiet .
	$(if $(CARGO),cd kernel && cargo fmt)

# Modules whose docstrings are the reference of the Python API.
PUBLIC := $(addprefix src/tardis_machine/,__init__.py messages/__init__.py messages/types.py messages/json.py live/stream.py replays/__init__.py server/app.py bronze/__init__.py lake/__init__.py errors.py history/filters.py)

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/typos
	$(BIN)/pydoclint --quiet $(PUBLIC)
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/style
	$(if $(CARGO),cd kernel && cargo fmt --check && cargo clippy --quiet --all-targets -- -D warnings,@echo "No working cargo: the kernel's source is not checked")

types:
	$(BIN)/mypy

soak: setup java ## new examples for properties, 10,000 hostile requests, minutes of outages and deaths; SOAK_S=600 for more
	$(BIN)/python -m pytest --hypothesis-profile "look further" -m "hypothesis and not spark"
	FUZZ_CASES=2500 $(BIN)/python -m pytest --timeout 3600 tests/clients/test_fuzz.py
	$(BIN)/python -m pytest tests/publish/soak.py tests/live/soak.py

vectors: ## the shared exchange vectors, where they are there
	@if test -d ../shared/vectors; \
	  then $(BIN)/python -m tests.vectors ../shared/vectors ../shared/reference/exchanges.json; \
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
DESCRIPTORS := ../src/tardis_machine/generated/lakehouse/descriptors.binpb

schemas: setup ## format, lint and check the schemas, and generate code from them
	$(BUF) format --write
	$(BUF) lint
	$(BUF) breaking --against released.binpb
	$(BUF) generate
	$(BUF) build --as-file-descriptor-set --output $(DESCRIPTORS)

release-schemas: schemas ## make the schemas as they are what later changes must not break
	$(BUF) build --output released.binpb
