#pragma once
#include <cuda/std/cstddef>

using ::cuda::std::ptrdiff_t;
