# Everything a newcomer needs: `make demo` does the main job, `make test` proves it. Both set up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup demo test test-browser check bench bench-gpu clean

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
	$(BIN)/ruff format --check src tests benchmarks recipes
	$(BIN)/ruff check src tests benchmarks recipes
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow'

# make bench DATA=folder: where cls-books-fr and fr-corpus are.
bench: setup
	@test -d "$(DATA)/cls-books-fr" || { echo "say where the data is: make bench DATA=folder"; exit 2; }
	$(BIN)/python -m pip install --quiet --editable '.[dev,bench]'
	$(BIN)/python benchmarks/speed_cpu_pretrain.py $(DATA)/cls-books-fr
	$(BIN)/python benchmarks/speed_cpu_finetune.py $(DATA)/cls-books-fr
	$(BIN)/python benchmarks/speed_cpu_predict.py $(DATA)/cls-books-fr
	$(BIN)/python benchmarks/speed_cpu_memory.py
	$(BIN)/python benchmarks/speed_cpu_prepare.py $(DATA)/fr-corpus
	$(BIN)/python benchmarks/speed_cpu_growth.py
	$(BIN)/python benchmarks/speed_cpu_large.py $(DATA)/fr-corpus
	$(BIN)/python benchmarks/profile_cpu.py
	$(BIN)/python benchmarks/speed_generate.py

# On a machine with a GPU.
bench-gpu: setup
	$(BIN)/python -m pip install --quiet --editable '.[dev,bench]'
	$(BIN)/python benchmarks/speed_gpu.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
