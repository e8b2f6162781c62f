"""The headers that a kernel may include are there, and what they declare means what it does for nvcc."""

import pytest

from mctskernel.core.kernel import Kernel
from mctskernel.profiling.build import Build, build
from mctskernel.profiling.source_rules import PLAIN_HEADERS

STORE = 'extern "C" __global__ void store(float* x) { x[threadIdx.x] = 1.0f; }'

USES = r"""
template <typename T, typename = std::enable_if_t<std::is_floating_point_v<T>>>
__device__ T twice(T x) { return x + x; }

template <std::size_t... I>
__device__ float total(const float* x, std::index_sequence<I...>) { return (x[I] + ...); }

struct Pair { double d; int i; };
static_assert(std::numeric_limits<int>::max() == INT_MAX && std::numeric_limits<int>::min() == INT_MIN);
static_assert(std::numeric_limits<unsigned>::max() == UINT32_MAX && CHAR_BIT == 8);
static_assert(std::numeric_limits<float>::max() == FLT_MAX && std::numeric_limits<float>::min() == FLT_MIN);
static_assert(std::numeric_limits<double>::max() == DBL_MAX && std::numeric_limits<double>::epsilon() == DBL_EPSILON);
static_assert(std::is_same<std::decay_t<const int&>, int>::value && std::is_pointer_v<int* const>);
static_assert(std::is_same_v<std::make_unsigned_t<long>, unsigned long> && std::is_trivially_copyable_v<Pair>);
static_assert(std::is_same_v<std::conditional_t<true, int, float>, int> && std::is_integral_v<std::uint8_t>);

extern "C" __global__ void store(float* x, std::uint32_t n, int64_t m) {
    std::array a{1.0f, 2.0f, 3.0f, 4.0f};
    a[1] = std::sqrt(std::fabs(x[0])) * M_PI + std::max(x[1], 2.0f) + std::clamp(x[2], 0.0f, 1.0f);
    std::swap(a[0], a[1]);
    auto [first, second] = std::make_pair(1, 2.0f);
    for (float value : a) x[3] += twice(value) + first + second + total(x, std::make_index_sequence<3>{});
    assert(x[0] == x[0]);
    x[4] = std::pow(x[1], 2.0f) + std::abs(x[2]) + std::isnan(x[9]);
    x[5] = std::isinf(x[6]) ? INFINITY : NAN;
    x[6] = -std::numeric_limits<float>::infinity();
    std::memset(x + 7, 0, sizeof(float));
    x[8] = std::min<std::size_t>(n, m);
}
"""
USED = "algorithm array cassert cfloat climits cmath cstddef cstdint cstring limits type_traits utility"


@pytest.mark.parametrize("header", sorted(PLAIN_HEADERS))
def test_a_plain_header_can_stand_alone(header: str) -> None:
    result = build(Kernel(f"#include <{header}>\n{STORE}"), ("store",))
    assert isinstance(result, Build), result.message


@pytest.mark.parametrize("namespace", ["", "using namespace std;\n"])
def test_what_an_engineer_writes_for_nvcc_builds(namespace: str) -> None:
    headers = "".join(f"#include <{name}>\n" for name in USED.split())
    source = headers + namespace + (USES.replace("std::", "") if namespace else USES)
    result = build(Kernel(source), ("store",))
    assert isinstance(result, Build), result.message
    assert "0fFF800000" in result.ptx or "-8388608" in result.ptx
