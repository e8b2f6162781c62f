const unsigned block = blockIdx.y * gridDim.x + blockIdx.x;
const unsigned first_row = block / (GROUP * gridDim.x) * GROUP;
const unsigned rows_of_group = min(gridDim.y - first_row, GROUP);
const unsigned block_x = block % (GROUP * gridDim.x) / rows_of_group;
const unsigned block_y = first_row + block % (GROUP * gridDim.x) % rows_of_group;
