# runtime/comm/mpi/mpi.mk: builds the shared object for MPI where an MPI is installed; what is tested and measured with it.
MPICC   := $(shell command -v mpicc)
MPILIBS := $(if $(MPICC),$(ARCHES:%=$(BUILD)/lib/%/libshardrt_mpi.so))
ifeq ($(MPICC)$(filter-out all,$(MAKECMDGOALS)),)
$(info make: no MPI here (Debian: libopenmpi-dev, openmpi-bin): programs will run on one host only)
endif
COMMLIBS += $(MPILIBS)
all: $(MPILIBS)
$(MPILIBS): runtime/comm/mpi/object.c
	@mkdir -p $(@D)
	$(MPICC) $(CFLAGS) -fPIC -shared -o $@ $< -lpthread

lint: lint-mpi
lint-mpi:
	@for f in $(if $(MPICC),runtime/comm/mpi/object.c bench/collectives.c); do \
		command -v clang >/dev/null || exit 0; \
		OMPI_CC=clang MPICH_CC=clang $(MPICC) -std=c11 -D_GNU_SOURCE -I. -I$(BUILD) $(WARN) -c -fsyntax-only $$f || \
			exit 1; done

## mpi: ranks that mpirun starts against --ranks, on hosts made of namespaces (wants libopenmpi-dev, openmpi-bin, root)
mpi: all $(BUILD)/models
	SHARDC=$(BUILD)/shardc tests/ranks/mpi

## collectives: reduce_scatter and all_gather of 32 MB beside MPI's (wants libopenmpi-dev, openmpi-bin)
collectives: $(BUILD)/collectives
	rm -f $(BUILD)/collectives.jsonl
	status=0; for n in 2 4; do mpirun --oversubscribe --allow-run-as-root -n $$n $< $(BUILD)/collectives.jsonl || status=1; \
		done; exit $$status
$(BUILD)/collectives: bench/collectives.c $(BUILD)/lib/native/libshardrt.a
	@[ -n "$(MPICC)" ] || { echo "mpicc is not installed (Debian: libopenmpi-dev openmpi-bin)"; exit 1; }
	$(MPICC) $(CFLAGS) -o $@ $^ $(RTLIBS)
.PHONY: lint-mpi mpi collectives
