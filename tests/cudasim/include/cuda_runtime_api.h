/* tests/cudasim/include/cuda_runtime_api.h: the part of the CUDA runtime's C API that shardc uses, emulated.
 *
 * Numbers and signatures are CUDA 13's.  What is not here is not used. */
#ifndef CUDASIM_CUDA_RUNTIME_API_H
#define CUDASIM_CUDA_RUNTIME_API_H

#include <stddef.h>
#include <stdint.h>

#define CUDART_VERSION 13000

#ifdef __cplusplus
#define CUDASIM_DEFAULT(x) = x
extern "C" {
#else
#define CUDASIM_DEFAULT(x)
#endif

/* ---- errors ---- */

/* CUDA_ERROR(name, number, text) */
#define CUDASIM_ERRORS(CUDA_ERROR) \
	CUDA_ERROR(cudaSuccess, 0, "no error") \
	CUDA_ERROR(cudaErrorInvalidValue, 1, "invalid argument") \
	CUDA_ERROR(cudaErrorMemoryAllocation, 2, "out of memory") \
	CUDA_ERROR(cudaErrorInitializationError, 3, "initialization error") \
	CUDA_ERROR(cudaErrorCudartUnloading, 4, "driver shutting down") \
	CUDA_ERROR(cudaErrorInvalidConfiguration, 9, "invalid configuration argument") \
	CUDA_ERROR(cudaErrorInsufficientDriver, 35, "CUDA driver version is insufficient for CUDA runtime version") \
	CUDA_ERROR(cudaErrorDevicesUnavailable, 46, "CUDA-capable device(s) is/are busy or unavailable") \
	CUDA_ERROR(cudaErrorInvalidDeviceFunction, 98, "invalid device function") \
	CUDA_ERROR(cudaErrorNoDevice, 100, "no CUDA-capable device is detected") \
	CUDA_ERROR(cudaErrorInvalidDevice, 101, "invalid device ordinal") \
	CUDA_ERROR(cudaErrorNoKernelImageForDevice, 209, "no kernel image is available for execution on the device") \
	CUDA_ERROR(cudaErrorInvalidResourceHandle, 400, "invalid resource handle") \
	CUDA_ERROR(cudaErrorNotReady, 600, "device not ready") \
	CUDA_ERROR(cudaErrorIllegalAddress, 700, "an illegal memory access was encountered") \
	CUDA_ERROR(cudaErrorHostMemoryAlreadyRegistered, 712, \
		"part or all of the requested memory range is already mapped") \
	CUDA_ERROR(cudaErrorHostMemoryNotRegistered, 713, "pointer does not correspond to a registered memory region") \
	CUDA_ERROR(cudaErrorNotSupported, 801, "operation not supported") \
	CUDA_ERROR(cudaErrorStreamCaptureUnsupported, 900, "operation not permitted when stream is capturing") \
	CUDA_ERROR(cudaErrorStreamCaptureInvalidated, 901, "operation failed due to a previous error during capture") \
	CUDA_ERROR(cudaErrorUnknown, 999, "unknown error")
typedef enum cudaError {
#define CUDASIM_ENUM(name, number, text) name = number,
	CUDASIM_ERRORS(CUDASIM_ENUM)
#undef CUDASIM_ENUM
} cudaError_t;
const char *cudaGetErrorName(cudaError_t e);
const char *cudaGetErrorString(cudaError_t e);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);

/* ---- devices ---- */

enum cudaDeviceAttr {
	cudaDevAttrMaxThreadsPerBlock = 1,
	cudaDevAttrMultiProcessorCount = 16,
	cudaDevAttrCanMapHostMemory = 19,
	cudaDevAttrPciBusId = 33,
	cudaDevAttrPciDeviceId = 34,
	cudaDevAttrMemoryClockRate = 36,
	cudaDevAttrGlobalMemoryBusWidth = 37,
	cudaDevAttrL2CacheSize = 38,
	cudaDevAttrUnifiedAddressing = 41,
	cudaDevAttrPciDomainId = 50,
	cudaDevAttrComputeCapabilityMajor = 75,
	cudaDevAttrComputeCapabilityMinor = 76,
	cudaDevAttrConcurrentManagedAccess = 89,
	cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
	cudaDevAttrHostRegisterSupported = 99
};
typedef struct cudaUUID_t { char bytes[16]; } cudaUUID_t;
typedef struct cudaDeviceProp {
	char name[256];
	cudaUUID_t uuid;
	size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin;
	int major, minor, multiProcessorCount, warpSize, maxThreadsPerBlock;
	int pciBusID, pciDeviceID, pciDomainID, memoryBusWidth, l2CacheSize, integrated;
} cudaDeviceProp;
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaSetDeviceFlags(unsigned flags);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceReset(void);
cudaError_t cudaMemGetInfo(size_t *available, size_t *total);
#define cudaDeviceScheduleAuto 0x00
#define cudaDeviceScheduleSpin 0x01
#define cudaDeviceScheduleYield 0x02
#define cudaDeviceScheduleBlockingSync 0x04
#define cudaDeviceMapHost 0x08

/* ---- streams and events ---- */

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef void (*cudaHostFn_t)(void *data);
#define cudaStreamDefault 0x00
#define cudaStreamNonBlocking 0x01
#define cudaEventDefault 0x00
#define cudaEventBlockingSync 0x01
#define cudaEventDisableTiming 0x02
#define cudaEventInterprocess 0x04
#define cudaEventRecordDefault 0x00
#define cudaEventWaitDefault 0x00
cudaError_t cudaStreamCreate(cudaStream_t *stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags CUDASIM_DEFAULT(0));
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t f, void *data);
cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream CUDASIM_DEFAULT(0));
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end);

/* ---- memory ---- */

enum cudaMemcpyKind {
	cudaMemcpyHostToHost = 0,
	cudaMemcpyHostToDevice = 1,
	cudaMemcpyDeviceToHost = 2,
	cudaMemcpyDeviceToDevice = 3,
	cudaMemcpyDefault = 4
};
enum cudaMemoryType {
	cudaMemoryTypeUnregistered = 0,
	cudaMemoryTypeHost = 1,
	cudaMemoryTypeDevice = 2,
	cudaMemoryTypeManaged = 3
};
typedef struct cudaPointerAttributes {
	enum cudaMemoryType type;
	int device;
	void *devicePointer, *hostPointer;
} cudaPointerAttributes;
#define cudaHostAllocDefault 0x00
#define cudaHostAllocPortable 0x01
#define cudaHostAllocMapped 0x02
#define cudaHostAllocWriteCombined 0x04
#define cudaHostRegisterDefault 0x00
#define cudaHostRegisterPortable 0x01
#define cudaHostRegisterMapped 0x02
#define cudaHostRegisterReadOnly 0x08
#define cudaMemAttachGlobal 0x01
#define cudaMemAttachHost 0x02
cudaError_t cudaMalloc(void **p, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaMallocManaged(void **p, size_t bytes, unsigned flags CUDASIM_DEFAULT(cudaMemAttachGlobal));
cudaError_t cudaMallocHost(void **p, size_t bytes);
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void *p);
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags);
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
	cudaStream_t stream CUDASIM_DEFAULT(0));
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
	size_t height, enum cudaMemcpyKind kind, cudaStream_t stream CUDASIM_DEFAULT(0));
cudaError_t cudaMemset(void *p, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream CUDASIM_DEFAULT(0));

/* ---- graphs ---- */

typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
typedef struct CUgraphNode_st *cudaGraphNode_t;
enum cudaStreamCaptureMode {
	cudaStreamCaptureModeGlobal = 0,
	cudaStreamCaptureModeThreadLocal = 1,
	cudaStreamCaptureModeRelaxed = 2
};
enum cudaStreamCaptureStatus {
	cudaStreamCaptureStatusNone = 0,
	cudaStreamCaptureStatusActive = 1,
	cudaStreamCaptureStatusInvalidated = 2
};
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status);
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode);
enum cudaGraphInstantiateFlags { cudaGraphInstantiateFlagUseNodePriority = 8 };
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags CUDASIM_DEFAULT(0));
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned flags);
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *before,
	size_t n, cudaGraph_t child);
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

/* ---- kernels ---- */

enum cudaFuncAttribute {
	cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
	cudaFuncAttributePreferredSharedMemoryCarveout = 9
};
typedef struct cudaFuncAttributes {
	size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
	int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, maxDynamicSharedSizeBytes;
} cudaFuncAttributes;
cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value);
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *kernel);

/* ---- profiler ---- */

cudaError_t cudaProfilerStart(void);
cudaError_t cudaProfilerStop(void);

#ifdef __cplusplus
}
#endif
#endif
