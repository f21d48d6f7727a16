# Every target makes its own environment in .venv and reuses it; nothing but Python 3.11+ and make is needed.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.installed
# Said to make, that is: a variable DATA of the shell may mean anything.
WHERE := $(if $(filter command,$(origin DATA)),--data "$(DATA)")
BEST := runs/imdb-best

.PHONY: imdb imdb-best test test-slow bench docs lint clean
.DEFAULT_GOAL := imdb

imdb: $(STAMP)  ## train, evaluate and keep a classifier; DATA=PATH for your own texts
	$(RUN) -m train.imdb $(WHERE) $(ARGS)

imdb-best: $(STAMP)  ## the most accurate: learns from texts without labels too; called again it goes on; BEST=DIR for another
	$(RUN) -m train.imdb $(if $(wildcard $(BEST)/options.json),--resume "$(BEST)" $(WHERE),\
		--unlabelled --vectors --out "$(BEST)" $(or $(WHERE),--data imdb)) $(ARGS)

test: $(STAMP)  ## the whole suite but what is marked slow
	$(RUN) -m pytest -n auto --dist loadfile $(ARGS)

test-slow: $(STAMP)
	$(RUN) -m pytest -m slow -n auto --dist loadfile $(ARGS)

bench: $(STAMP)
	$(RUN) -m pytest bench --benchmark-only $(ARGS)

docs: $(STAMP)  ## the pages, into site/
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict $(ARGS)

lint: $(STAMP)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

clean:
	rm -rf $(VENV) site .pytest_cache .ruff_cache

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed; say make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $@
