# `make demo` and `make test` set up what they need in .venv; nothing is installed elsewhere.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Tiny models: a process per core is faster than a thread per core.
FAST := OMP_NUM_THREADS=1 $(BIN)/pytest -q -n auto

.PHONY: demo test test-fast bench lint stubs protos released-protos clean

demo: $(STAMP)
	$(BIN)/crossdraft demo

test: test-fast
	$(FAST) -m "long or kernels"
	$(BIN)/pytest -q -m models

test-fast: lint
	$(FAST) -m "not models and not long and not kernels"

bench: $(STAMP)
	$(BIN)/python -m bench $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/buf lint proto
	$(BIN)/buf format proto --diff --exit-code
	$(BIN)/buf breaking proto --against proto/released.binpb

# The committed stubs are what these protos generate; one of the fast tests too.
stubs: $(STAMP)
	$(BIN)/pytest -q tests/wire/test_stubs.py

protos: $(STAMP)
	$(BIN)/python proto/generate.py

# After a release: what later protos must not break.
released-protos: $(STAMP)
	$(BIN)/buf build proto -o proto/released.binpb

# torch first and by itself: it is the big one, and the rest must not pull in another.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,bench]'
	command -v kubectl >/dev/null || command -v kustomize >/dev/null || $(BIN)/python -m tests.deploy.kubectl_binary
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis bench/out
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
