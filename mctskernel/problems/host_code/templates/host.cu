#ifndef __CUDA_ARCH__
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdexcept>
{% for header in headers %}
#include <{{ header }}>
{% endfor %}

// A CUtensorMap; none is made here, and kernels do without.
struct alignas(64) mctskernel_tensor_map {
    uint64_t words[16];
};

{{ stubs | join("\n") }}

static void mctskernel_check(cudaError_t status) {
    if (status != cudaSuccess) {
        throw std::runtime_error(cudaGetErrorString(status));
    }
}
{% for launch, declaration, arguments in functions %}

{{ declaration }} {
    if (shared > 0) {
        mctskernel_check(cudaFuncSetAttribute(::{{ launch.kernel }}, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    }
    const dim3 grid(grid_x, grid_y, grid_z), block(block_x, block_y, block_z);
{% if launch.cluster or launch.nonportable_cluster or launch.programmatic %}
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = reinterpret_cast<cudaStream_t>(stream);
    config.attrs = attributes;
{% if launch.cluster %}
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim.x = cluster_x;
    attributes[config.numAttrs].val.clusterDim.y = cluster_y;
    attributes[config.numAttrs++].val.clusterDim.z = cluster_z;
{% endif %}
{% if launch.nonportable_cluster %}
    mctskernel_check(cudaFuncSetAttribute(::{{ launch.kernel }}, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
{% endif %}
{% if launch.programmatic %}
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
{% endif %}
    mctskernel_check(cudaLaunchKernelEx(&config, ::{{ launch.kernel }}, {{ arguments }}));
{% else %}
    ::{{ launch.kernel }}<<<grid, block, shared, reinterpret_cast<cudaStream_t>(stream)>>>(
        {{ arguments }});
{% endif %}
    mctskernel_check(cudaGetLastError());
}
{% endfor %}
#endif
