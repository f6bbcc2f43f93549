# shardc: make [target] [CC=clang] ; everything generated goes below build/
CC      ?= gcc
BUILD   ?= build
PREFIX  ?= /usr/local
VENV    ?= $(BUILD)/venv
WARN    := -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Werror
CFLAGS  ?= -O2 -g
override CFLAGS += -std=c11 -D_GNU_SOURCE -I. -I$(BUILD) $(WARN) -MMD -MP $(SANITIZE)

COMPILER := $(wildcard base/*.c ir/*.c frontend/*.c passes/*.c codegen/*.c) $(BUILD)/frontend/onnx.pb-c.c
RUNTIME  := $(wildcard base/*.c runtime/*.c)
KERNELS  := $(wildcard kernels/cpu/*.c)
ARCHES   := native x86-64-v3 x86-64-v4
UNITS    := $(wildcard tests/unit/*.c)

obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(patsubst $(BUILD)/%,%,$(1)))
COMPILER_OBJ := $(call obj,$(COMPILER))
LIBS     := -lprotobuf-c -ljansson -lm

all: $(BUILD)/shardc $(ARCHES:%=$(BUILD)/lib/%/libshardrt.a)

$(BUILD)/shardc: $(call obj,main.c options.c run.c) $(BUILD)/libshardc.a
	$(CC) $(CFLAGS) -o $@ $^ $(LIBS)
$(BUILD)/libshardc.a: $(COMPILER_OBJ)
	rm -f $@ && ar rcs $@ $^

$(BUILD)/frontend/onnx.pb-c.c $(BUILD)/frontend/onnx.pb-c.h &: frontend/onnx.proto
	@mkdir -p $(BUILD)/frontend
	protoc-c --proto_path=frontend --c_out=$(BUILD)/frontend onnx.proto
$(call obj,$(wildcard frontend/*.c)): $(BUILD)/frontend/onnx.pb-c.h

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -c -o $@ $<
$(BUILD)/obj/%.o: $(BUILD)/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -w -c -o $@ $<

# The runtime is built for any x86-64, so that it can say what a processor lacks; kernels per --arch.
KFLAGS = -O3 -fopenmp -ffp-contract=fast -fno-math-errno -fno-trapping-math -march=$(1)
define ARCH_LIB
$(BUILD)/lib/$(1)/%.o: kernels/cpu/%.c
	@mkdir -p $$(@D)
	$$(CC) $$(CFLAGS) $(call KFLAGS,$(1)) -c -o $$@ $$<
$(BUILD)/lib/$(1)/libshardrt.a: $(call obj,$(RUNTIME)) $(KERNELS:kernels/cpu/%.c=$(BUILD)/lib/$(1)/%.o)
	rm -f $$@ && ar rcs $$@ $$^
endef
$(foreach a,$(ARCHES),$(eval $(call ARCH_LIB,$(a))))

clean:
	rm -rf $(BUILD)/obj $(BUILD)/lib $(BUILD)/shardc $(BUILD)/libshardc.a

-include $(shell find $(BUILD)/obj $(BUILD)/lib -name '*.d' 2>/dev/null)
.PHONY: all clean
.DELETE_ON_ERROR:
