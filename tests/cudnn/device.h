/* tests/cudnn/device.h: what the files of this test share: devices that are only described, and the result of
 * a plan. */
#ifndef TEST_CUDNN_DEVICE_H
#define TEST_CUDNN_DEVICE_H

#include "kernels/cuda/graph.cuh"
#include "kernels/kernels.h"

struct Device { const char *name; int version, processors, shared; };
extern const Device h100, a100;

/* An empty graph for a device; released with the device's description. */
Graph *graph_for(const Device &device);
void graph_release(Graph *g);

/* Plans g within `work` bytes, prints a row with `what` and the result, and returns whether it was as wanted. */
bool plan_is(Graph *g, const Device &device, KDType type, const char *what, int64_t work, bool wanted);

/* convs.cpp: the number of convolutions that the library does not plan. */
int failed_convs(void);

#endif
