"""The names of Triton and Python that the body of a candidate may use; all others are forbidden."""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


LANGUAGE = _names(
    """
    PropagateNan abs add arange argmax argmin associative_scan assume atomic_add atomic_and atomic_cas
    atomic_max atomic_min atomic_or atomic_xchg atomic_xor advance bfloat16 bitonic_merge broadcast broadcast_to
    cast cat cdiv ceil clamp constexpr cos cumprod cumsum debug_barrier div_rn dot erf exp exp2 expand_dims fdiv
    flip float16 float32 float64 float8e4nv float8e5 floor fma full gather histogram int1 int16 int32 int64 int8
    interleave join load log log2 make_block_ptr make_tensor_descriptor max max_constancy max_contiguous
    maximum min minimum mul
    multiple_of num_programs permute philox pointer_type program_id rand rand4x randint randint4x randn randn4x
    range ravel reduce reduce_or reshape rsqrt sigmoid sin softmax sort split sqrt sqrt_rn squeeze static_assert
    static_range store sub sum swizzle2d topk trans uint16 uint32 uint64 uint8 umulhi unsqueeze view where
    xor_sum zeros zeros_like
    """
)
"""Allowed names of `tl`: no printing, inline assembly or other modules."""

MATH = _names(
    """
    abs ceil cos div_rn erf exp exp2 fdiv floor fma log log2 rsqrt sin sqrt sqrt_rn umulhi
    """
)
"""Allowed names of `tl.math`."""

PROPAGATION = frozenset({"ALL", "NONE"})  # allowed names of `tl.PropagateNan`

LIBDEVICE = _names(
    """
    abs acos acosh asin asinh atan atan2 atanh brev cbrt ceil clz copysign cos cosh div_rn erf erfc erfinv exp
    exp10 exp2 expm1 fast_cosf fast_dividef fast_exp10f fast_expf fast_log10f fast_log2f fast_logf fast_powf
    fast_sinf fast_tanf fdim ffs float_as_int float_as_uint floor fma fmod hypot int_as_float isinf isnan ldexp
    lgamma llrint log log10 log1p log2 mulhi nearbyint normcdf popc pow rcbrt remainder rint round rsqrt
    saturatef signbit sin sinh sqrt tan tanh tgamma trunc uint_as_float
    """
)
"""Allowed names of `libdevice`."""

HOST = frozenset({"cdiv", "next_power_of_2"})  # allowed names of `triton`

MEMBERS = _names(
    """
    T abs advance argmax argmin associative_scan atomic_add atomic_and atomic_cas atomic_max atomic_min
    atomic_or atomic_xchg atomic_xor broadcast_to cast cdiv ceil cos cumprod cumsum dtype element_ty erf exp
    exp2 expand_dims flip floor gather histogram is_floating is_int load log log2 logical_and logical_or max min ndim
    numel permute primitive_bitwidth ravel reduce reshape rsqrt scalar shape sigmoid sin softmax sort split sqrt
    sqrt_rn store sum to trans type value view xor_sum
    """
)
"""Allowed methods and attributes of tensors, tensor descriptors, constexprs and types."""

FUNCTIONS = frozenset({"range", "min", "max", "float", "int", "len"})
"""Python's functions that Triton maps to its own."""

POWERFUL = _names(
    """
    breakpoint compile delattr dir eval exec exit getattr globals hasattr help input isinstance list locals
    object open print setattr super type vars
    """
)
"""Python's names that even locals may not have."""
