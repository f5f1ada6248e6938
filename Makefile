# The commands that README.md and CONTRIBUTING.md name. `make` without arguments lists them. Variables:
# PYTHON  the Python for new virtual environments
# JOBS    the number of test processes. Many tests wait, so the default is more than the number of processors: on two,
#         `make test` took 351 s with 6 and 369 s with 4 (2026-11-27). The other suites start larger programs: 4
# ARGS    arguments for the command: `make run ARGS="--amqp-port 0"`, `make test ARGS="-k retained"`

JOBS ?=
ARGS ?=
# For test-ha: rounds of each kind, the kinds (default: all), and a file to which the figures are added; then only
# the rounds that the file lacks are run.
ROUNDS ?= 50
KINDS ?=
RECORD ?=

PACKAGES := matching broker protocols trellis pyspark_trellis
QUIET_PIP := -m pip --disable-pip-version-check --quiet
WHEEL_STORE_TESTS := checkpoint dropping faults records segments survivors
WHEEL_TESTS = $(wildcard tests/wire tests/interop tests/matching tests/bench) \
	$(WHEEL_STORE_TESTS:%=tests/store/test_%.py) tests/test_lease_clock.py

GUARD_OPTIONS := --rules --traced --sampled --owned

# Python must store bytecode: without it, each test process, and each broker that a test starts, compiles
# all modules anew. This took 50 of the 700 seconds of processor time of `make test`.
unexport PYTHONDONTWRITEBYTECODE

# The files of tests are in memory if there is room for them: otherwise a third of the time of
# `make test` is waiting for the disk. Tests of power losses simulate the disk.
MEMORY := $(shell free=$$(df -Pk /dev/shm 2> /dev/null | awk 'NR == 2 { print $$4 }'); \
	[ "$${free:-0}" -gt 4000000 ] && echo /dev/shm)

.DEFAULT_GOAL := help
.PHONY: help run test test-long test-spark test-random test-ha test-compiled guard guard-options check wheel release-check clean node browser
.PHONY: conformance openid ldap kfake hadoop rabbitmq rabbitmqadmin FORCE
.DELETE_ON_ERROR:

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

run: .run/installed ## Compile the broker, install it into .run, and start it
	@exec .run/bin/trellis serve $(ARGS)

test: export PYTEST_DEBUG_TEMPROOT := $(MEMORY)
test: .venv/installed node kfake rabbitmqadmin ## Run the test suite on the uncompiled source
	@.venv/bin/python -m pytest -n $(or $(JOBS),6) --dist loadgroup -m "not long and not alone" $(ARGS)
	@.venv/bin/python -m pytest -q -m "alone and not long" $(ARGS) || [ $$? -eq 5 ]

test-long: .venv/installed node browser conformance openid ldap kfake hadoop rabbitmq rabbitmqadmin ## Run the slow tests, then test-spark, test-random and guard-options
	@.venv/bin/python -m pytest -n $(or $(JOBS),4) --dist loadgroup -m "long and not alone" -o faulthandler_timeout=900 $(ARGS)
	@.venv/bin/python -m pytest -m "long and alone" -o faulthandler_timeout=900 $(ARGS) || [ $$? -eq 5 ]
	@$(MAKE) --no-print-directory test-spark test-random guard-options

test-spark: .venv/installed hadoop ## Run the connector's tests on a cluster of Spark, and on Spark Connect
	@for kind in cluster connect; do \
		echo "trellis: running the tests of the connector on Spark: $$kind"; \
		TRELLIS_SPARK=$$kind .venv/bin/python -m pytest -m spark -o faulthandler_timeout=900 tests/pipeline $(ARGS) || exit 1; \
	done

test-random: export TRELLIS_PROPERTIES = long
test-random: .venv/installed ## Run the property tests with new random examples, ten times as many
	@.venv/bin/python -m pytest -n $(or $(JOBS),4) --dist loadgroup -m "hypothesis and not long" -o faulthandler_timeout=900 $(ARGS)

test-ha: .venv/installed ## Run 50 rounds of each fault of a cluster (variables: ROUNDS, KINDS, RECORD)
	@.venv/bin/python -m tests.cluster.rounds --rounds $(ROUNDS) $(if $(RECORD),--until --record $(RECORD)) $(KINDS)

test-compiled: export TRELLIS_REQUIRE_COMPILED = 1
test-compiled: dist/built node ## Run the tests of the protocols, matching, the load tool and the log on the compiled wheel
	@rm -rf build/compiled build/compiled.venv && mkdir -p build/compiled
	@tools/make-venv.sh build/compiled.venv
	@echo "trellis: installing the wheel and the clients that test it"
	@build/compiled.venv/bin/python $(QUIET_PIP) install "$$(ls dist/*.whl)[test]"
	@build/compiled.venv/bin/python build_backend/compiled_modules.py
	@cp -R tests examples config docs packaging pyproject.toml build/compiled/
	@cd build/compiled && ../compiled.venv/bin/python -m pytest -n $(or $(JOBS),4) $(WHEEL_TESTS) $(ARGS)

guard: .run/installed ## Compare instructions per publication with the recorded ones (needs valgrind)
	@cd build && ../.run/bin/python -P ../benchmarks/guard.py $(ARGS)

guard-options: .run/installed ## Compare instructions with and without rules, traces and a cluster (needs valgrind)
	@if command -v valgrind > /dev/null; then \
		cd build && for option in $(GUARD_OPTIONS); do \
			echo "trellis: running guard.py $$option"; \
			../.run/bin/python -P ../benchmarks/guard.py $$option || exit 1; \
		done; \
	else echo "trellis: skipped guard-options: valgrind is missing (on Debian and Ubuntu: apt install valgrind)"; fi

check: .venv/installed ## Check style, format, types, import contracts, language and links
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports
	@.venv/bin/python tools/check_language.py
	@.venv/bin/python tools/check_links.py

wheel: dist/built ## Build the compiled wheel into dist
	@ls dist/*.whl

release-check: .venv/installed ## Build and check a release: source, wheels of every CPython found here
	@.venv/bin/python tools/release_check.py

clean: ## Remove everything that these commands made
	rm -rf .run .venv build dist *.egg-info tests/node/node_modules tests/browser/node_modules tests/conformance/node_modules tests/openid/node_modules
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# `build/sources` has a checksum of each source file, so the wheel is built again only when a source file
# was changed, added or removed.
build/sources: FORCE
	@mkdir -p build
	@echo "pure: $$TRELLIS_PURE" > build/sources.now
	@find $(PACKAGES) build_backend setup.py pyproject.toml -type f ! -name '*.pyc' ! -name '*.so' \
		| LC_ALL=C sort | xargs cksum >> build/sources.now
	@cmp -s build/sources.now build/sources || cp build/sources.now build/sources

.run/pyvenv.cfg:
	@tools/make-venv.sh .run

dist/built: build/sources | .run/pyvenv.cfg
	@if [ -n "$$TRELLIS_PURE" ]; then echo "trellis: building without compiling, because TRELLIS_PURE is set"; \
	else echo "trellis: compiling, which takes two to four minutes on two processors (once, and after a change)"; fi
	@rm -rf dist && mkdir -p dist
	@.run/bin/python tools/build_progress.py build/wheel.log \
		.run/bin/python -m pip --disable-pip-version-check wheel --verbose --no-deps --wheel-dir dist . \
		|| { tail -n 40 build/wheel.log; echo "trellis: the build failed; its output is in build/wheel.log"; exit 1; }
	@sed -n 's/^ *\(trellis: .*\)/\1/p' build/wheel.log
	@touch $@

.run/installed: dist/built
	@echo "trellis: installing the wheel into .run"
	@.run/bin/python $(QUIET_PIP) uninstall --yes trellis-broker 2> build/uninstall.log
	@.run/bin/python $(QUIET_PIP) install dist/*.whl
	@touch $@

.venv/installed: pyproject.toml
	@tools/make-venv.sh .venv
	@echo "trellis: installing the source and the packages that test it"
	@TRELLIS_PURE=1 .venv/bin/python $(QUIET_PIP) install --editable '.[dev]'
	@touch $@

# Fetch RabbitMQ's tool for its HTTP API. Without Debian's packages, the tests that need it are skipped with a note.
rabbitmqadmin: FORCE
	@tools/get-rabbitmqadmin.sh build/tools/rabbitmqadmin

# Unpack RabbitMQ and Erlang, unless RabbitMQ is installed. Without Debian's packages, the tests that need them are skipped with a note.
rabbitmq: FORCE
	@tools/get-rabbitmq.sh build/tools/rabbitmq

# Build kfake, a Kafka in memory. The first build compiles Go's own library and takes a minute or two; the tests build it again, in a second.
kfake: FORCE
	@mkdir -p build/toolchains
	@if command -v go > /dev/null; then \
		cd tests/go/kfake && go build -o ../../../build/toolchains/kfake . || echo "trellis: go build failed in tests/go/kfake, see above"; \
	fi

# Fetch the classes of the file systems s3a and hdfs (100 MB). Without Maven or its registry, the tests that need them are skipped with a note.
hadoop: FORCE
	@mkdir -p build/toolchains
	@if command -v mvn > /dev/null; then \
		mvn -q -B -f tests/pipeline/hadoop dependency:build-classpath -Dmdep.outputFile="$(CURDIR)/build/toolchains/hadoop" \
			|| echo "trellis: mvn failed in tests/pipeline/hadoop, see above"; \
	fi

# Fetch OpenLDAP's server, and compile the package python-ldap. Without Debian's packages, the tests that need them are skipped with a note.
ldap: .venv/installed FORCE
	@tools/get-ldap.sh build/tools/ldap .venv/bin/python

# Install the clients that run on Node, a browser, and AsyncAPI's parser with Node-RED, and an OpenID provider. Without npm or its registry, the tests that need them are skipped with a note.
node browser conformance openid: FORCE
	@installed=tests/$@/node_modules/.package-lock.json; \
	if command -v npm > /dev/null && [ ! -e $$installed -o tests/$@/package-lock.json -nt $$installed ]; then \
		echo "trellis: installing the npm packages of tests/$@"; \
		cd tests/$@ && npm ci --silent --no-audit --no-fund || echo "trellis: npm ci failed in tests/$@, see above"; \
	fi
