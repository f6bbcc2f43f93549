/* tests/cudasim/include/cudnn.h: the part of cuDNN that shardc uses; numbers and signatures are cuDNN 9's. */
#ifndef CUDASIM_CUDNN_H
#define CUDASIM_CUDNN_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
	CUDNN_STATUS_SUCCESS = 0,
	CUDNN_STATUS_BAD_PARAM = 2000,
	CUDNN_STATUS_NOT_SUPPORTED = 3000
} cudnnStatus_t;
#define CUDNN_STATUS_CATEGORY(status) ((status) / 1000 * 1000)
typedef enum { CUDNN_ACTIVATION_IDENTITY = 5 } cudnnActivationMode_t;
typedef enum { CUDNN_NOT_PROPAGATE_NAN = 0, CUDNN_PROPAGATE_NAN = 1 } cudnnNanPropagation_t;
typedef enum {
	CUDNN_DATA_FLOAT = 0,
	CUDNN_DATA_DOUBLE = 1,
	CUDNN_DATA_HALF = 2,
	CUDNN_DATA_BFLOAT16 = 9
} cudnnDataType_t;
typedef enum { CUDNN_TENSOR_NCHW = 0, CUDNN_TENSOR_NHWC = 1 } cudnnTensorFormat_t;
typedef enum { CUDNN_DEFAULT_MATH = 0, CUDNN_TENSOR_OP_MATH = 1, CUDNN_FMA_MATH = 3 } cudnnMathType_t;
typedef enum { CUDNN_CONVOLUTION = 0, CUDNN_CROSS_CORRELATION = 1 } cudnnConvolutionMode_t;
typedef enum {
	CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM = 0,
	CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM = 1
} cudnnConvolutionFwdAlgo_t;
typedef enum {
	CUDNN_CONVOLUTION_BWD_DATA_ALGO_0 = 0,
	CUDNN_CONVOLUTION_BWD_DATA_ALGO_1 = 1
} cudnnConvolutionBwdDataAlgo_t;
typedef enum {
	CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0 = 0,
	CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1 = 1
} cudnnConvolutionBwdFilterAlgo_t;

typedef struct cudnnContext *cudnnHandle_t;
typedef struct SimTensor *cudnnTensorDescriptor_t;
typedef struct SimFilter *cudnnFilterDescriptor_t;
typedef struct SimConvolution *cudnnConvolutionDescriptor_t;
typedef struct SimActivation *cudnnActivationDescriptor_t;

const char *cudnnGetErrorString(cudnnStatus_t status);
cudnnStatus_t cudnnCreate(cudnnHandle_t *handle);
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle);
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream);
cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *t);
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t t);
cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t t, cudnnDataType_t type, int n, const int dim[],
	const int stride[]);
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *w);
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t w);
cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t w, cudnnDataType_t type, cudnnTensorFormat_t format,
	int n, const int dim[]);
cudnnStatus_t cudnnCreateActivationDescriptor(cudnnActivationDescriptor_t *a);
cudnnStatus_t cudnnDestroyActivationDescriptor(cudnnActivationDescriptor_t a);
cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t a, cudnnActivationMode_t mode,
	cudnnNanPropagation_t nan, double coefficient);
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *c);
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t c);
cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t c, int n, const int pad[],
	const int stride[], const int dilation[], cudnnConvolutionMode_t mode, cudnnDataType_t compute);
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t c, int groups);
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t c, cudnnMathType_t math);

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t handle, const cudnnTensorDescriptor_t x,
	const cudnnFilterDescriptor_t w, const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t y,
	cudnnConvolutionFwdAlgo_t algo, size_t *bytes);
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t handle, const cudnnFilterDescriptor_t w,
	const cudnnTensorDescriptor_t dy, const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t dx,
	cudnnConvolutionBwdDataAlgo_t algo, size_t *bytes);
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t handle, const cudnnTensorDescriptor_t x,
	const cudnnTensorDescriptor_t dy, const cudnnConvolutionDescriptor_t c, const cudnnFilterDescriptor_t dw,
	cudnnConvolutionBwdFilterAlgo_t algo, size_t *bytes);
cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha, const cudnnTensorDescriptor_t x,
	const void *X, const cudnnFilterDescriptor_t w, const void *W, const cudnnConvolutionDescriptor_t c,
	cudnnConvolutionFwdAlgo_t algo, void *workspace, size_t bytes, const void *beta, const cudnnTensorDescriptor_t y,
	void *Y);
cudnnStatus_t cudnnConvolutionBiasActivationForward(cudnnHandle_t handle, const void *alpha1,
	const cudnnTensorDescriptor_t x, const void *X, const cudnnFilterDescriptor_t w, const void *W,
	const cudnnConvolutionDescriptor_t c, cudnnConvolutionFwdAlgo_t algo, void *workspace, size_t bytes,
	const void *alpha2, const cudnnTensorDescriptor_t z, const void *Z, const cudnnTensorDescriptor_t bias,
	const void *B, const cudnnActivationDescriptor_t activation, const cudnnTensorDescriptor_t y, void *Y);
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha, const cudnnFilterDescriptor_t w,
	const void *W, const cudnnTensorDescriptor_t dy, const void *dY, const cudnnConvolutionDescriptor_t c,
	cudnnConvolutionBwdDataAlgo_t algo, void *workspace, size_t bytes, const void *beta,
	const cudnnTensorDescriptor_t dx, void *dX);
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha, const cudnnTensorDescriptor_t x,
	const void *X, const cudnnTensorDescriptor_t dy, const void *dY, const cudnnConvolutionDescriptor_t c,
	cudnnConvolutionBwdFilterAlgo_t algo, void *workspace, size_t bytes, const void *beta,
	const cudnnFilterDescriptor_t dw, void *dW);

#ifdef __cplusplus
}
#endif
#endif
