# The front door: each target installs what it needs (lint aside), builds, and runs.
# ARGS="..." goes to the program that the target runs; PRESET chooses one of CMakePresets.json.
PRESET ?= release
PREFIX ?= /usr/local
HOSTFILE ?= hostfiles/localhost
TORCH ?=
WERROR ?=
ARGS ?=

BUILD := build/$(PRESET)
JOBS := $(shell nproc)
# A test that hardly computes takes one of these, and three for each core that it keeps busy (tests/tutti_tests.cmake).
TEST_JOBS := $(shell expr $(JOBS) \* 4)
CONFIGURE := cmake --preset $(PRESET) $(if $(WERROR),-DTUTTI_WERROR=$(WERROR))

# Open MPI runs as root, which containers do, only when told twice that this is meant.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1

.PHONY: help build mnist ctr test test-torch faults fuzz bench lint install gpu-bundle gpu-check clean

help:  ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12
	@echo 'Variables: ARGS="..." PRESET=$(PRESET) PREFIX=$(PREFIX) HOSTFILE=$(HOSTFILE) WERROR=ON'

build: deps-build  ## Build everything; programs land in build/release/bin
	$(CONFIGURE)
	cmake --build $(BUILD) --parallel $(JOBS)

mnist: deps-example  ## Train the CNN on MNIST, two ranks; ARGS="--epochs 1" goes to mnist_dist
	$(CONFIGURE)
	cmake --build $(BUILD) --parallel $(JOBS) --target mnist_dist
	mpiexec --hostfile $(HOSTFILE) $(BUILD)/bin/mnist_dist $(ARGS)

ctr: deps-python  ## Train wide & deep on clicks, two workers, a server; ARGS="--mode sync" goes to ctr_dist.py
	$(CONFIGURE)
	cmake --build $(BUILD) --parallel $(JOBS) --target _core tutti_launcher
	PYTHONPATH=$(CURDIR)/$(BUILD)/python $(BUILD)/bin/tutti run --server_num 1 --worker_num 2 \
	  "$$(scripts/find_python.sh numpy)" examples/ctr/ctr_dist.py $(ARGS)

test: build  ## Run all tests; ARGS="-R shm" goes to ctest
	ctest --test-dir $(BUILD) --no-tests=error --output-on-failure --parallel $(TEST_JOBS) $(ARGS); \
	  status=$$?; scripts/failed.sh $(BUILD); scripts/skipped.sh $(BUILD); exit $$status

test-torch: deps-torch  ## Run the tests that need PyTorch, with the newest of pip's; TORCH=2.1.0 with that
	$(CONFIGURE)
	cmake --build $(BUILD) --parallel $(JOBS) --target _core tutti_launcher
	scripts/test_torch.sh $(BUILD) $(TORCH)

faults: deps-build  ## Inject faults into random programs; ARGS="--trials 1000 --seed 2"
	$(CONFIGURE)
	cmake --build $(BUILD) --parallel $(JOBS) --target faults
	$(BUILD)/bin/faults $(ARGS)

fuzz: deps-build  ## Fuzz all decoders with sanitizers, a minute each; ARGS="packets --seconds 9 --seed 7"
	$(CONFIGURE)
	cmake --build $(BUILD) --parallel $(JOBS) --target fuzzers
	scripts/fuzz.sh $(BUILD) $(ARGS)

bench: deps-build deps-bench  ## Run all benchmarks briefly, or one in full: ARGS="mnist_vs_torch --help"
	$(CONFIGURE)
	cmake --build $(BUILD) --parallel $(JOBS) --target benchmarks
	scripts/bench.sh $(BUILD) $(ARGS)

lint:  ## Check format and code with clang-format, clang-tidy, shellcheck, pyflakes; ARGS=--changed
	scripts/lint.sh $(ARGS)

install: deps-library  ## Install library, headers and the launcher under PREFIX
	$(CONFIGURE)
	cmake --build $(BUILD) --parallel $(JOBS) --target tutti tutti_launcher
	cmake --install $(BUILD) --prefix $(PREFIX)

gpu-bundle: deps-build  ## Pack build/gpu-bundle.tgz: tests and benchmarks for a machine with a GPU
	$(CONFIGURE)
	cmake --build $(BUILD) --parallel $(JOBS) --target unit_tests gpu_tests gpu_ranks_test mnist_dist \
	  killed_rank_bench gpu_benchmarks
	scripts/gpu_bundle.sh $(BUILD) build/gpu-bundle.tgz

gpu-check: gpu-bundle  ## Unpack that, and run it on the GPUs of this machine; ARGS="--seconds 300"
	rm -rf build/tutti-gpu
	tar -C build -xzf build/gpu-bundle.tgz
	build/tutti-gpu/gpu-check --out build/gpu-check.tgz $(ARGS)

clean:  ## Remove build/
	rm -rf build

deps-%:
	@scripts/install_deps.sh $*
