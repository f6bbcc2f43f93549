# shardc: `make help` lists the targets; everything generated goes below build/
CC      = gcc
BUILD   ?= build
PREFIX  ?= /usr/local
VENV    ?= build/venv
PYTHON  = $(VENV)/bin/python
WARN    := -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Werror
CFLAGS  ?= -O2 -g
override CFLAGS += -std=c11 -D_GNU_SOURCE -I. -I$(BUILD) $(WARN) -MMD -MP $(SANITIZE)

COMPILER := $(wildcard base/*.c ir/*.c frontend/*.c passes/*.c passes/*/*.c codegen/*.c predict/*.c calibrate/*.c report/*.c ckpt/*.c)
# Of every target; what runs on one of them lies in runtime/exec/TARGET.  The object.c of a communicator becomes a shared
# object, by the .mk of its folder.
SHARED   := $(wildcard base/*.c runtime/*.c $(patsubst %,runtime/%/*.c,plane comm comm/* exec store data train))
SHARED   := $(filter-out runtime/comm/%/object.c,$(SHARED))
RUNTIME  := $(SHARED) $(wildcard runtime/exec/cpu/*.c)
KERNELS  := $(wildcard kernels/cpu/*.c)
# What emitted programs, fused kernels, hooks and libraries include, directly or through these.
PUBLIC   := runtime/shardrt.h runtime/model.h runtime/hook.h kernels/ew.h kernels/cuda/fused.cuh
HEADERS   = $(wildcard $(sort $(shell printf '#include "%s"\n' $(PUBLIC) | $(CC) -I. -MM -MG -xc++ - | tr ' \\' '\n\n')))
UNITS    := $(wildcard tests/unit/*.c)
# native: of a compiler for this machine.
MACHINE  := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine)))
ARCHES   := $(if $(filter $(MACHINE),$(shell uname -m)),native) $(if $(filter aarch64,$(MACHINE)),armv8.2-a,x86-64-v3 x86-64-v4)
LIBS     := -lprotobuf-c -ljansson -ldeflate -lm
RTLIBS   := -ldnnl -ljansson -ldeflate -lgomp -lm -lpthread
obj      = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))

all: $(BUILD)/shardc $(ARCHES:%=$(BUILD)/lib/%/libshardrt.a)

help:
	@sed -n 's/^## \([a-z0-9-]*\): */  make \1\t/p' Makefile $(MORE) | expand -t 22

## quickstart: install what is missing, build, compile and train examples/digits
quickstart:
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory -j$$(nproc) all
	@examples/digits/quickstart $(BUILD)

## deps: Debian packages that the build needs (skipped when all are there)
DEPS := build-essential pkg-config libprotobuf-c-dev protobuf-c-compiler libjansson-dev libdeflate-dev libdnnl-dev libcunit1-dev
deps:
	@dpkg -s $(DEPS) >/dev/null 2>&1 || { sudo=$$(command -v sudo || true); \
		$$sudo apt-get update -q && $$sudo apt-get install -qy --no-install-recommends $(DEPS); }

# ---- the compiler ----

$(BUILD)/shardc: $(call obj,main.c build.c twin.c checks.c choose.c options.c run.c hints.c recompute.c advice.c) $(BUILD)/libshardc.a
	$(CC) $(CFLAGS) -o $@ $^ $(LIBS)
$(BUILD)/libshardc.a: $(call obj,$(COMPILER)) $(BUILD)/obj/onnx.pb-c.o
	rm -f $@ && ar rcs $@ $^

$(BUILD)/frontend/onnx.pb-c.c $(BUILD)/frontend/onnx.pb-c.h &: frontend/onnx.proto
	@mkdir -p $(BUILD)/frontend
	protoc-c --proto_path=frontend --c_out=$(BUILD)/frontend onnx.proto
$(call obj,$(wildcard frontend/*.c tests/unit/*.c tests/e2e/*.c)): $(BUILD)/frontend/onnx.pb-c.h
$(BUILD)/obj/onnx.pb-c.o: $(BUILD)/frontend/onnx.pb-c.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -w -c -o $@ $<
$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -c -o $@ $<

# Reports: the style and the script of their page become arrays of a header.
PAGE := report/page/style.css $(patsubst %,report/page/%.js,text data chart timeline memory tables tree run answers page)
$(BUILD)/report/page.h: $(PAGE) Makefile
	@mkdir -p $(@D)
	{ echo 'static const unsigned char page_style[] = {'; od -An -v -tx1 $(filter %.css,$(PAGE)) | sed 's/ \(..\)/0x\1,/g'; \
	  echo '};'; echo 'static const unsigned char page_script[] = {'; cat $(filter %.js,$(PAGE)) | od -An -v -tx1 | \
	  sed 's/ \(..\)/0x\1,/g'; echo '};'; } >$@.new && mv $@.new $@
$(call obj,report/report.c): $(BUILD)/report/page.h

# ---- the runtime: for any x86-64 or AArch64, so that it can say what a processor lacks; kernels per --arch ----

# Position-independent, with nothing exported but what a library's header declares (--emit=lib).
PIC = -fPIC -fvisibility=hidden
$(call obj,$(RUNTIME)): override CFLAGS += $(PIC)
$(call obj,$(RUNTIME)) $(foreach a,$(ARCHES),$(KERNELS:kernels/cpu/%.c=$(BUILD)/lib/$(a)/%.o)): Makefile
KFLAGS = $(PIC) -O3 -fopenmp -ffp-contract=fast -fno-math-errno -fno-trapping-math
define ARCH_LIB
$(BUILD)/lib/$(1)/%.o: kernels/cpu/%.c
	@mkdir -p $$(@D)
	$$(CC) $$(CFLAGS) $(KFLAGS) -march=$(1) -c -o $$@ $$<
$(BUILD)/lib/$(1)/libshardrt.a: $(call obj,$(RUNTIME)) $(KERNELS:kernels/cpu/%.c=$(BUILD)/lib/$(1)/%.o)
	rm -f $$@ && ar rcs $$@ $$^
endef
$(foreach a,$(ARCHES),$(eval $(call ARCH_LIB,$(a))))

# Programs for GPUs; communicators that have a folder.
MORE := cuda.mk aarch64.mk $(wildcard runtime/comm/*/*.mk)
include $(MORE)

# ---- tests ----

$(BUILD)/tests/unit/suites.def: $(UNITS)
	@mkdir -p $(@D)
	printf 'SUITE(%s)\n' $(patsubst tests/unit/test_%.c,%,$(filter tests/unit/test_%,$(UNITS))) >$@
$(call obj,$(UNITS)): $(BUILD)/tests/unit/suites.def
$(BUILD)/unit: $(call obj,$(UNITS)) $(BUILD)/libshardc.a $(BUILD)/lib/$(firstword $(ARCHES))/libshardrt.a
	$(CC) $(CFLAGS) -o $@ $^ -lcunit $(LIBS) $(RTLIBS)

$(BUILD)/models: $(call obj,tests/e2e/models.c tests/e2e/chain_models.c tests/e2e/checkpoint_files.c tests/unit/onnx_model.c) $(BUILD)/libshardc.a
	$(CC) $(CFLAGS) -o $@ $^ $(LIBS)

## test: unit tests, golden IR, bad input and end-to-end runs (no Python)
test: all $(BUILD)/unit $(BUILD)/models
	$(BUILD)/unit
	SHARDC=$(BUILD)/shardc tests/ir/runtests
	SHARDC=$(BUILD)/shardc tests/e2e/run

## recipes: README's "How to add ..", each as a patch to a copy of the tree, which is built; what they add is tried
recipes: deps
	tests/recipes/run

## docs: the commands of README.md and docs/, run in a copy of the tree, beside what is shown there (two minutes)
docs: all
	tests/docs/run --self-test
	tests/docs/run --build $(BUILD)

## mutants: the verifier of schedules against its oracle, on changed schedules of every strategy
mutants: $(BUILD)/oracle
	$(BUILD)/oracle
$(BUILD)/oracle: $(call obj,$(wildcard tests/oracle/*.c) tests/unit/onnx_model.c) $(BUILD)/libshardc.a
	$(CC) $(CFLAGS) -o $@ $^ $(LIBS)

## random: 10,000 random graphs through every pass of MODEL and TRAIN, each pass checked (RANDOM="--count 500": seconds)
random: $(BUILD)/random
	$(BUILD)/random --count 10000 $(RANDOM)
$(BUILD)/random: $(call obj,$(wildcard tests/random/*.c) tests/unit/onnx_model.c) $(BUILD)/libshardc.a
	$(CC) $(CFLAGS) -o $@ $^ $(LIBS)

## gradcheck: gradients of every ONNX operator against differences and against PyTorch (GRADCHECK="--only Conv")
.PHONY: gradcheck
gradcheck: all $(BUILD)/differences $(VENV)/ready
	$(PYTHON) tests/gradcheck/gradcheck.py $(BUILD)/shardc $(BUILD)/differences $(BUILD)/gradcheck $(GRADCHECK)
$(BUILD)/differences: $(call obj,tests/gradcheck/differences.c) $(BUILD)/libshardc.a
	$(CC) $(CFLAGS) -o $@ $^ $(LIBS)

## lint: layers, style, whether the recipes apply, and every warning of clang
lint: $(BUILD)/frontend/onnx.pb-c.h $(BUILD)/report/page.h $(BUILD)/tests/unit/suites.def
	tools/check_layers
	tools/lint
	tests/recipes/run --applies
	tools/check_compatibility
	@command -v clang >/dev/null || { echo "lint: clang is not installed, its warnings are not checked"; exit 0; }; \
	for f in main.c build.c twin.c checks.c choose.c options.c run.c hints.c recompute.c advice.c $(COMPILER) $(RUNTIME) $(UNITS); do \
		clang -std=c11 -D_GNU_SOURCE -I. -I$(BUILD) $(WARN) -fsyntax-only $$f || exit 1; done; \
	for f in $(KERNELS); do \
		clang -std=c11 -D_GNU_SOURCE -I. $(WARN) -Wno-unknown-pragmas -march=x86-64-v4 -fsyntax-only $$f || exit 1; done

# What make is given to build with sanitizers, beside what is built without.
ASAN = BUILD=build/asan CFLAGS="-O1 -g" SIM_O=-O1 ARCHES=native \
	SANITIZE="-fsanitize=address,undefined -fno-sanitize-recover=undefined"
## asan: the tests under AddressSanitizer and UndefinedBehaviorSanitizer
asan:
	$(MAKE) $(ASAN) build/asan/shardc build/asan/unit build/asan/models
	ASAN_OPTIONS=detect_leaks=0 build/asan/unit
	ASAN_OPTIONS=detect_leaks=0 SHARDC=build/asan/shardc tests/ir/runtests
	ASAN_OPTIONS=detect_leaks=0 SHARDC=build/asan/shardc SHARDC_CC="cc -fsanitize=address,undefined" \
		tests/e2e/bad_input

# What fuzz targets want beside the compiler: models and cases that tests make, options, the runtime; of kernels only
# the optimizers', the others come from libshardrt.a as they are.
FUZZED := options.c tests/unit/onnx_model.c tests/oracle/cases.c $(filter-out base/%,$(RUNTIME)) kernels/cpu/optim.c
$(BUILD)/obj/kernels/cpu/optim.o: override CFLAGS += -Wno-unknown-pragmas
$(BUILD)/libfuzz.a: $(call obj,$(FUZZED))
	rm -f $@ && ar rcs $@ $^
## fuzz: libFuzzer for each reader of files, FUZZ_SECONDS each, two minutes unless said (wants clang and libclang-rt-dev)
FUZZ_SECONDS ?= 120
fuzz: $(BUILD)/models
	tests/fuzz/run $(FUZZ_SECONDS)

$(VENV)/ready:
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install -q torch==2.13.0
	$(VENV)/bin/pip install -q onnx onnxscript transformers numpy safetensors onnxruntime
	touch $@

ONNX_TESTS ?= $(BUILD)/onnx-tests
$(BUILD)/onnx-tests:
	tests/onnx/unpack $@ $(PYTHON)

## conformance: the ONNX backend tests; gradients of spectral and spatial operators against PyTorch; models with loops
##   and sequences trained beside PyTorch (CONFORMANCE="--every 3": a third of the first)
conformance: all $(VENV)/ready | $(BUILD)/onnx-tests
	$(PYTHON) tests/onnx/conformance.py $(BUILD)/shardc $(ONNX_TESTS) --json $(BUILD)/conformance.jsonl $(CONFORMANCE)
	$(PYTHON) tests/onnx/spatial.py $(BUILD)/shardc $(BUILD)/spatial
	$(PYTHON) tests/onnx/control.py $(BUILD)/shardc $(BUILD)/control

## contrib: nodes that onnxruntime's optimizers make, against onnxruntime; models that they rewrote, against themselves
.PHONY: contrib
contrib: all $(VENV)/ready
	$(PYTHON) tests/onnx/nodes.py $(BUILD)/shardc
	$(PYTHON) tests/onnx/optimised.py $(BUILD)/shardc

## reference: the same through frontend and f64 reference alone, in seconds
reference: $(BUILD)/reference | $(BUILD)/onnx-tests
	$(BUILD)/reference -q $(ONNX_TESTS)/node/* $(ONNX_TESTS)/pytorch-converted/*
$(BUILD)/reference: $(call obj,tests/onnx/reference.c) $(BUILD)/libshardc.a
	$(CC) $(CFLAGS) -o $@ $^ $(LIBS)

## parity: gradients and training steps against PyTorch (PARITY="--quick --seeds 0": a few minutes); quantised networks
parity: all $(VENV)/ready
	$(PYTHON) tests/parity/parity.py $(BUILD)/shardc $(BUILD)/parity --json $(BUILD)/parity.jsonl $(PARITY)
	$(PYTHON) tests/parity/noise.py $(BUILD)/shardc $(BUILD)/parity/noise
	$(PYTHON) tests/parity/quantized.py $(BUILD)/shardc $(BUILD)/parity

# A stamp for each list of models.
SIZES_READY := $(BUILD)/sizes/ready$(SIZED:%=-%)
## sizes: plans of Llama-3 8B to 405B, Qwen2.5, GPT-2 XL, ViT-g and ResNet-152 against closed forms and docs/sizes.md
##   (SIZES=--write writes its table; SIZED=llama3-8b,gpt2-xl: these alone); small ones of them against PyTorch (three
##   minutes)
sizes: all $(SIZES_READY)
	$(PYTHON) tests/sizes/sizes.py $(BUILD)/shardc $(BUILD)/sizes --docs docs/sizes.md $(SIZED:%=--models %) $(SIZES)
	$(PYTHON) tests/sizes/train.py $(BUILD)/shardc $(BUILD)/sizes/train
## schedulers: --wrap=auto against the schedules of FSDP2 and SimpleFSDP, played for Llama-3 8B on 8 to 1,024 GPUs; what
##   each decision of the default schedule is worth, as docs/sharding.md has it (DEFAULTS=--write writes its tables); and
##   orders of collectives by random edits
schedulers: all $(SIZES_READY)
	$(PYTHON) tests/predict/schedulers.py $(BUILD)/shardc $(BUILD)/sizes machines
	$(PYTHON) tests/predict/orders.py $(BUILD)/shardc $(BUILD)/sizes machines
	$(PYTHON) tests/predict/defaults.py $(BUILD)/shardc $(BUILD)/sizes machines --docs docs/sharding.md $(DEFAULTS)
## published: predicted steps beside published speeds of training on A100, H100 and H200, from machines/ alone (five
##   minutes; PUBLISHED=--quick: a few of them)
published: all $(VENV)/ready
	$(PYTHON) tests/predict/published.py $(BUILD)/shardc $(BUILD)/published machines $(PUBLISHED)
$(SIZES_READY): tests/sizes/models.py tests/sizes/configs.py | $(VENV)/ready
	$(PYTHON) tests/sizes/models.py $(BUILD)/sizes --check $(SIZED:%=--models %)
	touch $@

## predict: the memory that shardc plan says, beside what programs map, of 200 configurations of small models (ten
##   minutes; PREDICT="--count 12": the first of them)
predict: all $(VENV)/ready
	$(PYTHON) tests/predict/memory.py $(BUILD)/shardc $(BUILD)/predict $(PREDICT)

## export: checkpoints into ONNX models, to PyTorch and back, against PyTorch and onnxruntime (a minute)
export: all $(VENV)/ready
	$(PYTHON) tests/e2e/export.py $(BUILD)/shardc $(BUILD)/export

## zoo: 99 models of all kinds by both exporters, beside PyTorch, and the scripts of docs/models.md (ZOO=--quick: some of
##   them; ZOO="--docs docs/models.md" writes its table)
zoo: all $(VENV)/ready
	$(PYTHON) tests/zoo/zoo.py $(BUILD)/shardc $(BUILD)/zoo $(ZOO)
	$(PYTHON) tests/zoo/scripts.py $(BUILD)/shardc $(BUILD)/zoo/scripts

## frameworks: Keras, JAX, scikit-learn and Paddle models, exported by shardc.keras and its like, beside these (two
##   minutes; FRAMEWORK="jax sklearn": these alone)
FRAMEWORKS = $(BUILD)/frameworks
FRAMEWORK ?= keras jax sklearn paddle
PACKAGES_keras   := tensorflow-cpu==2.21.0 keras==3.15.1 tf2onnx==1.17.0
PACKAGES_jax     := jax==0.10.2 jax2onnx==0.17.1 flax==0.12.8
PACKAGES_sklearn := scikit-learn==1.9.1 skl2onnx==1.20.0
PACKAGES_paddle  := paddlepaddle==3.3.1 paddle2onnx==2.1.0 packaging
frameworks: all $(FRAMEWORK:%=$(FRAMEWORKS)/%/ready)
	for f in $(FRAMEWORK); do \
		$(FRAMEWORKS)/$$f/bin/python tests/frameworks/test_$$f.py $(BUILD)/shardc $(FRAMEWORKS)/work || exit 1; done
# Each in a place of its own: libraries of two of them do not share a process.
$(FRAMEWORKS)/%/ready:
	python3 -m venv $(@D)
	$(@D)/bin/pip install -q $(PACKAGES_$*) onnx onnxruntime numpy
	touch $@

## shapes: programs with a plan for each of several sizes of samples, against PyTorch (half a minute)
shapes: all $(VENV)/ready
	$(PYTHON) tests/e2e/shapes.py $(BUILD)/shardc $(BUILD)/shapes

## report: pages of three examples (--report), opened in headless Chromium (half a minute; REPORT=--no-browser: written
##   alone)
.PHONY: report
report: all $(BUILD)/sizes/gpt2-xl.onnx
	tests/report/pages $(BUILD)/shardc $(BUILD)/pages $(BUILD)/sizes/gpt2-xl.onnx $(REPORT)
# As SIZES_READY makes it.
$(BUILD)/sizes/gpt2-xl.onnx: tests/sizes/models.py tests/sizes/configs.py | $(VENV)/ready
	$(PYTHON) tests/sizes/models.py $(BUILD)/sizes --models gpt2-xl

## python: the package of shardc.export and shardc.check, into the virtual environment (VENV=..)
python: $(VENV)/ready
	$(VENV)/bin/pip install -q --no-deps ./python

## trust: models whose graph does not say what is trained, exported by shardc.export, against PyTorch; faults that
##   shardc.check finds; what shardc.export refuses; masks of dropout; tensors that exporters merge (minutes)
trust: all $(VENV)/ready
	$(PYTHON) tests/trust/trust.py $(BUILD)/shardc $(BUILD)/trust --quick
	$(PYTHON) tests/trust/faults.py $(BUILD)/shardc $(BUILD)/trust/faults --quick
	$(PYTHON) tests/trust/refusals.py $(BUILD)/trust/refusals --quick
	$(PYTHON) tests/trust/masks.py $(BUILD)/shardc $(BUILD)/trust/masks --exporters torchscript
	$(PYTHON) tests/trust/merged.py $(BUILD)/shardc $(BUILD)/trust/merged
	$(PYTHON) tests/trust/written.py $(BUILD)/shardc $(BUILD)/trust/written

## trust-full: all of them by both exporters, and exported without the helper (a quarter of an hour); log: tests/trust/trust.log
trust-full: all $(VENV)/ready
	$(PYTHON) tests/trust/trust.py $(BUILD)/shardc $(BUILD)/trust --plain --check --log tests/trust/trust.log
	$(PYTHON) tests/trust/faults.py $(BUILD)/shardc $(BUILD)/trust/faults >>tests/trust/trust.log
	$(PYTHON) tests/trust/refusals.py $(BUILD)/trust/refusals >>tests/trust/trust.log
	$(PYTHON) tests/trust/masks.py $(BUILD)/shardc $(BUILD)/trust/masks --plain >>tests/trust/trust.log
	$(PYTHON) tests/trust/merged.py $(BUILD)/shardc $(BUILD)/trust/merged >>tests/trust/trust.log

## doors: strangers, floods, false hubs and changed messages against the control plane of 2 to 4 ranks (ten minutes)
doors: all $(BUILD)/door
	python3 tests/ranks/doors.py $(BUILD)/door $(BUILD)/shardc $(BUILD)/doors --seconds 600
$(BUILD)/door: $(call obj,tests/ranks/door.c) $(BUILD)/lib/native/libshardrt.a
	$(CC) $(CFLAGS) -o $@ $^ $(RTLIBS)

## ranks: ranks-same and ranks-faults
ranks: ranks-same ranks-faults
## ranks-same: W ranks against one and against PyTorch's
ranks-same: all $(VENV)/ready
	$(PYTHON) tests/ranks/matrix.py $(BUILD)/shardc $(BUILD)/matrix
	$(PYTHON) tests/ranks/trips.py $(BUILD)/shardc $(BUILD)/trips
	$(PYTHON) tests/ranks/exact.py $(BUILD)/shardc $(BUILD)/exact
	$(PYTHON) tests/ranks/buffers.py $(BUILD)/shardc $(BUILD)/buffers
	$(PYTHON) tests/ranks/torch_peers.py $(BUILD)/shardc $(BUILD)/peers
	$(PYTHON) tests/ranks/training.py $(BUILD)/shardc $(BUILD)/training
	$(PYTHON) tests/ranks/losses.py $(BUILD)/shardc $(BUILD)/losses
	$(PYTHON) tests/ranks/memory.py $(BUILD)/shardc $(BUILD)/memory
## ranks-faults: ranks that stop or die, also while they save; strangers; plans of large models (CRASH="--count 12": so
##   many kills, of 36)
ranks-faults: all $(VENV)/ready $(BUILD)/door
	$(PYTHON) tests/ranks/doors.py $(BUILD)/door $(BUILD)/shardc $(BUILD)/doors --seconds 20
	SHARDC=$(BUILD)/shardc tests/ranks/hangs 4
	$(PYTHON) tests/ranks/crash.py $(BUILD)/shardc $(BUILD)/crash $(CRASH)
	$(PYTHON) tests/ranks/saves.py $(BUILD)/shardc $(BUILD)/saves
	SHARDC=$(BUILD)/shardc tests/e2e/units
	SHARDC=$(BUILD)/shardc tests/e2e/plan_big

## crash: 500 kills, as `ranks` has 36 (ten minutes); last result: tests/ranks/results.md
crash: all
	$(PYTHON) tests/ranks/crash.py $(BUILD)/shardc $(BUILD)/crash --count 500 --seed 7

## matrix: every strategy, wrap policy and prefetch at 1 to 5 ranks (an hour), every round trip of checkpoints;
##   last results: tests/ranks/results.md
matrix: all $(VENV)/ready
	$(PYTHON) tests/ranks/matrix.py $(BUILD)/shardc $(BUILD)/matrix --full --log $(BUILD)/matrix.log
	$(PYTHON) tests/ranks/trips.py $(BUILD)/shardc $(BUILD)/trips --full --log $(BUILD)/trips.log

## features: every training feature under every strategy at 1, 2 and 4 ranks against PyTorch, a pairwise cover
features: all $(VENV)/ready $(BUILD)/models
	$(PYTHON) tests/ranks/features.py $(BUILD)/shardc $(BUILD)/features --curves 60
	$(PYTHON) tests/ranks/accumulate.py $(BUILD)/shardc $(BUILD)/accumulate
	SHARDC=$(BUILD)/shardc PYTHON=$(abspath $(PYTHON)) tests/e2e/run init library

## features-full: all of them, and bf16's loss curve (half an hour); last result:
##   tests/ranks/results.md
features-full: all $(VENV)/ready
	$(PYTHON) tests/ranks/features.py $(BUILD)/shardc $(BUILD)/features --full --curves 300 --log $(BUILD)/features.log

## threads: programs under --threads-exact have the same bits for 1 to 16 threads, at one rank and two (long;
##   THREADS="--models gpt2 --cases f32": these alone)
threads: all $(VENV)/ready
	$(PYTHON) tests/predict/threads.py $(BUILD)/shardc $(BUILD)/threads $(THREADS)

## predict-time: predicted beside measured steps of 50 cases, and of 10 in bf16 where the processor multiplies that, on
##   this machine, which it calibrates at the same time (35 minutes; PREDICT="--only gpt2": a part of it)
predict-time: all $(VENV)/ready
	$(PYTHON) tests/predict/time.py $(BUILD)/shardc $(BUILD)/predict-time $(PREDICT)
## searched: what --wrap=auto finds beside policies by hand, as their programs run on this machine (a quarter of an hour)
searched: all $(VENV)/ready
	$(PYTHON) tests/predict/searched.py $(BUILD)/shardc $(BUILD)/predict-time $(SEARCHED)

## bench: training steps against PyTorch, by class of op, and memory (BENCH="--only gpt2-124m --rounds 2": a part of it;
##   all of it takes hours on two cores)
bench: all $(BUILD)/bench_rates $(VENV)/ready
	$(PYTHON) bench/step.py $(BUILD)/shardc $(BUILD)/bench_rates $(BUILD)/bench --json $(BUILD)/bench.jsonl $(BENCH)
# As the loops of a training program are compiled.
$(BUILD)/bench_rates: bench/micro/rates.c $(BUILD)/lib/native/libshardrt.a
	$(CC) $(CFLAGS) -O3 -march=native -fopenmp -fno-math-errno -fno-trapping-math -o $@ $^ $(RTLIBS)

## bench-quick: the benchmark itself, with tiny models (some minutes)
bench-quick: all $(BUILD)/bench_rates $(VENV)/ready
	$(PYTHON) tests/bench/quick.py $(BUILD)/shardc $(BUILD)/bench_rates $(BUILD)/bench/quick

## bench-ranks: two ranks against one of two threads, and against PyTorch's fully_shard and DDP (a quarter of an hour)
RANKS ?= --variants fsdp,fsdp-keep,ddp,ddp-view
bench-ranks: all $(VENV)/ready
	$(PYTHON) bench/ranks.py $(BUILD)/shardc $(BUILD)/bench/ranks --json $(BUILD)/bench.jsonl $(RANKS)

## bench-checkpoint: saves and loads of GPT-2 124M against dd, torch.save and safetensors; what steps pay for saves
bench-checkpoint: all $(VENV)/ready
	$(PYTHON) bench/checkpoint.py $(BUILD)/shardc $(BUILD)/bench --json $(BUILD)/bench.jsonl $(CHECKPOINT)

## install: shardc, what programs are linked with and the headers that they read, below PREFIX
INSTALLED = $(ARCHES:%=$(BUILD)/lib/%/libshardrt.a) $(COMMLIBS) $(wildcard $(BUILD)/lib/sm_*/libshardrt*)
install: all
	install -D $(BUILD)/shardc $(DESTDIR)$(PREFIX)/bin/shardc
	for l in $(INSTALLED:$(BUILD)/%=%); do install -Dm644 $(BUILD)/$$l $(DESTDIR)$(PREFIX)/lib/shardc/$$l; done
	for h in $(HEADERS); do install -Dm644 $$h $(DESTDIR)$(PREFIX)/lib/shardc/include/$$h; done

clean:
	rm -rf $(BUILD)/obj $(BUILD)/lib $(BUILD)/frontend $(BUILD)/shardc $(BUILD)/libshardc.a $(BUILD)/unit

# Sources that have moved, which dependencies in older build folders still name.
runtime/mpi/comm_mpi.c runtime/nccl/comm_nccl.c: ;
-include $(shell find $(BUILD)/obj $(BUILD)/lib -name '*.d' 2>/dev/null)
.PHONY: all help quickstart deps test docs mutants random lint asan fuzz conformance reference parity predict export zoo frameworks shapes python trust trust-full \
	sizes schedulers published recipes doors ranks ranks-same ranks-faults crash matrix features features-full threads predict-time \
	searched bench bench-quick bench-ranks \
	bench-checkpoint install clean
.DELETE_ON_ERROR:
