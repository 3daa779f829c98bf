#include "gpu/matrix_args.h"

namespace colibri::gpu {

MatrixArgs matrix_args(Encoder& encoder, const Matrix& m) {
  MatrixArgs a{};
  a.data = encoder.address(m.data);
  if (m.scales) a.scales = encoder.address(m.scales);
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

}  // namespace colibri::gpu
