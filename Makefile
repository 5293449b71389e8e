# make demo    set everything up and run the main job
# make test    set everything up and run the tests
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
PEERS := .venv-peers
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
PAGE := src/outrider/server/web/dist/index.html

.DEFAULT_GOAL := help
.PHONY: help setup demo check format test web test-web test-clients bench bench-models peers peers-openvino peers-vllm sanitize emulate arm docs clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(STAMP) ## make the virtual environment, install what a CPU needs, and fetch the default model
	@$(BIN)/outrider pull smollm2-135m-instruct >/dev/null
	@if ! command -v npm >/dev/null; then echo "without Node.js the playground is not built; all else works" >&2; \
	else $(MAKE) --no-print-directory web || echo "the playground was not built; all else works" >&2; fi

$(STAMP): pyproject.toml requirements.txt CMakeLists.txt $(wildcard src/outrider/csrc/*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Outrider needs Python 3.11 or newer, and $(PYTHON) is older; use make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

$(DEV_STAMP): $(STAMP) requirements-dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

demo: setup ## generate three texts with speculation off and on, and compare them
	$(BIN)/outrider demo

check: $(DEV_STAMP) ## lint, types, layers, and whether the generated docs are fresh
	$(BIN)/ruff format --check src tests docs benchmarks
	$(BIN)/ruff check src tests docs benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python docs/make_cli.py --check
	@if [ -x web/node_modules/.bin/tsc ]; then npm --prefix web run --silent check; fi

format: $(DEV_STAMP) ## let ruff format the code
	$(BIN)/ruff check --fix src tests docs benchmarks
	$(BIN)/ruff format src tests docs benchmarks

# Two at a time, each with one thread: the order of sets must be the same in both, and threads must not crowd each other.
test: setup $(DEV_STAMP) ## all tests but those of the playground
	PYTHONHASHSEED=0 OUTRIDER_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --ignore=tests/web --ignore=tests/clients

web: $(PAGE) ## bundle the playground; needs Node.js 20 or newer

$(PAGE): web/package.json web/package-lock.json web/build.mjs $(wildcard web/src/*)
	@command -v npm >/dev/null || { echo "make web needs Node.js 20 or newer, with npm" >&2; exit 1; }
	npm --prefix web ci --no-audit --no-fund --loglevel=error
	npm --prefix web run --silent build

test-web: setup $(DEV_STAMP) ## the playground in Debian's Chromium; skipped, saying why, without one
	$(BIN)/python -m pytest tests/web

test-clients: setup $(DEV_STAMP) .venv-clients/.installed ## guidellm, lm-eval and LangChain against the server; some GB to install
	$(BIN)/python -m pytest tests/clients

.venv-clients/.installed: requirements-clients.txt
	$(PYTHON) -m venv .venv-clients
	nice .venv-clients/bin/pip install --disable-pip-version-check -r requirements-clients.txt
	touch $@

bench: setup $(DEV_STAMP) ## the figures quoted in the README, written to benchmarks/results
	$(BIN)/python benchmarks/first_light.py --json benchmarks/results/first_light.json

bench-models: $(STAMP) ## fetch the models that benchmarks use into the cache, and print their paths
	@for model in smollm2-135m-instruct qwen2.5-coder-0.5b-instruct qwen2.5-coder-1.5b-instruct gemma-3-270m; do \
	  $(BIN)/outrider pull $$model || exit 1; \
	done

peers: $(PEERS)/.installed ## install the engines that bench compare measures; llama.cpp compiles for minutes

$(PEERS)/.installed: requirements-peers.txt
	$(PYTHON) -m venv $(PEERS)
	nice $(PEERS)/bin/pip install --disable-pip-version-check -r requirements-peers.txt
	touch $@

peers-openvino: ## add OpenVINO to the engines that bench compare measures
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install --disable-pip-version-check openvino-genai==2026.4.1.0

peers-vllm: ## add vLLM's CPU build, in an environment of its own
	$(PYTHON) -m venv .venv-vllm
	nice .venv-vllm/bin/pip install --disable-pip-version-check -r requirements-vllm.txt
	.venv-vllm/bin/pip uninstall --yes torchvision torchaudio torchcodec  # built for another torch, they break its import

# The package with a library built by cmake with options $(2), in build/$(1)/package.
define package_with
$(BIN)/pip install --quiet --disable-pip-version-check nanobind && \
PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B build/$(1) $(2) -DPython_EXECUTABLE="$(CURDIR)/$(BIN)/python" >/dev/null && \
cmake --build build/$(1) --parallel && \
rm -rf build/$(1)/package && mkdir build/$(1)/package && cp -r src/outrider build/$(1)/package/ && \
cp build/$(1)/_native*.so build/$(1)/package/outrider/
endef

sanitize: setup $(DEV_STAMP) ## the kernel tests under AddressSanitizer and UBSan, in a build of their own (GCC)
	$(call package_with,sanitize,-DOUTRIDER_SANITIZE=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo)
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1 \
	  PYTHONPATH=. $(BIN)/python tests/run_with_library.py build/sanitize/package

emulate: setup $(DEV_STAMP) ## the kernel tests of the avx512 and avxvnni variants too, their instructions emulated by SIMDe
	@if [ ! -e /usr/include/simde/x86/avx512.h ]; then echo "skipped: make emulate needs libsimde-dev" >&2; exit 0; fi; \
	$(call package_with,emulate,-DOUTRIDER_EMULATE=ON) && \
	PYTHONPATH=. $(BIN)/python tests/run_with_library.py build/emulate/package

CSRC := src/outrider/csrc
BITS := tests/arm_bits.cpp $(filter-out $(CSRC)/bind_%,$(wildcard $(CSRC)/*.cpp))
BITS_FLAGS := -std=c++17 -O2 -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra -Wno-psabi -Werror -pthread -I$(CSRC)

arm: ## cross-compile the kernels for Arm, run them under QEMU, and compare their bits with this processor's
	@if ! command -v aarch64-linux-gnu-g++ >/dev/null || ! command -v qemu-aarch64-static >/dev/null; then \
	  echo "skipped: make arm needs g++-aarch64-linux-gnu and qemu-user-static" >&2; exit 0; fi; \
	mkdir -p build/arm && g++ $(BITS_FLAGS) $(BITS) -o build/arm/here && aarch64-linux-gnu-g++ $(BITS_FLAGS) -static $(BITS) -o build/arm/arm && \
	build/arm/here >build/arm/here.txt && qemu-aarch64-static build/arm/arm >build/arm/arm.txt && \
	diff build/arm/here.txt build/arm/arm.txt && cat build/arm/arm.txt

docs: $(DEV_STAMP) ## write docs/cli.md anew from the commands' own help
	$(BIN)/python docs/make_cli.py

clean: ## remove what make has made, but for .venv-peers, .venv-vllm and .venv-clients
	rm -rf $(VENV) web/node_modules $(dir $(PAGE)) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
