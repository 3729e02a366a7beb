/* The CUDA face: what cuGetProcAddress finds. A name with several entries means the one with the
 * highest version that is not above what is asked for. */
#include "cuda.h"

#define ENTRIES \
  ENTRY(cuInit, 2000, cuInit) \
  ENTRY(cuDriverGetVersion, 2020, cuDriverGetVersion) \
  ENTRY(cuDeviceGetCount, 2000, cuDeviceGetCount) \
  ENTRY(cuDeviceGet, 2000, cuDeviceGet) \
  ENTRY(cuDeviceGetName, 2000, cuDeviceGetName) \
  ENTRY(cuDeviceGetUuid, 9020, cuDeviceGetUuid_v2) \
  ENTRY(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2) \
  ENTRY(cuDeviceGetAttribute, 2000, cuDeviceGetAttribute) \
  ENTRY(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain) \
  ENTRY(cuDevicePrimaryCtxRelease, 7000, cuDevicePrimaryCtxRelease_v2) \
  ENTRY(cuDevicePrimaryCtxReset, 7000, cuDevicePrimaryCtxReset_v2) \
  ENTRY(cuDevicePrimaryCtxGetState, 7000, cuDevicePrimaryCtxGetState) \
  ENTRY(cuCtxSetCurrent, 4000, cuCtxSetCurrent) \
  ENTRY(cuCtxGetCurrent, 4000, cuCtxGetCurrent) \
  ENTRY(cuCtxGetDevice, 2000, cuCtxGetDevice) \
  ENTRY(cuCtxGetDevice, 13000, cuCtxGetDevice_v2) \
  ENTRY(cuCtxSynchronize, 2000, cuCtxSynchronize) \
  ENTRY(cuCtxSynchronize, 13000, cuCtxSynchronize_v2) \
  ENTRY(cuDeviceCanAccessPeer, 4000, cuDeviceCanAccessPeer) \
  ENTRY(cuCtxEnablePeerAccess, 4000, cuCtxEnablePeerAccess) \
  ENTRY(cuCtxDisablePeerAccess, 4000, cuCtxDisablePeerAccess) \
  ENTRY(cuStreamCreate, 2000, cuStreamCreate) \
  ENTRY(cuStreamDestroy, 4000, cuStreamDestroy_v2) \
  ENTRY(cuStreamQuery, 2000, cuStreamQuery) \
  ENTRY(cuStreamSynchronize, 2000, cuStreamSynchronize) \
  ENTRY(cuStreamWaitEvent, 3020, cuStreamWaitEvent) \
  ENTRY(cuStreamGetFlags, 5050, cuStreamGetFlags) \
  ENTRY(cuStreamGetCtx, 9020, cuStreamGetCtx) \
  ENTRY(cuStreamGetCtx, 12050, cuStreamGetCtx_v2) \
  ENTRY(cuStreamIsCapturing, 10000, cuStreamIsCapturing) \
  ENTRY(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2) \
  ENTRY(cuThreadExchangeStreamCaptureMode, 10010, cuThreadExchangeStreamCaptureMode) \
  ENTRY(cuEventCreate, 2000, cuEventCreate) \
  ENTRY(cuEventDestroy, 4000, cuEventDestroy_v2) \
  ENTRY(cuEventRecord, 2000, cuEventRecord) \
  ENTRY(cuEventQuery, 2000, cuEventQuery) \
  ENTRY(cuEventSynchronize, 2000, cuEventSynchronize) \
  ENTRY(cuEventElapsedTime, 2000, cuEventElapsedTime) \
  ENTRY(cuLaunchHostFunc, 10000, cuLaunchHostFunc) \
  ENTRY(cuStreamWaitValue32, 8000, cuStreamWaitValue32_v2) \
  ENTRY(cuStreamWaitValue64, 9000, cuStreamWaitValue64_v2) \
  ENTRY(cuStreamWriteValue32, 8000, cuStreamWriteValue32_v2) \
  ENTRY(cuStreamWriteValue64, 9000, cuStreamWriteValue64_v2) \
  ENTRY(cuMemAlloc, 3020, cuMemAlloc_v2) \
  ENTRY(cuMemAllocManaged, 6000, cuMemAllocManaged) \
  ENTRY(cuMemFree, 3020, cuMemFree_v2) \
  ENTRY(cuMemHostAlloc, 2020, cuMemHostAlloc) \
  ENTRY(cuMemFreeHost, 2000, cuMemFreeHost) \
  ENTRY(cuMemHostRegister, 6050, cuMemHostRegister_v2) \
  ENTRY(cuMemHostUnregister, 4000, cuMemHostUnregister) \
  ENTRY(cuMemHostGetDevicePointer, 3020, cuMemHostGetDevicePointer_v2) \
  ENTRY(cuMemGetInfo, 3020, cuMemGetInfo_v2) \
  ENTRY(cuPointerGetAttribute, 4000, cuPointerGetAttribute) \
  ENTRY(cuMemAllocAsync, 11020, cuMemAllocAsync) \
  ENTRY(cuMemAllocFromPoolAsync, 11020, cuMemAllocFromPoolAsync) \
  ENTRY(cuMemFreeAsync, 11020, cuMemFreeAsync) \
  ENTRY(cuDeviceGetDefaultMemPool, 11020, cuDeviceGetDefaultMemPool) \
  ENTRY(cuMemPoolCreate, 11020, cuMemPoolCreate) \
  ENTRY(cuMemPoolDestroy, 11020, cuMemPoolDestroy) \
  ENTRY(cuMemPoolGetAttribute, 11020, cuMemPoolGetAttribute) \
  ENTRY(cuMemPoolSetAttribute, 11020, cuMemPoolSetAttribute) \
  ENTRY(cuMemPoolTrimTo, 11020, cuMemPoolTrimTo) \
  ENTRY(cuMemPoolSetAccess, 11020, cuMemPoolSetAccess) \
  ENTRY(cuMemcpyAsync, 4000, cuMemcpyAsync) \
  ENTRY(cuMemcpyHtoD, 3020, cuMemcpyHtoD_v2) \
  ENTRY(cuMemcpyHtoDAsync, 3020, cuMemcpyHtoDAsync_v2) \
  ENTRY(cuMemcpyDtoH, 3020, cuMemcpyDtoH_v2) \
  ENTRY(cuMemcpyDtoHAsync, 3020, cuMemcpyDtoHAsync_v2) \
  ENTRY(cuMemcpyDtoDAsync, 3020, cuMemcpyDtoDAsync_v2) \
  ENTRY(cuMemcpyPeerAsync, 4000, cuMemcpyPeerAsync) \
  ENTRY(cuMemsetD8, 3020, cuMemsetD8_v2) \
  ENTRY(cuMemsetD16, 3020, cuMemsetD16_v2) \
  ENTRY(cuMemsetD32, 3020, cuMemsetD32_v2) \
  ENTRY(cuMemsetD8Async, 3020, cuMemsetD8Async) \
  ENTRY(cuMemsetD16Async, 3020, cuMemsetD16Async) \
  ENTRY(cuMemsetD32Async, 3020, cuMemsetD32Async) \
  ENTRY(cuModuleLoadData, 2000, cuModuleLoadData) \
  ENTRY(cuModuleLoadDataEx, 2010, cuModuleLoadDataEx) \
  ENTRY(cuModuleUnload, 2000, cuModuleUnload) \
  ENTRY(cuModuleGetFunction, 2000, cuModuleGetFunction) \
  ENTRY(cuModuleGetFunctionCount, 12040, cuModuleGetFunctionCount) \
  ENTRY(cuModuleEnumerateFunctions, 12040, cuModuleEnumerateFunctions) \
  ENTRY(cuModuleGetGlobal, 3020, cuModuleGetGlobal_v2) \
  ENTRY(cuFuncGetAttribute, 2020, cuFuncGetAttribute) \
  ENTRY(cuFuncSetAttribute, 9000, cuFuncSetAttribute) \
  ENTRY(cuFuncGetParamInfo, 12040, cuFuncGetParamInfo) \
  ENTRY(cuFuncGetName, 12030, cuFuncGetName) \
  ENTRY(cuFuncLoad, 12040, cuFuncLoad) \
  ENTRY(cuLaunchKernel, 4000, cuLaunchKernel) \
  ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050, cuOccupancyMaxActiveBlocksPerMultiprocessor) \
  ENTRY(cuGraphCreate, 10000, cuGraphCreate) \
  ENTRY(cuGraphDestroy, 10000, cuGraphDestroy) \
  ENTRY(cuGraphAddKernelNode, 12000, cuGraphAddKernelNode_v2) \
  ENTRY(cuGraphAddMemcpyNode, 10000, cuGraphAddMemcpyNode) \
  ENTRY(cuGraphAddMemsetNode, 10000, cuGraphAddMemsetNode) \
  ENTRY(cuGraphAddEmptyNode, 10000, cuGraphAddEmptyNode) \
  ENTRY(cuGraphGetNodes, 10000, cuGraphGetNodes) \
  ENTRY(cuGraphExecKernelNodeSetParams, 12000, cuGraphExecKernelNodeSetParams_v2) \
  ENTRY(cuGraphExecMemcpyNodeSetParams, 10020, cuGraphExecMemcpyNodeSetParams) \
  ENTRY(cuGraphExecMemsetNodeSetParams, 10020, cuGraphExecMemsetNodeSetParams) \
  ENTRY(cuGraphNodeSetEnabled, 11060, cuGraphNodeSetEnabled) \
  ENTRY(cuGraphInstantiate, 12000, cuGraphInstantiateWithFlags) \
  ENTRY(cuGraphInstantiateWithFlags, 11040, cuGraphInstantiateWithFlags) \
  ENTRY(cuGraphExecDestroy, 10000, cuGraphExecDestroy) \
  ENTRY(cuGraphLaunch, 10000, cuGraphLaunch) \
  ENTRY(cuGetErrorName, 6000, cuGetErrorName) \
  ENTRY(cuGetErrorString, 6000, cuGetErrorString) \
  ENTRY(cuGetProcAddress, 12000, cuGetProcAddress_v2) \
  ENTRY(cuStreamEndCapture, 10000, cuStreamEndCapture) \
  ENTRY(cuIpcGetMemHandle, 4010, cuIpcGetMemHandle) \
  ENTRY(cuIpcOpenMemHandle, 11000, cuIpcOpenMemHandle_v2) \
  ENTRY(cuIpcCloseMemHandle, 4010, cuIpcCloseMemHandle)

/* How they are called is their callers' affair. */
#define ENTRY(name_, version_, symbol_) void symbol_(void);
ENTRIES
#undef ENTRY

#define ENTRY(name_, version_, symbol_) {#name_, version_, symbol_},
const struct cu_line cu_lines[] = {ENTRIES};
const size_t cu_line_count = sizeof cu_lines / sizeof *cu_lines;
