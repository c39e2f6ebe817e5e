# make setup | demo | test | lint | format | clean
#   PYTHON=python3.12   interpreter to make the environment with, 3.10 to 3.13
#   distro=kilted       the second row of ROS 2 wheels, in an environment of its own
#   DEMO_SECONDS=15     how long the demo runs
#   DEMO_SOURCE=world   what drives it: world (a simulated robot) or bag (a recording)
#   ARGS='-k lint'      more arguments for pytest
PYTHON ?= python3
distro ?= $(or $(ROS_DISTRO_WHEELS),jazzy)
VENV := .venv$(if $(filter-out jazzy,$(distro)),-$(distro))
# Brings the environment up to date, then runs what follows in it, free of any sourced ROS 2.
IN_VENV := @$(PYTHON) tools/setup_env.py --venv $(VENV) --distro $(distro) --

.PHONY: setup demo test lint format clean

setup:
	$(IN_VENV) true

demo:
	$(IN_VENV) python -m oxygen_ros.demo

test:
	$(IN_VENV) python -m pytest $(ARGS)

lint:
	$(IN_VENV) python -m pytest test/packaging/test_lint.py $(ARGS)

format:
	$(IN_VENV) ruff check --fix .
	$(IN_VENV) ruff format .

clean:
	rm -rf .venv .venv-* build install log dist *.egg-info
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
