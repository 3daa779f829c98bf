#include "format/blob_format.h"

#include <vector>

#include "base/aligned.h"
#include "format/file.h"

namespace colibri {
namespace {

// Group sizes in the order in which they are tried: what converters write by default comes first.
constexpr std::int32_t kGroups[] = {64, 128, 32, 16, 48, 96, 192, 256};

struct Reading {
  WeightFormat format = WeightFormat::kInt8Row;
  std::int32_t group = 0;
  bool e8 = false;  // the lattice format: recognised, not readable
};

std::string describe(const Reading& reading) {
  if (reading.e8) return "e8-iq3-lattice";
  if (reading.format == WeightFormat::kInt4Grouped) return fmt::format("int4-grouped with {} columns per scale", reading.group);
  return std::string(format_name(reading.format));
}

std::vector<Reading> fitting_readings(std::int64_t rows, std::int64_t cols, std::uint64_t blob_bytes, std::uint64_t scale_bytes) {
  std::vector<Reading> fits;
  if (scale_bytes == 4 && blob_bytes == static_cast<std::uint64_t>(rows * ceil_div(cols, 256) * 98)) fits.push_back({.e8 = true});
  const auto try_reading = [&](WeightFormat format, std::int32_t group) {
    if (blob_bytes == static_cast<std::uint64_t>(format_bytes(format, rows, cols)) &&
        scale_bytes == 4 * static_cast<std::uint64_t>(format_scales(format, rows, cols, group)))
      fits.push_back({format, group});
  };
  try_reading(WeightFormat::kInt8Row, 0);
  try_reading(WeightFormat::kF8Block128, 128);
  try_reading(WeightFormat::kInt4Row, 0);
  for (const std::int32_t group : kGroups)
    if (group < cols) try_reading(WeightFormat::kInt4Grouped, group);  // one group per row is int4-row
  try_reading(WeightFormat::kInt2Row, 0);
  try_reading(WeightFormat::kInt3G64, 64);
  return fits;
}

std::string expected_sizes(std::int64_t rows, std::int64_t cols) {
  std::string text;
  for (const auto& [format, group] :
       {std::pair(WeightFormat::kInt8Row, 0), std::pair(WeightFormat::kF8Block128, 128), std::pair(WeightFormat::kInt4Row, 0),
        std::pair(WeightFormat::kInt4Grouped, 64), std::pair(WeightFormat::kInt2Row, 0), std::pair(WeightFormat::kInt3G64, 64)})
    text += fmt::format("{}{} {} + {}", text.empty() ? "" : ", ", describe({format, group}), format_bytes(format, rows, cols),
                        4 * format_scales(format, rows, cols, group));
  return text;
}

}  // namespace

bool stamp_names(std::string_view stamp, WeightFormat format) {
  return stamp == format_name(format) || (format == WeightFormat::kF8Block128 && stamp == "fp8-e4m3-b128");
}

Result<BlobFormat> infer_blob_format(std::int64_t rows, std::int64_t cols, std::uint64_t blob_bytes, std::uint64_t scale_bytes,
                                     std::string_view stamp) {
  for (const std::string_view unreadable : {"e8-iq3-lattice", "mxfp4", "int4-rans256-g0"})
    if (stamp == unreadable)
      return fail("stored as {}, a format that colibri does not read; convert the model again to int4-grouped", unreadable);

  const std::vector<Reading> fits = fitting_readings(rows, cols, blob_bytes, scale_bytes);
  if (fits.empty())
    return fail("{} bytes of weights with {} bytes of scales fit no format of [{}, {}]; expected (weights + scales) {}",
                blob_bytes, scale_bytes, rows, cols, expected_sizes(rows, cols));

  if (!stamp.empty()) {
    for (const Reading& reading : fits)
      if (!reading.e8 && stamp_names(stamp, reading.format)) return BlobFormat{reading.format, reading.group, {}};
    return fail("the container's stamp says {}, but {} bytes of weights with {} bytes of scales make [{}, {}] {}",
                in_quotes(stamp), blob_bytes, scale_bytes, rows, cols, describe(fits.front()));
  }

  const Reading& chosen = fits.front();
  if (chosen.e8)
    return fail("stored as e8-iq3-lattice, a format that colibri does not read; convert the model again to int4-grouped");
  BlobFormat result{chosen.format, chosen.group, {}};
  if (fits.size() > 1) {
    std::string others;
    for (std::size_t i = 1; i < fits.size(); ++i) others += (i > 1 ? ", " : "") + describe(fits[i]);
    result.ambiguity = fmt::format("[{}, {}] read as {}, though its bytes also fit {}", rows, cols, describe(chosen), others);
  }
  return result;
}

}  // namespace colibri
