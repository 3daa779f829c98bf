// Weight matrices as kernels take them.
#pragma once

#include "format/matrix.h"
#include "gpu/encoder.h"
#include "gpu/kernels/shared.h"

namespace colibri::gpu {

// The same view at the device's addresses. Fails when the matrix is not in registered memory.
Result<MatrixArgs> matrix_args(const Device& device, const Matrix& m);
// The same; the encoder fails instead.
MatrixArgs matrix_args(Encoder& encoder, const Matrix& m);

// Rows of 32-bit floats in device memory, stride floats apart.
struct Rows {
  Address data = 0;
  std::int64_t count = 0, cols = 0, stride = 0;
};

}  // namespace colibri::gpu
