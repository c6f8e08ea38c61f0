# The whole contributor interface. Everything sets itself up on first use and is quick the second time.

VENV   := .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
TESTED := $(VENV)/.ready-test
MODELS := smollm2-135m-instruct moonshine-tiny-en whisper-tiny-en kokoro-82m speech-samples

.DEFAULT_GOAL := help
.PHONY: help serve test check types format bench weights clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: $(READY) ## set everything up and serve on http://127.0.0.1:8000 (ARGS="--port 9000" for options)
	@$(BIN)/voxlane serve $(ARGS)

test: $(TESTED) weights check ## set everything up, lint, type-check and run all tests (ARGS="-k kv" to choose)
	@$(BIN)/python -m pytest $(ARGS)

check: $(TESTED) types ## formatting, lint and types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

# mypy does not follow the editable install's import hook, so it is shown the tree under its import name.
types: $(TESTED)
	@mkdir -p build/types/voxlane
	@for part in server engine codecs; do ln -sfn ../../../$$part build/types/voxlane/$$part; done
	@cd build/types && ../../$(BIN)/mypy --config-file ../../pyproject.toml --namespace-packages --explicit-package-bases -p voxlane

format: $(TESTED) ## format the code and fix what lint can fix
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(TESTED) weights ## measure against llama.cpp and print ratios (compiles llama.cpp the first time)
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[bench]'
	@$(BIN)/python benchmarks/run.py $(ARGS)

weights: $(READY) ## fetch the default models, and those the tests need
	@for model in $(MODELS); do $(BIN)/voxlane models pull $$model >/dev/null || exit 1; done

clean: ## remove the virtual environment and build output; models stay in the user's cache
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(READY): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "voxlane needs Python 3.11 or later: set PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "voxlane needs Python 3.11 or later; this is $$($(PYTHON) --version)"; exit 1; }
	@test -x $(BIN)/python || { echo "setting up $(VENV) ..."; $(PYTHON) -m venv $(VENV) || { echo "python3-venv is missing: apt-get install python3-venv"; exit 1; }; }
	@echo "installing voxlane (torch is the long part) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(TESTED): $(READY)
	@echo "installing the test tools ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[test,hf]'
	@touch $@
