/* tests/cudasim/include/cudnn.h: the part of cuDNN that shardc uses; numbers and signatures are cuDNN 9's. */
#ifndef CUDASIM_CUDNN_H
#define CUDASIM_CUDNN_H

#include <cuda_runtime_api.h>

#include <stdint.h>

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
	CUDNN_DATA_INT32 = 4,
	CUDNN_DATA_BFLOAT16 = 9,
	CUDNN_DATA_BOOLEAN = 11
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

/* ---- operation graphs ---- */

size_t cudnnGetVersion(void);

typedef enum {
	CUDNN_POINTWISE_ADD = 0,
	CUDNN_POINTWISE_MUL = 1,
	CUDNN_POINTWISE_DIV = 6,
	CUDNN_POINTWISE_SUB = 9,
	CUDNN_POINTWISE_EXP = 13,
	CUDNN_POINTWISE_LOG = 15,
	CUDNN_POINTWISE_IDENTITY = 21,
	CUDNN_POINTWISE_CMP_GT = 302,
	CUDNN_POINTWISE_CMP_GE = 303,
	CUDNN_POINTWISE_GEN_INDEX = 501,
	CUDNN_POINTWISE_BINARY_SELECT = 601
} cudnnPointwiseMode_t;
typedef enum { CUDNN_REDUCE_TENSOR_ADD = 0, CUDNN_REDUCE_TENSOR_MAX = 3 } cudnnReduceTensorOp_t;
typedef enum {
	CUDNN_NUMERICAL_NOTE_TENSOR_CORE = 0,
	CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC = 4,
	CUDNN_NUMERICAL_NOTE_TYPE_COUNT = 10
} cudnnBackendNumericalNote_t;
typedef enum { CUDNN_HEUR_MODE_FALLBACK = 2, CUDNN_HEUR_MODE_A = 3 } cudnnBackendHeurMode_t;

typedef enum {
	CUDNN_BACKEND_POINTWISE_DESCRIPTOR = 0,
	CUDNN_BACKEND_ENGINE_DESCRIPTOR = 2,
	CUDNN_BACKEND_ENGINECFG_DESCRIPTOR = 3,
	CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR = 4,
	CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR = 5,
	CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR = 13,
	CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR = 15,
	CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR = 16,
	CUDNN_BACKEND_TENSOR_DESCRIPTOR = 17,
	CUDNN_BACKEND_MATMUL_DESCRIPTOR = 18,
	CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR = 19,
	CUDNN_BACKEND_REDUCTION_DESCRIPTOR = 21,
	CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR = 22,
	CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR = 31
} cudnnBackendDescriptorType_t;

typedef enum {
	CUDNN_TYPE_HANDLE = 0,
	CUDNN_TYPE_DATA_TYPE = 1,
	CUDNN_TYPE_BOOLEAN = 2,
	CUDNN_TYPE_INT64 = 3,
	CUDNN_TYPE_VOID_PTR = 6,
	CUDNN_TYPE_HEUR_MODE = 8,
	CUDNN_TYPE_NUMERICAL_NOTE = 11,
	CUDNN_TYPE_POINTWISE_MODE = 14,
	CUDNN_TYPE_BACKEND_DESCRIPTOR = 15,
	CUDNN_TYPE_REDUCTION_OPERATOR_TYPE = 18
} cudnnBackendAttributeType_t;

typedef enum {
	CUDNN_ATTR_POINTWISE_MODE = 0,
	CUDNN_ATTR_POINTWISE_MATH_PREC = 1,
	CUDNN_ATTR_POINTWISE_AXIS = 9,
	CUDNN_ATTR_ENGINEHEUR_MODE = 200,
	CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH = 201,
	CUDNN_ATTR_ENGINEHEUR_RESULTS = 202,
	CUDNN_ATTR_ENGINEHEUR_DEVICEPROP = 204,
	CUDNN_ATTR_ENGINECFG_ENGINE = 300,
	CUDNN_ATTR_EXECUTION_PLAN_HANDLE = 400,
	CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG = 401,
	CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE = 402,
	CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP = 407,
	CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR = 750,
	CUDNN_ATTR_OPERATION_POINTWISE_XDESC = 751,
	CUDNN_ATTR_OPERATION_POINTWISE_BDESC = 752,
	CUDNN_ATTR_OPERATION_POINTWISE_YDESC = 753,
	CUDNN_ATTR_OPERATION_POINTWISE_TDESC = 758,
	CUDNN_ATTR_OPERATIONGRAPH_HANDLE = 800,
	CUDNN_ATTR_OPERATIONGRAPH_OPS = 801,
	CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT = 900,
	CUDNN_ATTR_TENSOR_DATA_TYPE = 901,
	CUDNN_ATTR_TENSOR_DIMENSIONS = 902,
	CUDNN_ATTR_TENSOR_STRIDES = 903,
	CUDNN_ATTR_TENSOR_UNIQUE_ID = 906,
	CUDNN_ATTR_TENSOR_IS_VIRTUAL = 907,
	CUDNN_ATTR_TENSOR_IS_BY_VALUE = 908,
	CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS = 1000,
	CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS = 1001,
	CUDNN_ATTR_VARIANT_PACK_WORKSPACE = 1003,
	CUDNN_ATTR_ENGINE_GLOBAL_INDEX = 1301,
	CUDNN_ATTR_ENGINE_NUMERICAL_NOTE = 1303,
	CUDNN_ATTR_MATMUL_COMP_TYPE = 1500,
	CUDNN_ATTR_OPERATION_MATMUL_ADESC = 1520,
	CUDNN_ATTR_OPERATION_MATMUL_BDESC = 1521,
	CUDNN_ATTR_OPERATION_MATMUL_CDESC = 1522,
	CUDNN_ATTR_OPERATION_MATMUL_DESC = 1523,
	CUDNN_ATTR_REDUCTION_OPERATOR = 1600,
	CUDNN_ATTR_REDUCTION_COMP_TYPE = 1601,
	CUDNN_ATTR_OPERATION_REDUCTION_XDESC = 1610,
	CUDNN_ATTR_OPERATION_REDUCTION_YDESC = 1611,
	CUDNN_ATTR_OPERATION_REDUCTION_DESC = 1612,
	CUDNN_ATTR_OPERATION_RESHAPE_XDESC = 2200,
	CUDNN_ATTR_OPERATION_RESHAPE_YDESC = 2201
} cudnnBackendAttributeName_t;

typedef struct SimBackend *cudnnBackendDescriptor_t;
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *descriptor);
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor);
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor);
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
	cudnnBackendAttributeType_t type, int64_t n, const void *values);
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor, cudnnBackendAttributeName_t name,
	cudnnBackendAttributeType_t type, int64_t asked, int64_t *n, void *values);
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack);

#ifdef __cplusplus
}
#endif
#endif
