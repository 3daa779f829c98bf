// What calls of the C API end with: a value, or a status and a text for coli_metal_last_error().
#pragma once

#include "base/result.h"
#include "colibri/backend_metal.h"

namespace colibri::capi {

struct ApiError {
  coli_metal_status status = COLI_METAL_INTERNAL_ERROR;
  std::string message;
};

template <class T = void>
using Outcome = tl::expected<T, ApiError>;

template <class... Args>
tl::unexpected<ApiError> refuse(coli_metal_status status, fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<ApiError>(ApiError{status, fmt::format(format, std::forward<Args>(args)...)});
}
template <class... Args>
tl::unexpected<ApiError> bad(fmt::format_string<Args...> format, Args&&... args) {
  return refuse(COLI_METAL_BAD_ARGUMENT, format, std::forward<Args>(args)...);
}

}  // namespace colibri::capi

namespace colibri {
// For COLIBRI_TRY and COLIBRI_CHECK.
inline tl::unexpected<capi::ApiError> pass(capi::ApiError error) { return tl::unexpected<capi::ApiError>(std::move(error)); }
}  // namespace colibri
