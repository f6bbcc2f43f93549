# aarch64.mk: the whole of shardc and its CPU runtime for AArch64, compiled and tested on another machine; included by
# Makefile.  On an AArch64 machine the usual targets do.

CROSS      := aarch64-linux-gnu
CROSS_DEPS := g++-$(CROSS) libc6-dev-arm64-cross qemu-user
ARM        := build/aarch64
ARM_ROOT   := $(ARM)/root
ARM_LIB    := $(ARM_ROOT)/usr/lib/$(CROSS)
ARM_LINK    = -L$(ARM_LIB) -Wl,-rpath-link,$(ARM_LIB):$(ARM_ROOT)/lib/$(CROSS)
# Debian's packages for AArch64, unpacked beside what they are for and not installed.
ARM_DEPS   := libc6 libgcc-s1 libstdc++6 libgomp1 libprotobuf-c1 libprotobuf-c-dev libjansson4 libjansson-dev \
	libdeflate0 libdeflate-dev libdnnl2 libdnnl-dev libcunit1 libcunit1-dev
ARM_APT     = apt-get -qq $(foreach a,$(shell dpkg --print-architecture) arm64,-o APT::Architectures::=$(a)) \
	-o Dir::State::lists=$(CURDIR)/$(ARM)/apt/lists -o Dir::Cache=$(CURDIR)/$(ARM)/apt/cache -o APT::Sandbox::User=root
ARM_MAKE    = $(MAKE) --no-print-directory BUILD=$(ARM) CC=$(CROSS)-gcc NVCC= MPICC= \
	CFLAGS="-O2 -g -isystem $(ARM_ROOT)/usr/include $(ARM_LINK)"

$(ARM)/ready:
	@command -v $(CROSS)-g++ >/dev/null && command -v qemu-aarch64 >/dev/null || { echo "make aarch64 wants $(CROSS_DEPS)"; exit 1; }
	mkdir -p $(ARM)/apt/lists/partial $(ARM)/apt/cache/archives/partial $(ARM_ROOT)
	$(ARM_APT) update
	cd $(ARM)/apt && $(ARM_APT) download $(ARM_DEPS:%=%:arm64) && for f in *.deb; do dpkg -x $$f ../root || exit 1; done
	touch $@

# What GPU programs run on their host; kernels and the libraries of GPUs are not linked.
ARM_CUDA    = $(patsubst %.c,$(ARM)/obj/cuda/%.o,$(CUDA_C) $(CUDA_HOST))

## aarch64: compiler, runtime, unit tests and programs of AArch64, run by qemu-user, and the host's part of GPU programs,
##   compiled (wants g++-aarch64-linux-gnu, qemu-user; AARCH64="kernels fold" leaves out suites)
aarch64: all $(ARM)/ready
	$(ARM_MAKE) $(ARM)/shardc $(ARM)/lib/armv8.2-a/libshardrt.a $(ARM)/unit
	$(if $(NVCC),$(ARM_MAKE) CUDA_HOME=$(CUDA_HOME) $(ARM_CUDA),@echo "aarch64: no nvcc here: the runtime of GPU programs is not compiled")
	SHARDC=$(BUILD)/shardc tests/aarch64/run $(AARCH64)
.PHONY: aarch64
