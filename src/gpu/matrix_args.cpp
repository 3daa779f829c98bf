#include "gpu/matrix_args.h"

namespace colibri::gpu {

Result<MatrixArgs> matrix_args(const Device& device, const Matrix& m) {
  MatrixArgs a{};
  a.data = device.address(m.data);
  if (m.scales) a.scales = device.address(m.scales);
  if (a.data == 0 || (m.scales && a.scales == 0))
    return fail("a matrix of {} x {} at {} is not in memory that is registered with the GPU", m.rows, m.cols,
                static_cast<const void*>(m.data));
  a.row_bytes = static_cast<u64>(m.row_bytes);
  a.scale_stride = static_cast<u32>(m.scale_stride);
  a.group = static_cast<u32>(m.group);
  a.rows = static_cast<u32>(m.rows);
  a.cols = static_cast<u32>(m.cols);
  a.row_origin = static_cast<u32>(m.row_origin);
  a.format = static_cast<u32>(m.format);
  a.aligned = a.data % 16 == 0 && a.row_bytes % 16 == 0;
  return a;
}

MatrixArgs matrix_args(Encoder& encoder, const Matrix& m) {
  auto args = matrix_args(encoder.device(), m);
  if (args) return *args;
  encoder.fail_with(Fault::kResidency, std::move(args).error());
  return {};
}

}  // namespace colibri::gpu
