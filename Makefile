# The repository's commands. Each does its own set-up, in .venv, and needs no more than
# Python 3.11 or later, make and access to a package index.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq --no-input
# Modules are compiled as they are imported: most of what is installed never is.
INSTALL := $(PIP) install --no-compile
PROJECTS := Makefile pyproject.toml $(wildcard */pyproject.toml)
# A name on the path may be a shim that fails, so each candidate is tried.
PYTHONS := $(or $(PYTHON),python3.13 python3.12 python3.11 python3 python)
DEV := import tomllib; \
    print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["dev"])
WHEELS := python3.11 python3.12 python3.13 python3.14
FIND_COMPILER := from hal_cpu._toolchain import find_compiler; find_compiler()

# The tests start hundreds of processes: without the compiled modules on the disk each compiles all
# that it imports, which doubles what some of the tests take.
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE

SEEDS ?= 100
SCHEDULES ?= 100000
JOBS ?= 1

# One process more than processors: tests wait for other processes, and for time limits.
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 8

.PHONY: help demo test check check-own check-tinygrad soak bench coverage speedups wheel clean

help:
	@echo 'make demo      find the edges in a picture on the CPU backend (arguments: ARGS="--help")'
	@echo 'make test      run ruff, mypy, import-linter and a share of all tests, in minutes (arguments: ARGS="-k name")'
	@echo 'make check     run the other tests: every mutant, seed, schedule, failing call and backend'
	@echo 'make soak      run the tests with many schedules and programs, for hours'
	@echo '               (SEEDS=$(SEEDS) SCHEDULES=$(SCHEDULES) JOBS=$(JOBS))'
	@echo 'make bench     measure what the runtime costs (arguments: ARGS="--help")'
	@echo 'make coverage  run the tests and say which lines they miss'
	@echo 'make speedups  build the C extension of the core again, after a change of its sources'
	@echo 'make wheel     build wheels of the core, into dist, for each Python that is here'
	@echo 'make clean     remove the virtual environment and what the tools left'

demo: $(VENV)/.demo
	@$(BIN)/hal demo $(ARGS)

# $(call run,kind,command): run one kind of check; the first that fails ends the run by name.
define run
@echo "== $(1)"
@$(2) || { echo "make $@: $(1) failed" >&2; exit 1; }
endef

test: $(VENV)/.test
	$(call run,ruff check,$(BIN)/ruff check .)
	$(call run,ruff format,$(BIN)/ruff format --check .)
	$(call run,mypy,$(BIN)/mypy)
	$(call run,import-linter,$(BIN)/lint-imports)
	$(call run,pytest,$(PYTEST) -m "not check" $(ARGS))

check: check-own check-tinygrad

check-own: $(VENV)/.test
	$(call run,pytest,$(PYTEST) -m check $(ARGS))
	$(call run,free-threaded,$(BIN)/python tests/free_threaded.py)

check-tinygrad: $(VENV)/.test
	$(call run,tinygrad,$(BIN)/python tests/tinygrad_0_12/run.py)

# The tests, with SEEDS schedules of the software drivers instead of a dozen, SCHEDULES interleavings
# of each case of the core, and 100 * SEEDS random programs in each mode of each backend; in JOBS
# processes.
soak: $(VENV)/.test
	$(call run,pytest,HAL_SCHEDULES=$(SCHEDULES) HAL_SEEDS=$(SEEDS) $(BIN)/python -m pytest \
	    -n $(JOBS) --timeout 7200 -o faulthandler_timeout=0 $(ARGS))

bench: $(VENV)/.bench
	@$(BIN)/python benchmarks/run.py $(ARGS)

# The core's C extension, beside the modules; again after each change of its sources.
speedups: $(VENV)/.demo
	@$(BIN)/python hal_core/hatch_build.py

wheel: $(VENV)/.demo
	@for python in $(BIN)/python $(WHEELS); do \
	    $$python -c '' >/dev/null 2>&1 || continue; \
	    $(PIP) --python "$$(command -v $$python)" wheel --no-deps --wheel-dir dist ./hal_core || exit 1; \
	done
	@ls dist/hal_core-*

coverage: $(VENV)/.test
	@$(BIN)/coverage run -m pytest $(ARGS)
	@$(BIN)/coverage report --show-missing --skip-covered

clean:
	rm -rf $(VENV) .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache

$(VENV)/.created:
	@for python in $(PYTHONS); do \
	    if $$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' \
	            >/dev/null 2>&1; then \
	        echo "== set-up: $$($$python --version) in $(VENV)"; \
	        $$python -m venv --clear $(VENV) && touch $@ && exit 0; \
	    fi; \
	done; \
	echo "make: found no Python 3.11 or later with its venv and ensurepip modules; tried:" \
	    "$(PYTHONS). Install one (Debian: apt-get install python3-venv), or give PYTHON=." >&2; \
	exit 1

# The build backend is installed beforehand, so that pip makes no environment of its own for each
# member. Without a C++ compiler on the machine, one comes as a wheel.
$(VENV)/.demo: $(VENV)/.created $(PROJECTS)
	@echo "== set-up: the core, the CPU backend and the demo's libraries"
	@$(INSTALL) hatchling editables
	@$(INSTALL) --no-build-isolation -e './hal_core[cli,demo]' -e ./hal_cpu
	@$(BIN)/python -c '$(FIND_COMPILER)' 2>/dev/null || \
	    { echo "== set-up: a C++ compiler"; $(INSTALL) --no-build-isolation -e './hal_cpu[zig]' && \
	        { $(BIN)/python hal_core/hatch_build.py || true; }; }
	@touch $@

$(VENV)/.test: $(VENV)/.demo
	@echo "== set-up: the other members and the tools"
	@$(INSTALL) --no-build-isolation -e ./hal_cuda -e ./hal_hip -e ./hal_mpi -e ./hal_nccl -e ./conformance \
	    $$($(BIN)/python -c '$(DEV)')
	@touch $@

$(VENV)/.bench: $(VENV)/.test benchmarks/requirements.txt
	@echo "== set-up: what the benchmarks compare with"
	@$(INSTALL) -r benchmarks/requirements.txt
	@touch $@
