#ifndef __CUDA_ARCH__
#include <torch/extension.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

{{ device }}
{{ functions }}
#ifndef __CUDA_ARCH__
void mctskernel_run({{ parameters }}) {
{{ body }}
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
    module.def("run", &mctskernel_run);
}
#endif
