// Products y = W x of packed weights with rows of float activations.
//
// Every output is a sum over the inputs in ascending order, block by block, whatever the number of
// rows and threads and whatever the instruction set: a row's result has the same bits alone and
// among others. Block types multiply in integers: int16 activations (activations.h), exact int32
// sums over a group of inputs that share a scale, then y += (scale of the weights * scale of the
// activations) * sum, and y += minimum * scaled sum for the types that have one.
// matmul_ref.cc is the specification.
#pragma once

#include <cstdint>
#include <span>

#include "turboquant/base/aligned.h"
#include "turboquant/base/thread_pool.h"
#include "turboquant/linear/activations.h"
#include "turboquant/linear/weight.h"
#include "turboquant/linear/weight_tile.h"

namespace tq {

// One matrix of several that multiply the same activations.
struct Product {
  const PackedMatrix* weight = nullptr;
  float* y = nullptr;    // [rows][y_stride], the first out_dim of a row are written
  int64_t y_stride = 0;  // >= out_dim
};

// Memory that calls reuse; one for each thread that calls Multiply.
struct MatmulScratch {
  QuantizedRows quantized;
  AlignedBuffer<WeightTile> tiles;  // one for each thread
};

// x: [rows][in_dim]. All products have the same in_dim; they run as one parallel region.
void Multiply(std::span<const Product> products, const float* x, int rows, MatmulScratch& scratch,
              ThreadPool& pool);

}  // namespace tq
