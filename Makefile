# Baton from a fresh checkout: needs make and Python 3.11 or newer, and sets up the rest in .venv by itself.

BATON := .venv/bin/baton
PY := .venv/bin/python

# The index of another build of PyTorch, for example one without CUDA; empty takes the default one.
TORCH_INDEX ?=
# Python compiles what is imported when it is imported; to compile all that comes takes a minute, most of it for nothing.
PIP_INSTALL := $(PY) -m pip install -qq --no-compile --disable-pip-version-check --constraint constraints.txt \
	$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

# What `make bench` measures.
MODEL ?= qwen2.5-coder-0.5b
PEER = $(if $(wildcard .venv/lib/python*/site-packages/llama_cpp),--peer llama.cpp)

# Many processes are started by the tests, and each would compile all it imports anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help app demo test pytest lint style types soak screenshots models bench peer clean

help:
	@echo "make app     open the window"
	@echo "make demo    two engines on this computer answer one question"
	@echo "make test    format, lint, import rules, types and tests"
	@echo "make soak    the long tests: fuzzing, kills, endurance"
	@echo "make screenshots  pictures of every page, into docs/screenshots/all; the README's beside it"
	@echo "make models  fetch every model of the catalogue; the tests that want one skip without"
	@echo "make bench   every benchmark, of MODEL ($(MODEL)), beside llama.cpp after make peer"
	@echo "make peer    build llama.cpp for this computer, to compare with (about 10 minutes)"
	@echo "make clean   remove what was built here; models stay in the user's cache"

demo: .venv/ready
	@$(BATON) demo

app: .venv/ready-app
	@$(BATON)

# Types are looked at while the tests run: that takes most of a minute, of one core alone.
test: style
	$(BATON) models get smollm2-135m
	@$(MAKE) --no-print-directory --jobs 2 types pytest

# Files run in the order of their folders, after the longest ones: the last are short, and no process waits for the other.
pytest: .venv/ready-dev
	$(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 40 --durations-min 5

lint: style types

style: .venv/ready-dev
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	.venv/bin/lint-imports --no-logo

types: .venv/ready-dev
	$(PY) -m mypy

soak: .venv/ready-dev
	$(BATON) models get smollm2-135m
	$(PY) -m pytest -m "soak or fault"

screenshots: .venv/ready-dev
	$(PY) -m tests.app.screenshots docs/screenshots/all --chosen docs/screenshots

models: .venv/ready
	@for name in smollm2-135m qwen2.5-coder-0.5b qwen2.5-coder-1.5b gemma3-270m; do \
		$(BATON) models get $$name || exit; done

bench: .venv/ready
	$(BATON) bench speed --model $(MODEL) $(PEER)
	$(BATON) bench quality --model $(MODEL) $(PEER)
	$(BATON) bench handoff --geometry qwen3.6-27b --tokens 28800 --chunk 512 --compute-ms-per-chunk 300
	$(BATON) bench cluster --model $(MODEL)

peer: .venv/ready
	sh installers/prepare.sh compiler
	CMAKE_ARGS="-DGGML_NATIVE=ON" $(PIP_INSTALL) --no-binary llama-cpp-python --editable '.[peer]'

clean:
	rm -rf .venv build dist docs/screenshots/all *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find app engine resources tests -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp says that the environment has what these files ask for.
.venv/ready: .venv/bin/python pyproject.toml constraints.txt
	@echo "Installing Baton into .venv"
	@$(PIP_INSTALL) --editable .
	@sh installers/prepare.sh libraries
	@touch $@

.venv/ready-app: .venv/ready
	@echo "Installing the window into .venv"
	@$(PIP_INSTALL) --editable '.[app]'
	@sh installers/prepare.sh window
	@touch $@

.venv/ready-dev: .venv/ready-app
	@echo "Installing the tools of development into .venv"
	@$(PIP_INSTALL) --editable '.[dev]'
	@touch $@

.venv/bin/python:
	@sh installers/prepare.sh venv
	@$(PY) -m pip install -qq --disable-pip-version-check --upgrade --constraint constraints.txt pip
