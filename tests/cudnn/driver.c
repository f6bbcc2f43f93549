/* tests/cudnn/driver.c: stands for NVIDIA's driver (libcuda.so.1) where cuDNN plans for a device that is not there.
 *
 * cuDNN links with it, and loads what it has compiled.  Loading succeeds and gives handles that nobody uses; all else
 * says that there is no device. */
enum { NO_DEVICE = 100 };

#define ABSENT(name) int name(void); int name(void) { return NO_DEVICE; }
#define GIVES(name, type, value) int name(type *to); int name(type *to) { *to = (type)(value); return 0; }
#define DONE(name) int name(void); int name(void) { return 0; }
typedef void *Handle;

ABSENT(cuCtxGetCurrent) ABSENT(cuCtxGetLimit) ABSENT(cuCtxPopCurrent) ABSENT(cuCtxPushCurrent) ABSENT(cuDeviceGet)
ABSENT(cuDeviceGetCount) ABSENT(cuDriverGetVersion) ABSENT(cuGetErrorName) ABSENT(cuGetErrorString)
ABSENT(cuLaunchCooperativeKernel) ABSENT(cuLaunchKernel) ABSENT(cuLaunchKernelEx) ABSENT(cuLibraryLoadFromFile)
ABSENT(cuLinkAddData) ABSENT(cuLinkComplete) ABSENT(cuLinkCreate) ABSENT(cuLinkDestroy) ABSENT(cuStreamGetCtx)
ABSENT(cuTensorMapEncodeIm2col) ABSENT(cuTensorMapEncodeTiled)
GIVES(cuLibraryLoadData, Handle, 1) GIVES(cuLibraryGetKernel, Handle, 2) GIVES(cuKernelGetFunction, Handle, 3)
GIVES(cuModuleLoadData, Handle, 4) GIVES(cuModuleGetFunction, Handle, 5)
GIVES(cuKernelGetAttribute, int, 0) GIVES(cuOccupancyMaxPotentialClusterSize, int, 16)
DONE(cuKernelSetAttribute) DONE(cuLibraryUnload) DONE(cuModuleUnload)
