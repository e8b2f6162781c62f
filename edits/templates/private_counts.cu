__shared__ $type private_counts[$bins];
for (int bin = threadIdx.x; bin < $bins; bin += $block) {
    private_counts[bin] = 0;
}
__syncthreads();
for ($index_type $index = $start; $index < $bound; $index += gridDim.x * $block) {
    $statements
}
__syncthreads();
for (int bin = threadIdx.x; bin < $bins; bin += $block) {
    if (private_counts[bin] != 0) {
        atomicAdd(&$counts[bin], private_counts[bin]);
    }
}
