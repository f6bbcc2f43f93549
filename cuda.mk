# cuda.mk: the CUDA target (make cuda) and its emulation on CPUs (make cudasim); included by Makefile
#
# make cuda wants nvcc on PATH and takes cuBLAS, cuDNN and NCCL from the toolkit, or else NVIDIA's Python packages,
# unpacked below build/cuda.  make cudasim builds the same files with g++ against tests/cudasim.

NVCC        := $(shell command -v nvcc)
CUDA_ARCHES ?= sm_80 sm_90a
CUDA_C      := $(SHARED) $(wildcard runtime/exec/cuda/*.c) runtime/exec/cuda/nccl/nccl.c
# Host kernels of CUDA programs: what the control plane, staged collectives and initial weights need.
CUDA_HOST   := $(addprefix kernels/cpu/,chance.c common.c fold.c norm_join.c init.c)
CUDA_CU     := $(wildcard kernels/cuda/*.cu runtime/exec/cuda/*.cu)
CUDA_NCCL   := $(wildcard runtime/exec/cuda/nccl/object.c)
CUDA_CFLAGS  = $(filter-out -I% -MMD -MP -Wpedantic,$(CFLAGS)) -I. -I$(BUILD) -MMD -MP $(PIC)

# ---- nvcc ----

ifeq ($(NVCC),)
ifneq ($(filter cuda cuda-registers gpu-kit,$(MAKECMDGOALS)),)
$(error there is no nvcc on PATH: make $(MAKECMDGOALS) wants the CUDA Toolkit (13 or later))
endif
ifeq ($(filter-out all,$(MAKECMDGOALS)),)
$(info make: no nvcc here: --target=cuda writes programs for GPUs (--emit=c) and builds none)
endif
endif
# The toolkit's own folder: nvcc may be a link or a script.
CUDA_HOME   ?= $(if $(NVCC),$(shell nvcc -dryrun x.cu 2>&1 | sed -n 's/^\#\$$ TOP=//p' | xargs -r realpath))
CUDA_PIP     = build/cuda/nvidia
cuda_dir     = $(if $(wildcard $(CUDA_HOME)/include/$(2)),$(CUDA_HOME),$(CUDA_PIP)/$(1))
CUDA_DIRS    = $(call cuda_dir,cu13,cublasLt.h) $(call cuda_dir,cudnn,cudnn.h) $(call cuda_dir,nccl,nccl.h)
CUDA_INCLUDE = $(patsubst %,-isystem %/include,$(CUDA_DIRS) $(CUDA_HOME))
CUDA_LINK    = $(foreach d,$(CUDA_DIRS) $(CUDA_HOME),-L$(d)/lib $(if $(wildcard $(d)/lib64),-L$(d)/lib64)) \
	-l:libcublasLt.so.13 -l:libcudnn.so.9
NVCCFLAGS    = -std=c++20 -O3 -I. -I$(BUILD) $(CUDA_INCLUDE) -MMD -MP -Xcompiler \
	-fPIC,-Wall,-Wextra,-Wno-missing-field-initializers -Werror all-warnings -Xptxas -v

build/cuda/ready:
	@if [ -z "$(filter $(CUDA_PIP)%,$(CUDA_DIRS))" ]; then mkdir -p $(@D); else \
		python3 -m pip install -q --no-deps --upgrade --target build/cuda 'nvidia-cublas>=13,<14' nvidia-cudnn-cu13 \
			nvidia-nccl-cu13; fi
	touch $@

# Code for exactly one GPU (sm_90a) needs no PTX beside it, from which a driver compiles for later ones.
cuda_arch = $(if $(filter %a,$(1)),-gencode arch=compute_$(1:sm_%=%)$(,)code=$(1),-arch=$(1))
, := ,
# ptxas tells of registers and spills; the table of make cuda-registers is made of it.
define CUDA_ARCH
$(BUILD)/lib/$(1)/%.o: %.cu | build/cuda/ready
	@mkdir -p $$(@D)
	@echo "nvcc -arch=$(1) $$<"
	@$(NVCC) $$(NVCCFLAGS) $$(call cuda_arch,$(1)) -c -o $$@ $$< 2>$$(@:.o=.ptxas) || { cat $$(@:.o=.ptxas); exit 1; }
$(BUILD)/lib/$(1)/libshardrt.a: $(CUDA_C:%.c=$(BUILD)/obj/cuda/%.o) $(CUDA_HOST:%.c=$(BUILD)/obj/cuda/%.o) \
		$(CUDA_CU:%.cu=$(BUILD)/lib/$(1)/%.o)
	rm -f $$@ && ar rcs $$@ $$^
$(BUILD)/lib/$(1)/libshardrt_nccl.so: $(CUDA_NCCL) | build/cuda/ready
	@mkdir -p $$(@D)
	$$(CC) $$(CUDA_CFLAGS) -fvisibility=default $$(CUDA_INCLUDE) -shared -o $$@ $(CUDA_NCCL) -L$$(lastword $$(CUDA_DIRS))/lib -l:libnccl.so.2
endef
$(foreach a,$(CUDA_ARCHES),$(eval $(call CUDA_ARCH,$(a))))
$(BUILD)/obj/cuda/%.o: %.c | build/cuda/ready
	@mkdir -p $(@D)
	$(CC) $(CUDA_CFLAGS) $(CUDA_INCLUDE) $(if $(filter kernels/%,$<),$(KFLAGS)) -c -o $@ $<

# Kernels' tests call kernels by other names, whose functions mirror.py writes.
KERNEL_TESTS := $(wildcard tests/unit/kernel_*.c) tests/unit/test_kernels.c $(addprefix tests/cudasim/,kernels.c kernels_cuda.c kernels_attention.c kernels_attention_mask.c mirror.c)
MIRROR       := $(BUILD)/tests/mirror
MIRRORED     := -include $(MIRROR)/names.h
$(MIRROR)/calls.c: tests/cudasim/mirror.py kernels/cuda/cuda.h kernels/kernels.h kernels/kernels.def $(wildcard base/*.def)
	@mkdir -p $(@D)
	$(CC) -E -P -I. -isystem tests/cudasim/include -x c kernels/cuda/cuda.h >$(@D)/declared
	python3 $< $(@D)/names.h $@ <$(@D)/declared

# Every kernel's tests, linked with the real libraries, for the kit.
$(BUILD)/lib/%/kernel-tests: $(KERNEL_TESTS) $(MIRROR)/calls.c $(BUILD)/lib/%/libshardrt.a $(BUILD)/tests/unit/suites.def
	$(CC) $(CUDA_CFLAGS) $(CUDA_INCLUDE) $(MIRRORED) -Wno-unused-parameter -o $@ $(filter %.c,$^) $(filter %.a,$^) -lcunit -ljansson -ldeflate \
		$(CUDA_LINK) -lcudart_static -lstdc++ -lgomp -lpthread -ldl -lrt -lm

# Ceilings, and products apart from a step, for the kit.
$(BUILD)/lib/%/micro: bench/gpu/micro.c $(BUILD)/lib/%/libshardrt.a
	$(CC) $(CUDA_CFLAGS) $(CUDA_INCLUDE) -o $@ $(filter %.c,$^) $(filter %.a,$^) $(CUDA_LINK) -lcudart_static -lstdc++ -lgomp \
		-lpthread -ldl -lrt -lm

## cuda: the CUDA runtime for sm_80 and sm_90a, or CUDA_ARCHES="sm_100a sm_120a" (wants nvcc; fetches cuBLAS, cuDNN
##   and NCCL if the toolkit lacks them)
cuda: $(BUILD)/shardc $(CUDA_ARCHES:%=$(BUILD)/lib/%/libshardrt.a) \
	$(if $(CUDA_NCCL),$(CUDA_ARCHES:%=$(BUILD)/lib/%/libshardrt_nccl.so))

## cuda-registers: registers, shared memory and spills of every CUDA kernel, for the four GPUs of docs/cuda.md; table:
##   bench/results/registers.md
REGISTERS := sm_80 sm_90a sm_100a sm_120a
cuda-registers:
	$(MAKE) CUDA_ARCHES="$(REGISTERS)" $(REGISTERS:%=$(BUILD)/lib/%/libshardrt.a)
	tools/registers $(REGISTERS:%=$(BUILD)/lib/%) >bench/results/registers.md

# ---- cuDNN without a GPU ----

CUDNN_TEST := $(BUILD)/tests/cudnn
## test-cudnn: whether the real cuDNN takes the graphs that CUDA programs make of attention and convolutions (no GPU;
##   fetches cuDNN)
test-cudnn: $(CUDNN_TEST)/graphs
	LD_LIBRARY_PATH=$(CUDNN_TEST):$(subst lib $(CUDA_PIP),lib:$(CUDA_PIP),$(foreach d,$(CUDA_DIRS),$(d)/lib)) $<
$(CUDNN_TEST)/graphs: $(wildcard tests/cudnn/*.cpp) $(addprefix kernels/cuda/,graph.cu attention_graph.cu conv_graph.cu) \
		tests/cudnn/device.h tests/cudasim/masks.h $(wildcard kernels/cuda/*graph.cuh) kernels/cuda/attention_bias.cuh kernels/cuda/work.h $(CUDNN_TEST)/libcuda.so.1 | build/cuda/ready
	$(CXX) -std=c++20 -O1 -Wall -Wextra -Wno-missing-field-initializers -Werror -I. -I$(BUILD) $(CUDA_INCLUDE) -x c++ -o $@ \
		$(filter %.cpp %.cu,$^) -x none $(foreach d,$(CUDA_DIRS),-L$(d)/lib) -l:libcudnn.so.9
$(CUDNN_TEST)/libcuda.so.1: tests/cudnn/driver.c
	@mkdir -p $(@D)
	$(CC) -std=c11 -Wall -Wextra -Werror -shared -fPIC -Wl,-soname,libcuda.so.1 -o $@ $<

# ---- the kit for a machine with a GPU ----

GPU_ARCH ?= sm_90a
ifneq ($(filter gpu-kit,$(MAKECMDGOALS)),)
ifeq ($(filter $(GPU_ARCH),$(CUDA_ARCHES))$(wildcard $(BUILD)/lib/$(GPU_ARCH)/libshardrt_nccl.so),)
$(error there is no runtime for $(GPU_ARCH): make gpu-kit GPU_ARCH=$(GPU_ARCH) CUDA_ARCHES=$(GPU_ARCH) builds it, too)
endif
endif
## gpu-kit: BUILD/gpu-kit.tar.xz for a machine with a GPU (GPU_ARCH) and PyTorch: tests, and steps beside PyTorch's
gpu-kit: all $(BUILD)/lib/$(GPU_ARCH)/kernel-tests $(BUILD)/lib/$(GPU_ARCH)/micro $(BUILD)/lib/$(GPU_ARCH)/libshardrt_nccl.so $(VENV)/ready
	$(PYTHON) tests/gpu/kit.py $(BUILD)/shardc $(BUILD)/gpu-kit --arch $(GPU_ARCH) $(GPU_KIT)

# ---- the emulation ----

SIM          := $(BUILD)/lib/cudasim
SIM_SOURCES  := $(wildcard tests/cudasim/*.cpp)
SIM_LIB      := $(filter-out tests/cudasim/test_%,$(SIM_SOURCES))
SIM_INCLUDE   = -isystem tests/cudasim/include
SIM_O        ?= -O2
SIM_ARCH     := $(if $(filter x86_64,$(MACHINE)),-march=x86-64-v3)
SIM_FLAGS     = -std=c++20 $(SIM_O) -g $(SIM_ARCH) -ffp-contract=fast -fno-strict-aliasing -DCUDASIM -I. -I$(BUILD) \
	-Wall -Wextra -Wno-missing-field-initializers -Wno-unknown-pragmas -Werror -MMD -MP $(PIC) $(SANITIZE)
CXX          ?= g++

$(SIM)/%.o: %.cu
	@mkdir -p $(@D)
	$(CXX) $(SIM_FLAGS) $(SIM_INCLUDE) -x c++ -c -o $@ $<
$(SIM)/%.o: %.cpp
	@mkdir -p $(@D)
	$(CXX) $(SIM_FLAGS) -fvisibility=default $(SIM_INCLUDE) -c -o $@ $<
$(SIM)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CUDA_CFLAGS) $(SIM_INCLUDE) $(if $(filter kernels/%,$<),$(KFLAGS) $(SIM_ARCH)) -c -o $@ $<
$(SIM)/libshardrt.a: $(patsubst %,$(SIM)/%.o,$(basename $(CUDA_C) $(CUDA_HOST) $(CUDA_CU)))
	rm -f $@ && ar rcs $@ $^
# What stands for the driver and the libraries: programs and libshardrt_nccl.so share it.
$(SIM)/libcudasim.so: $(SIM_LIB:%.cpp=$(SIM)/%.o)
	$(CXX) $(SIM_FLAGS) -shared -o $@ $^ -lpthread
SIM_LINK = -L$(SIM) -lcudasim -Wl,-rpath,$(abspath $(SIM))
$(SIM)/libshardrt_nccl.so: $(CUDA_NCCL) $(SIM)/libcudasim.so $(wildcard runtime/exec/cuda/nccl/*.h) cuda.mk
	@mkdir -p $(@D)
	$(CC) $(CUDA_CFLAGS) -fvisibility=default $(SIM_INCLUDE) -shared -o $@ $(CUDA_NCCL) $(SIM_LINK)

$(BUILD)/cudasim/nvcc: tests/cudasim/nvcc.in $(SIM)/libcudasim.so
	@mkdir -p $(@D)
	sed -e 's|@INCLUDE@|$(abspath tests/cudasim/include)|' -e 's|@LIB@|$(abspath $(SIM))|g' \
		-e 's|@ARCH@|$(SIM_ARCH)|' -e 's|@SANITIZE@|$(SANITIZE)|' -e 's|@CXX@|$(CXX)|' $< >$@
	chmod +x $@

$(BUILD)/cudasim/test_sim: $(SIM)/tests/cudasim/test_sim.o $(SIM)/libcudasim.so
	@mkdir -p $(@D)
	$(CXX) $(SIM_FLAGS) -o $@ $< $(SIM_LINK) -lpthread

SIM_TESTS := $(KERNEL_TESTS:%.c=$(SIM)/%.o) $(SIM)/tests/cudasim/mirror_calls.o
SIM_TESTED := $(patsubst %,$(SIM)/%.o,$(basename $(wildcard base/*.c kernels/cuda/*.cu) $(CUDA_HOST)))
$(SIM_TESTS): $(BUILD)/tests/unit/suites.def $(MIRROR)/calls.c
$(SIM_TESTS): CUDA_CFLAGS += $(MIRRORED)
$(SIM)/tests/cudasim/mirror_calls.o: $(MIRROR)/calls.c
	@mkdir -p $(@D)
	$(CC) $(CUDA_CFLAGS) $(SIM_INCLUDE) -c -o $@ $<
$(BUILD)/cudasim/kernels: $(SIM_TESTS) $(SIM_TESTED) $(SIM)/libcudasim.so
	@mkdir -p $(@D)
	$(CXX) $(SIM_FLAGS) -o $@ $(SIM_TESTS) $(SIM_TESTED) -lcunit -ljansson -ldeflate -lgomp $(SIM_LINK) -lpthread -lm

$(BUILD)/cudasim/micro: $(SIM)/bench/gpu/micro.o $(SIM)/libshardrt.a $(SIM)/libcudasim.so
	@mkdir -p $(@D)
	$(CXX) $(SIM_FLAGS) -o $@ $(filter %.o %.a,$^) -lgomp $(SIM_LINK) -lpthread -lm

## cudasim: CUDA programs on CPUs: runtime, kernels and an emulation of the libraries, built with g++; and its tests
cudasim: $(SIM)/libshardrt.a $(if $(CUDA_NCCL),$(SIM)/libshardrt_nccl.so) $(BUILD)/cudasim/nvcc \
	$(BUILD)/cudasim/test_sim $(BUILD)/cudasim/kernels $(BUILD)/cudasim/micro

# A CUDA program on CPUs, wherever shardc takes flags.
SIM_TARGET = --target=cuda --arch=cudasim --nvcc=$(abspath $(BUILD)/cudasim/nvcc)

## cudasim-train: what one rank does on CUDA against the CPU program; a program of each part that only GPUs have in 103
##   orders of its streams; emitted ops (a quarter of an hour)
cudasim-train: all cudasim $(BUILD)/unit $(BUILD)/models $(VENV)/ready
	BUILD=$(BUILD) tests/cudasim/codegen
	@mkdir -p $(BUILD)/tests
	$(BUILD)/models onnx good >$(BUILD)/tests/good.onnx
	$(BUILD)/models npy '<f4' False '(64, 4)' 1024 >$(BUILD)/tests/x.npy
	$(BUILD)/models npy '<i8' False '(64,)' 512 >$(BUILD)/tests/y.npy
	tests/cudasim/orders $(BUILD)/shardc 100 $(BUILD)/tests/good.onnx --loss=cross_entropy --bind N=8 --optimizer=adamw \
		--wrap=each -- --data x=$(BUILD)/tests/x.npy --data labels=$(BUILD)/tests/y.npy --steps 6 --threads 1
	$(PYTHON) tests/cudasim/train.py $(BUILD)/shardc $(BUILD)/cudasim/train
	$(PYTHON) tests/e2e/shapes.py $(BUILD)/shardc $(BUILD)/cudasim/shapes cuda

## cudasim-conformance: each 20th of the ONNX backend tests as a CUDA program
cudasim-conformance: all cudasim $(VENV)/ready | $(BUILD)/onnx-tests
	$(PYTHON) tests/onnx/conformance.py $(BUILD)/shardc $(ONNX_TESTS) --every 20 $(SIM_TARGET:%=--flag=%)

## cudasim-models: emulated CUDA programs against CPU programs: models, strategies, ranks (CUDASIM_MODELS=--full: all)
cudasim-models: all cudasim $(VENV)/ready
	$(PYTHON) tests/cudasim/models.py $(BUILD)/shardc $(BUILD)/cudasim/models --json $(BUILD)/cudasim/models.jsonl \
		$(CUDASIM_MODELS)

## test-cuda: all of it without a GPU: the emulation, kernels, models, ranks, memory, cudasim-train
test-cuda: cudasim-train cudasim-models
	SHARDC=$(BUILD)/shardc BUILD=$(BUILD) PYTHON=$(PYTHON) tests/cudasim/run

## cudasim-asan: the emulation's tests, the kernels' and small programs under Address- and UndefinedBehaviorSanitizer
cudasim-asan: $(VENV)/ready
	ASAN_OPTIONS=detect_leaks=0 $(MAKE) $(ASAN) asan-kernels asan-programs
# Of a build with sanitizers, beside each other with -j2.
asan-kernels: $(BUILD)/cudasim/test_sim $(BUILD)/cudasim/kernels
	$(BUILD)/cudasim/test_sim
	$(BUILD)/cudasim/kernels
asan-programs: cudasim $(BUILD)/shardc
	$(PYTHON) tests/cudasim/asan.py $(BUILD)/shardc $(BUILD)/cudasim/asan

.PHONY: cuda cuda-registers gpu-kit cudasim cudasim-train cudasim-conformance cudasim-models cudasim-asan \
	asan-kernels asan-programs test-cuda test-cudnn
