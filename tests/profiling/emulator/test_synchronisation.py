"""Honest ways to synchronise, some of them unusual: none of them is a finding, in whichever order blocks run."""
# ruff: noqa: E501 (kernels read better unwrapped)

import numpy as np
import pytest

from mctskernel.profiling.emulator import Limits
from tests.profiling.emulator.launching import Compiler, launched

# blocks x threads of one, and what they do: body
IDIOMS = {
    "4 x 128: lanes that add through one of them": "int i=blockIdx.x*blockDim.x+threadIdx.x; if (a[i] > 0.3f) { unsigned m=__activemask(); int lane=threadIdx.x&31; int leader=__ffs(m)-1; unsigned base; if (lane==leader) base=atomicAdd(u,__popc(m)); base=__shfl_sync(m,base,leader); b[base+__popc(m&((1u<<lane)-1))]=a[i]; }",
    "4 x 128: lanes that match": "int i=blockIdx.x*blockDim.x+threadIdx.x; if (i%3) { unsigned m=__match_any_sync(__activemask(), i%5); if ((threadIdx.x&31)==__ffs(m)-1) atomicAdd(u+i%5,__popc(m)); } b[i]=1;",
    "2 x 128: a ballot of those who are there": "for (int i=blockIdx.x*blockDim.x+threadIdx.x; i<700; i+=gridDim.x*blockDim.x) { unsigned m=__ballot_sync(__activemask(), a[i]>0.5f); b[i]=__popc(m); }",
    "1 x 128: a mask from a ballot": "int i=threadIdx.x; unsigned m=__ballot_sync(~0u, i<77); float v=0; if (i<77) { v=a[i]; for (int o=16;o;o>>=1) v+=__shfl_down_sync(m,v,o); b[i]=v; }",
    "6 x 128: look-back over tiles by ticket": "__shared__ unsigned tile; if (threadIdx.x==0) tile=atomicAdd(u,1); __syncthreads(); unsigned k=tile; volatile unsigned* f=u+8; volatile float* s=scratch; if (threadIdx.x==0) { float v=a[k]; if (k) { while (f[k-1]==0) {} __threadfence(); v+=s[k-1]; } s[k]=v; __threadfence(); atomicExch(u+8+k,1); b[k]=v; }",
    "6 x 128: look-back with a volatile flag": "__shared__ unsigned tile; if (threadIdx.x==0) tile=atomicAdd(u,1); __syncthreads(); unsigned k=tile; volatile unsigned* f=u+8; if (threadIdx.x==0) { float v=a[k]; if (k) { while (f[k-1]==0) {} __threadfence(); v+=__ldcg(scratch+k-1); } scratch[k]=v; __threadfence(); f[k]=1; b[k]=v; }",
    "4 x 128: addition by compare-and-swap": "int i=blockIdx.x*128+threadIdx.x; unsigned* p=u+i%3; unsigned old=*p, as; do { as=old; old=atomicCAS(p,as,__float_as_uint(__uint_as_float(as)+((i%2)?1.f:-1.f)*a[i])); } while (as!=old); b[i]=0;",
    "6 x 64: a barrier of the grid with a volatile count": "int i=blockIdx.x*64+threadIdx.x; scratch[i]=a[i]; __syncthreads(); if (threadIdx.x==0) { __threadfence(); atomicAdd(u,1); while (*(volatile unsigned*)u<gridDim.x) {} __threadfence(); } __syncthreads(); b[i]=__ldcg(scratch+(i+64)%384);",
    "6 x 64: two barriers of the grid": "int i=blockIdx.x*64+threadIdx.x; scratch[i]=a[i]; __threadfence(); __syncthreads(); if (threadIdx.x==0) { atomicAdd(u,1); while (atomicAdd(u,0)<gridDim.x) {} } __syncthreads(); float v=__ldcg(scratch+(i+64)%384); __threadfence(); __syncthreads(); if (threadIdx.x==0) { atomicAdd(u+1,1); while (atomicAdd(u+1,0)<gridDim.x) {} } __syncthreads(); scratch[i]=v; b[i]=v;",
    "1 x 64: a volatile flag between warps": "__shared__ volatile int f; __shared__ float s[32]; int t=threadIdx.x; if (t==0) f=0; __syncthreads(); if (t<32) { s[t]=a[t]; __threadfence_block(); __syncwarp(); if (t==0) f=1; } else { while (!f) {} __threadfence_block(); b[t]=1; }",
    "2 x 64: producer and consumer at a named barrier": '__shared__ float s[2][32]; int t=threadIdx.x&31; float v=0; if (threadIdx.x<32) { for (int r=0;r<6;r++) { s[r&1][t]=a[r*32+t]; asm volatile("bar.sync 1, 64;":::"memory"); } } else { for (int r=0;r<6;r++) { asm volatile("bar.sync 1, 64;":::"memory"); v+=s[r&1][31-t]; } b[blockIdx.x*32+t]=v; }',
    "4 x 128: a last block that resets its count": "__shared__ bool last; int t=threadIdx.x; ((volatile float*)scratch)[blockIdx.x*128+t]=a[t]; __threadfence(); if (t==0) last=atomicInc(u,gridDim.x)==gridDim.x-1; __syncthreads(); if (last) { float v=0; for (int j=0;j<4;j++) v+=((volatile float*)scratch)[j*128+t]; b[t]=v; if (t==0) *u=0; }",
    "2 x 128: a reduction over a mask": "int i=blockIdx.x*128+threadIdx.x; int v=(int)(a[i]*10); unsigned m=__ballot_sync(~0u,v&1); if (v&1) b[i]=__reduce_add_sync(m,v); else b[i]=0;",
    "1 x 128: warps with unequal shares": "int t=threadIdx.x; float v=0; for (int w=t/32; w<7; w+=4) { float x=a[w*32+t%32]; for (int o=16;o;o>>=1) x+=__shfl_xor_sync(~0u,x,o); v+=x; } b[t]=v;",
    "3 x 128: bins in shared memory": "__shared__ unsigned h[16]; int t=threadIdx.x; if (t<16) h[t]=0; __syncthreads(); atomicAdd(h+((int)(a[blockIdx.x*128+t]*16)&15),1u); __syncthreads(); if (t<16) atomicAdd(u+t,h[t]); b[blockIdx.x*128+t]=0;",
    "2 x 128: syncwarp": "int t=threadIdx.x, i=blockIdx.x*128+t; __shared__ float s[128]; s[t] = a[i]; __syncwarp(); float v = s[t ^ 1]; __syncwarp(); s[t] = v; __syncwarp(); b[i] = s[t ^ 3];",
    "2 x 128: double buffering": "int t=threadIdx.x, i=blockIdx.x*128+t; __shared__ float s[2][128]; s[0][t] = a[t]; __syncthreads(); float v = 0; for (int r = 0; r < 6; r++) { if (r < 5) s[~r & 1][t] = a[(r + 1) * 128 + t]; v += s[r & 1][127 - t]; __syncthreads(); } b[i] = v;",
    "2 x 128: early exit": "int t=threadIdx.x, i=blockIdx.x*128+t; if (t >= 100) return; __shared__ float s[128]; s[t] = a[i]; __syncthreads(); b[i] = s[99 - t];",
    "2 x 128: same value to one place": "int t=threadIdx.x, i=blockIdx.x*128+t; __shared__ int f; if (t == 0) f = 0; __syncthreads(); if (a[i] >= 0) f = 1; __syncthreads(); b[i] = f;",
    "2 x 128: async double buffer": 'int t=threadIdx.x, i=blockIdx.x*128+t; __shared__ float s[2][128]; float v = 0; auto get = [&](int r) { unsigned p = __cvta_generic_to_shared(&s[r & 1][t]); asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\\ncp.async.commit_group;" :: "r"(p), "l"(a + 128 * r + t) : "memory"); }; get(0); for (int r = 0; r < 7; r++) { get(r + 1); asm volatile("cp.async.wait_group 1;" ::: "memory"); __syncthreads(); v += s[r & 1][127 - t]; __syncthreads(); } b[i] = v;',
    "2 x 128: local array": "int t=threadIdx.x, i=blockIdx.x*128+t; float r[16]; for (int j = 0; j < 16; j++) r[j] = a[j + t]; int k = u[i]; b[i] = r[(k + t) & 15] + r[(k + 3) & 15];",
}


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name", IDIOMS)
def test_an_honest_idiom_is_silent(cuda: Compiler, name: str, *, backwards: bool) -> None:
    blocks, threads = map(int, name.partition(":")[0].split(" x "))
    head = "const float* a, float* b, unsigned* u, float* scratch"
    source = f'extern "C" __global__ void k({head}) {{\n{IDIOMS[name]}\n}}'
    values = np.random.default_rng(0).random(1024, np.float32)
    done, _ = launched(
        cuda(source),
        {"a": values, "b": 4096, "u": np.zeros(1024, np.uint32), "scratch": 4096},
        blocks,
        threads,
        limits=Limits(block_executions=20_000),
        numbers=range(blocks)[:: -1 if backwards else 1],
        head_start=1 if backwards else 0,
    )
    assert [finding.message for finding in done.findings] == []


PIPELINE = """
    __shared__ int slots[2][32];
    int lane = threadIdx.x % 32;
    for (int turn = 0; turn < 6; ++turn) {
        int buffer = turn % 2;
        if (threadIdx.x < 32) {
            if (turn >= 2) asm volatile("bar.sync %0, 64;" :: "r"(3 + buffer) : "memory");
            slots[buffer][lane] = 100 * turn + lane;
            asm volatile("bar.arrive %0, 64;" :: "r"(1 + buffer) : "memory");
        } else {
            asm volatile("bar.sync %0, 64;" :: "r"(1 + buffer) : "memory");
            out[blockIdx.x * 192 + turn * 32 + lane] = slots[buffer][31 - lane];
            if (turn < 4) asm volatile("bar.arrive %0, 64;" :: "r"(3 + buffer) : "memory");
        }
    }
"""


@pytest.mark.parametrize(
    ("line", "finds"),
    [
        ("", []),
        ("if (turn >= 2) ", ["race"]),
        ('asm volatile("bar.sync %0, 64;" :: "r"(1 + buffer) : "memory");', ["race"]),
    ],
)
def test_warps_that_arrive_without_waiting_order_what_they_did(
    cuda: Compiler, line: str, finds: list[str]
) -> None:
    body = PIPELINE
    if line.startswith("if"):
        body = body.replace('if (turn >= 2) asm volatile("bar.sync', 'if (turn > 6) asm volatile("bar.sync')
        body = body.replace("if (turn < 4)", "if (turn > 6)")
    elif line:
        body = body.replace(line, "")
    source = f'extern "C" __global__ void k(int* out) {{ {body} }}'
    done, memory = launched(cuda(source), {"out": 4 * 3 * 6 * 32}, 3, 64)
    assert sorted({finding.kind for finding in done.findings} & {"race"}) == finds
    if not finds:
        assert done.findings == ()
        expected = 100 * np.arange(6)[:, None] + np.arange(31, -1, -1)
        assert (memory.array("out", np.int32).reshape(3, 6, 32) == expected).all()
