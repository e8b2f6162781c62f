#pragma once
// Of the driver API, what a kernel takes as an argument: TMA's tensor map. NVRTC can't read NVIDIA's own header.
typedef struct alignas(128) CUtensorMap_st { unsigned long long opaque[16]; } CUtensorMap;
