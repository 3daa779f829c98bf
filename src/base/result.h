// Result<T>: what a function returns that can fail on user input or I/O. Our own mistakes are assertions.
#pragma once

#include <fmt/format.h>

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace colibri {

// The message is for a person: it names the thing, what was expected, what was found and what to do.
struct Error {
  std::string message;
};

template <class T = void>
using Result = tl::expected<T, Error>;

// return fail("{}: expected {} bytes, found {}", path, a, b);
template <class... Args>
tl::unexpected<Error> fail(fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Error>(Error{fmt::format(format, std::forward<Args>(args)...)});
}

// Passes an error on from inside a function that returns another Result.
inline tl::unexpected<Error> pass(Error error) { return tl::unexpected<Error>(std::move(error)); }

}  // namespace colibri

// COLIBRI_TRY(checkpoint, Checkpoint::open(dir)); declares `checkpoint` or returns the error.
#define COLIBRI_CONCAT_(a, b) a##b
#define COLIBRI_CONCAT(a, b) COLIBRI_CONCAT_(a, b)
#define COLIBRI_TRY_(tmp, name, expression)                 \
  auto tmp = (expression);                                  \
  if (!tmp) return ::colibri::pass(std::move(tmp).error()); \
  auto name = std::move(*tmp)
#define COLIBRI_TRY(name, expression) COLIBRI_TRY_(COLIBRI_CONCAT(try_, __LINE__), name, expression)
// COLIBRI_CHECK(step()); for a Result<void>.
#define COLIBRI_CHECK(expression)                                                                                 \
  do {                                                                                                            \
    if (auto check_result = (expression); !check_result) return ::colibri::pass(std::move(check_result).error()); \
  } while (false)
