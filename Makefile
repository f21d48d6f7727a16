# Every target makes its own environment in .venv and reuses it; nothing but Python 3.11+ and make is needed.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.installed
PINS := constraints.txt
# pip would compile every installed file to bytecode, in as long again; Python does so on import. Twice
# quiet: errors are shown, and no line for each package that a second index does not have.
PIP = $(RUN) -m pip install -qq --no-compile --disable-pip-version-check
INSTALL = $(PIP) --constraint $(PINS) --editable
SUITE = $(RUN) -m pytest -n auto --dist loadfile
# Only as an argument of make: a variable DATA of the shell may mean anything.
WHERE := $(if $(filter command,$(origin DATA)),--data "$(DATA)")
BEST := runs/imdb-best
# Where it is set, every process compiles what it imports again, and tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: imdb imdb-best test test-slow commands newest torch peers bench figures docs serve lint types clean
.DEFAULT_GOAL := imdb

imdb: $(STAMP)  ## train, evaluate and keep a classifier; DATA=PATH: your own texts
	$(RUN) -m train.imdb $(WHERE) $(ARGS)

imdb-best: $(STAMP)  ## the most accurate, from unlabelled texts too; running it again resumes; BEST=DIR: its folder
	$(RUN) -m train.imdb $(if $(wildcard $(BEST)/options.json),--resume "$(BEST)" $(WHERE),\
		--unlabelled --vectors --out "$(BEST)" $(or $(WHERE),--data imdb)) $(ARGS)

test: $(STAMP)  ## all tests but those marked slow
	$(SUITE) $(FILES) $(ARGS)

# A file may take a quarter of the time, so an idle worker takes tests from the other. Tests marked
# "optimized" compile as users do, the others in half the time. If ARGS select none of one kind,
# pytest exits with 5.
SHARED = $(RUN) -m pytest -n auto --dist worksteal
test-slow: $(STAMP)
	$(SHARED) -m "slow and optimized" $(ARGS) || [ $$? = 5 ]
	$(SHARED) -m "slow and not optimized" $(ARGS) || [ $$? = 5 ]

commands: $(STAMP)  ## every documented command at its smallest
	$(SHARED) $(or $(COMMANDS),tests/commands) -m commands $(ARGS)

# Not the commands of bench/ and docs/, which are for those who work on this project.
USED = tests/commands/test_library_commands.py tests/commands/test_wheel.py \
	tests/commands/test_bench_commands.py::test_every_benchmark_runs_once
newest:  ## the contracts and what users run, with the newest Python and jax; or TARGETS
	@if "$$(.ci/newest-python)" -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then \
		$(MAKE) --no-print-directory $(or $(TARGETS),test commands) \
			VENV=.venv-newest PINS=constraints-newest.txt \
			PYTHON="$$(.ci/newest-python)" FILES=tests/contracts COMMANDS="$(USED)"; \
	else echo "make newest: SKIPPED, the newest jax needs Python 3.12 or newer, and there is none"; fi

torch: $(STAMP)  ## installs PyTorch
	$(INSTALL) ".[peers]"

peers: torch  ## installs PyTorch, and compares with it
	$(SUITE) -k torch -m 'not slow' $(ARGS)

bench: $(STAMP)
	$(RUN) -m pytest bench --benchmark-only $(ARGS)

figures: $(STAMP)  ## what pages cite, measured again where its code has changed; ARGS=--list shows where
	$(RUN) -m bench.figures $(ARGS)

docs: $(STAMP)  ## the pages, into site/
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict $(ARGS)

serve: $(STAMP)  ## the pages at http://127.0.0.1:8000, built again when a file changes
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs serve $(ARGS)

lint: $(STAMP)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: $(STAMP)  ## pyright on the library, and a user's script as pyright and mypy read it
	$(INSTALL) ".[types]"
	PYRIGHT_PYTHON_GLOBAL_NODE=0 $(RUN) -m pyright --pythonpath $(RUN)
	$(RUN) -m mypy --strict --follow-imports silent docs/examples

clean:
	rm -rf $(VENV) .venv-newest site .mypy_cache .pytest_cache .ruff_cache

$(STAMP): pyproject.toml $(PINS) $(wildcard transformer_jax/cpu/*.cc transformer_jax/cpu/*.h)
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed; say make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) "pip>=25"  # older ones, as Python brings them, take long to find the versions
	$(INSTALL) ".[dev]"
	@$(RUN) -m transformer_jax build || true  # without a C++ compiler XLA computes attention
	@touch $@
