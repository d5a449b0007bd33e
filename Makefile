# `make help` lists the targets. Everything runs in .venv, which the first target that needs it creates.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two threads everywhere: the tests and the demo are made for two cores.
export OMP_NUM_THREADS ?= 2

.PHONY: help demo test check bench lock clean

help: ## List the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(VENV)/installed: pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable '.[dev]'
	@touch $@

demo: $(VENV)/installed ## Export tiny checkpoints, serve them: out/wan_t2v.mp4, out/airimu
	$(BIN)/python examples/wan_t2v.py
	$(BIN)/python examples/airimu.py

test: $(VENV)/installed ## Run every test, against a real Triton
	$(BIN)/pytest

check: $(VENV)/installed ## Lint, format and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/installed ## Whole videos: diffusers, our loop, Triton, shortcuts; memory of decoding
	$(BIN)/slipway bench video

lock: $(VENV)/installed ## Write requirements.lock anew from pyproject.toml
	$(BIN)/pip install --quiet pip-tools
	$(BIN)/pip-compile --quiet --all-extras --strip-extras --no-emit-index-url --no-emit-find-links \
	  --no-emit-trusted-host --no-header --no-annotate --output-file requirements.lock pyproject.toml
	# The CPU build's local version is not on the public index, nor is this project.
	sed -i -E '/^slipway/d; s/^(torch==[0-9.]+)\+cpu/\1/; /^#/d; /^$$/d' requirements.lock

clean: ## Remove what was built
	rm -rf $(VENV) out build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
