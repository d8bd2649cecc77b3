# Everything a newcomer needs: `make demo` does the main job, `make test` proves it. Both set up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup demo test test-browser check bench clean

# torch by itself first: that alone gives the small CPU build where one is at hand; a GPU build that is there stays.
$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

setup: $(VENV)/.ready

demo: setup
	$(BIN)/headstart demo

test: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal

# The playground in a real browser; installs the browser where it may, and says what is missing where it may not.
test-browser: setup
	sh tests/browser/need.sh
	$(BIN)/python -c 'import selenium' 2>/dev/null || $(BIN)/python -m pip install --quiet --editable '.[dev,browser]'
	BROWSER_TESTS=1 $(BIN)/python -m pytest tests/browser

check: setup
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow'

bench: setup
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
