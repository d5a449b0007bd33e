# `make help` lists the targets. Everything runs in .venv, which the first target that needs it creates:
# `make demo` installs what the demo needs, every other target all that developers need.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Locust wants a newer geventhttpclient than Triton's wheel: load is made from an environment of its own.
LOAD_VENV := .venv-load
# Clients of the video API that other projects publish, unmodified, each in an environment of its own.
CLIENTS_VENV := .venv-clients
CLIENTS := openai2 openai3 litellm aiperf
# The site needs none of the project's dependencies.
DOCS_VENV := .venv-docs
# The studio's scripts are checked by tools of Node.js; the studio itself needs none.
STUDIO_TOOLS := .studio-tools
STUDIO := gateway/slipway_gateway/studio/assets
# The tests build engines with TensorRT-RTX. Its wheels are NVIDIA's and under NVIDIA's licence; `make test TENSORRT=`
# leaves them out, and skips what needs them.
TENSORRT ?= tensorrt-rtx
# Two threads everywhere: the tests and the demo are made for two cores.
export OMP_NUM_THREADS ?= 2

# Debian's own client before another of the name, which may lack the builder.
export DOCKER ?= $(firstword $(wildcard /usr/bin/docker) docker)

COMPILE := --quiet --strip-extras --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-header \
  --no-annotate

# What soak and chaos serve; `slipway export` takes what is there already.
EXPORT_EACH_TINY = for family in wan_t2v matrix_game framepack_i2v wakeword wakeword_head airimu; do \
	  $(BIN)/slipway export $$family --checkpoint tiny --repository out/soak/models || exit 1; done

.PHONY: help demo unit test test-long check studio-check wheel-test docs site fuzz matrix engines mutants bench soak chaos chaos-gateway chaos-studio weights real-size audit wheels image image-test lock clean

##@ Use
# A line of `##@ TITLE` starts a group of `make help`; `## TEXT` behind a target describes the target.
help: ## List the targets
	@awk -F ':.*## ' '/^##@ /{printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## /{printf "  %-11s %s\n", $$1, $$2}' \
	  $(MAKEFILE_LIST)

INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable

# Without compiling: Python compiles what the demo imports, a part of what is installed.
$(VENV)/installed-demo: pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[export,gateway,play,server,signals]' --no-compile
	@touch $@

# The extra dev contains what the demo needs.
$(VENV)/installed: pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[dev$(TENSORRT:%=,%)]'
	@touch $@ $(VENV)/installed-demo

$(LOAD_VENV)/installed: pyproject.toml requirements-load.lock
	$(PYTHON) -m venv $(LOAD_VENV)
	$(LOAD_VENV)/bin/pip install --quiet --disable-pip-version-check --constraint requirements-load.lock \
	  --editable '.[load]'
	@touch $@

$(CLIENTS_VENV)/installed: $(CLIENTS:%=tests/clients/requirements-%.txt)
	set -e; for client in $(CLIENTS); do \
	  $(PYTHON) -m venv $(CLIENTS_VENV)/$$client; \
	  $(CLIENTS_VENV)/$$client/bin/pip install --quiet --disable-pip-version-check --no-compile \
	    --requirement tests/clients/requirements-$$client.txt; done
	@touch $@

$(DOCS_VENV)/installed: requirements-docs.lock
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/pip install --quiet --disable-pip-version-check --requirement requirements-docs.lock
	@touch $@

demo: $(VENV)/installed-demo ## Export, serve and call a small trained checkpoint of each family: videos, plots in out/
	$(BIN)/python examples/wan_t2v.py
	$(BIN)/python examples/matrix_game.py
	$(BIN)/python examples/framepack_i2v.py
	$(BIN)/python examples/wakeword.py
	$(BIN)/python examples/airimu.py
	@echo
	@echo 'The results are in out/. To call `slipway` in this shell, type:'
	@echo '  . $(BIN)/activate'
	@echo
	$(BIN)/python examples/gateway.py

clean: ## Remove what was built
	rm -rf $(VENV) $(LOAD_VENV) $(CLIENTS_VENV) $(DOCS_VENV) $(STUDIO_TOOLS) site .venv-wheel docker/.cache docker/wheelhouse/*.whl docker/wheelhouse/filled-* out build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

##@ Test
check: $(VENV)/installed ## Lint, format and types; whether every test can be imported
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest --collect-only -qq > $(VENV)/collected || (cat $(VENV)/collected; false)
	@if command -v npm > /dev/null; then $(MAKE) --no-print-directory studio-check; \
	  else echo 'The studio is not checked: npm is not installed.'; fi

$(STUDIO_TOOLS)/installed: gateway/studio-tools.json
	mkdir -p $(STUDIO_TOOLS) && cp gateway/studio-tools.json $(STUDIO_TOOLS)/package.json
	npm install --prefix $(STUDIO_TOOLS) --no-audit --no-fund --silent
	@touch $@

studio-check: $(STUDIO_TOOLS)/installed ## Types, rules and format of the studio's scripts; needs npm
	$(STUDIO_TOOLS)/node_modules/.bin/tsc --project gateway/tsconfig.json
	$(STUDIO_TOOLS)/node_modules/.bin/eslint --config gateway/eslint.config.js $(STUDIO)
	$(STUDIO_TOOLS)/node_modules/.bin/prettier --check --log-level warn $(STUDIO)

unit: $(VENV)/installed ## Run the unit tests, which start no Triton, in a few minutes: two files at a time
	$(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder tests/unit tests/contract

test: export SLIPWAY_TRITON_DIR := $(TRITON_DIR)
test: $(VENV)/installed $(LOAD_VENV)/installed $(CLIENTS_VENV)/installed ## Run the tests, against a real Triton (TRITON_DIR=DIR): four files at a time
	$(BIN)/pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder -m "not docker"

test-long: $(VENV)/installed $(LOAD_VENV)/installed $(CLIENTS_VENV)/installed ## What `make test` leaves out: further precisions, engines, layouts and variants, benchmarks, trainings
	$(BIN)/pytest --numprocesses 2 --dist loadfile -m long

image-test: $(VENV)/installed $(LOAD_VENV)/installed ## Build, run, compose, refuse, drain: the whole demonstration with containers
	$(BIN)/pytest -m docker tests/docker

wheel-test: ## Test the wheel's client and exporter by another Python, in an environment of its own: PYTHON=python3.13
	PYTHON=$(PYTHON) .ci/wheel

fuzz: $(VENV)/installed ## Try 2,000 examples of whatever may come on every parser; EXAMPLES=N
	SLIPWAY_FUZZ_EXAMPLES=$(or $(EXAMPLES),2000) $(BIN)/pytest tests/unit/project/test_fuzz.py

mutants: $(VENV)/installed ## Change the code at random, one place at a time: does a test notice? MODULES="client video" SEED=0 MUTANTS=30
	$(INSTALL) '.[mutation]'
	$(BIN)/python tests/mutation/run.py $(MODULES) --seed $(or $(SEED),0) --mutants $(or $(MUTANTS),30) \
	  --minutes $(or $(MINUTES),60)

##@ Measure
bench: $(VENV)/installed ## Whole videos: diffusers, our loop, Triton, shortcuts; memory of decoding
	$(BIN)/slipway bench video

engines: $(VENV)/installed ## Build the TensorRT engines of every component, precision and GPU at tiny; continues; writes docs/measurements/tensorrt.md
	$(BIN)/python -m slipway_benchmarks.engine_matrix $(foreach each,$(FAMILY),--family $(each))

matrix: $(VENV)/installed ## Run every combination of component, precision and engine at tiny; continues; writes docs/reference/precisions.md
	$(BIN)/python -m slipway_benchmarks.precision_matrix $(foreach each,$(FAMILY),--family $(each))

soak: $(VENV)/installed ## Mixed traffic on tiny checkpoints of every family, which must stay as they were; MINUTES=30
	$(EXPORT_EACH_TINY)
	$(BIN)/slipway soak --repository out/soak/models --minutes $(or $(MINUTES),30)

chaos: $(VENV)/installed ## As root: the same traffic while disks fill up, pipes close and processes die; SEED=0, REQUESTS=3000
	$(EXPORT_EACH_TINY)
	$(BIN)/python tests/chaos/run.py --repository out/soak/models --requests $(or $(REQUESTS),3000) --seed $(or $(SEED),0)

chaos-gateway: $(VENV)/installed ## Videos through a gateway while it, Triton and models are killed; SEED=0, JOBS=2000
	for family in wan_t2v framepack_i2v; do \
	  $(BIN)/slipway export $$family --checkpoint tiny --repository out/soak/models || exit 1; done
	$(BIN)/python tests/chaos/gateway.py --repository out/soak/models --jobs $(or $(JOBS),2000) --seed $(or $(SEED),0)

chaos-studio: $(VENV)/installed ## Random clicks in the studio of a running gateway: URL=http://127.0.0.1:8080, PID=its process, MINUTES=10, SEED=0
	$(BIN)/python tests/chaos/studio.py --url $(or $(URL),http://127.0.0.1:8080) --pid $(or $(PID),0) --minutes $(or $(MINUTES),10) --seed $(or $(SEED),0)

real-size: $(VENV)/installed ## Wan2.1-T2V-1.3B's sizes whole, random weights: 60 GB of disk, 24 GB of memory, an hour or two
	$(BIN)/slipway bench real-size

##@ Build
docs: $(VENV)/installed ## Write the tables of fields in docs/ anew
	$(BIN)/python -m slipway_export.tables README.md $(wildcard docs/*.md docs/*/*.md docs/*/*/*.md)

site: $(DOCS_VENV)/installed ## Build the documentation into site/, which opens from disk; a broken link or anchor fails
	@# Not --quiet: strict counts the warnings that are shown.
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict

weights: $(VENV)/installed ## Train the checkpoint of --checkpoint demo anew: FAMILY=airimu; SEED=0, goes on where it was ended
	$(BIN)/slipway train weights $(FAMILY) --seed $(or $(SEED),0) --output out/weights/$(FAMILY)

wheels: $(VENV)/installed ## Fill docker/wheelhouse from requirements.lock
	docker/wheels.sh

image: wheels ## Build the CPU images and start each once; BASE=IMAGE changes their base
	docker/build.sh server-cpu gateway client load
	EXPORT_BASE=server-cpu docker/build.sh export

##@ Release
audit: $(VENV)/installed ## Report on the dependencies: bill of materials, known vulnerabilities; out/audit
	.ci/audit

lock: $(VENV)/installed ## Write requirements.lock anew from pyproject.toml
	$(BIN)/pip install --quiet pip-tools
	# These extras together are every extra but load and docs, which have locks of their own, and gpu, tensorrt and
	# tensorrt-rtx, which no image and no test installs.
	$(BIN)/pip-compile $(COMPILE) --extra dev --extra mutation --extra play --output-file requirements.lock pyproject.toml
	# The CPU build's local version is not on the public index, nor is this project.
	sed -i -E '/^slipway/d; s/^(torch==[0-9.]+)\+cpu/\1/; /^#/d; /^$$/d' requirements.lock
	# In the same versions, but for what Triton's wheel holds back.
	$(BIN)/pip-compile $(COMPILE) --extra load --constraint <(grep -v '^geventhttpclient==' requirements.lock) \
	  --output-file requirements-load.lock pyproject.toml
	sed -i -E '/^slipway/d; /^#/d; /^$$/d' requirements-load.lock
	# Of the extra docs alone.
	$(BIN)/python -c 'import tomllib; [print(each) for each in tomllib.load(open("pyproject.toml", "rb"))["project"]\
	  ["optional-dependencies"]["docs"]]' | $(BIN)/pip-compile $(COMPILE) --output-file requirements-docs.lock -
	sed -i -E '/^#/d; /^$$/d' requirements-docs.lock
