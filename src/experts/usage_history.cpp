#include "experts/usage_history.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <iterator>
#include <limits>
#include <numeric>

#include "format/file.h"

namespace colibri {
namespace {

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kLargestCount = std::uint64_t{1} << 40;  // so that sums over all experts stay far below 2^64
// Choices seen: below the first nothing is pinned, from the second on as much as may be.
constexpr std::uint64_t kLeastHistory = 5000, kFullHistory = 200000;

std::uint32_t fnv1a(std::string_view text) {
  std::uint32_t hash = 2166136261u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash;
}

// Three numbers and nothing else.
bool parse_line(std::string_view line, std::array<std::int64_t, 3>& values) {
  const char* at = line.data();
  const char* const end = at + line.size();
  const auto skip = [&] {
    while (at != end && (*at == ' ' || *at == '\t' || *at == '\r')) ++at;
  };
  for (std::int64_t& value : values) {
    skip();
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc() || (next != end && *next != ' ' && *next != '\t' && *next != '\r')) return false;
    at = next;
  }
  skip();
  return at == end;
}

Result<void> parse(std::string_view text, const CacheShape& shape, double decay, std::vector<std::uint64_t>& counts) {
  for (int number = 1; !text.empty(); ++number) {
    const auto length = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, length);
    text.remove_prefix(std::min(length + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    std::array<std::int64_t, 3> v{};
    if (!parse_line(line, v)) return fail("line {}: expected three numbers, found {}", number, in_quotes(line));
    if (v[0] == -1) {
      if (v[1] != shape.layers || v[2] != shape.experts)
        return fail("it is of a model of {} layers and {} experts, this one has {} and {}", v[1], v[2], shape.layers,
                    shape.experts);
    } else if (v[0] == -2) {
      if (v[1] != 1) return fail("line {}: version {}, expected 1", number, v[1]);
    } else {
      if (v[0] < 0 || v[0] >= shape.layers || v[1] < 0 || v[1] >= shape.experts || v[2] < 0)
        return fail("line {}: expected a layer below {}, an expert below {} and a count, found {}", number, shape.layers,
                    shape.experts, in_quotes(line));
      const auto read = std::min(static_cast<std::uint64_t>(v[2]), kLargestCount);
      counts[shape.index(v[0], v[1])] = static_cast<std::uint64_t>(static_cast<double>(read) * decay);
    }
  }
  return {};
}

}  // namespace

UsageHistory UsageHistory::load(const std::filesystem::path& path, const CacheShape& shape, double decay, std::string& notice) {
  UsageHistory history(shape);
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return history;
  const auto text = read_text(path, kMaxFileBytes);
  if (!text) {
    notice = fmt::format("the usage history is ignored: {}", text.error().message);
    return history;
  }
  if (const auto parsed = parse(*text, shape, std::clamp(decay, 0.0, 1.0), history.counts_); !parsed) {
    notice = fmt::format("the usage history {} is ignored: {}", path.string(), parsed.error().message);
    return UsageHistory(shape);
  }
  return history;
}

void UsageHistory::add(std::int64_t layer, std::span<const std::int32_t> ids, std::span<const std::int32_t> rows) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::uint64_t& count = counts_[shape_.index(layer, ids[i])];
    count = std::min(count + static_cast<std::uint64_t>(rows[i]), kLargestCount);
  }
}

std::uint64_t UsageHistory::total() const { return std::accumulate(counts_.begin(), counts_.end(), std::uint64_t{0}); }

Result<void> UsageHistory::save(const std::filesystem::path& path, std::string_view engine_name) const {
  std::vector<char> text;
  auto to = std::back_inserter(text);
  fmt::format_to(to, "-1 {} {}\n-2 1 {}\n", shape_.layers, shape_.experts, fnv1a(engine_name));
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer)
    for (std::int64_t expert = 0; expert < shape_.experts; ++expert)
      if (const std::uint64_t n = count(layer, expert); n > 0) fmt::format_to(to, "{} {} {}\n", layer, expert, n);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  return write_atomically(path, {&bytes, 1});
}

std::vector<ExpertKey> UsageHistory::hottest(std::int64_t limit) const {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < counts_.size(); ++i)
    if (counts_[i] > 0) order.push_back(i);
  const auto count = std::min(order.size(), static_cast<std::size_t>(std::max<std::int64_t>(limit, 0)));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&](std::size_t a, std::size_t b) { return counts_[a] != counts_[b] ? counts_[a] > counts_[b] : a < b; });
  std::vector<ExpertKey> keys;
  for (std::size_t i = 0; i < count; ++i) {
    const auto index = static_cast<std::int64_t>(order[i]);
    keys.push_back({index / shape_.experts, static_cast<std::int32_t>(index % shape_.experts)});
  }
  return keys;
}

std::vector<ExpertKey> UsageHistory::pin_set(std::int64_t slots) const {
  const std::uint64_t seen = total();
  if (seen < kLeastHistory) return {};
  const double share = 0.5 * std::min(1.0, static_cast<double>(seen) / static_cast<double>(kFullHistory));
  return hottest(static_cast<std::int64_t>(static_cast<double>(slots) * share));
}

std::optional<double> UsageHistory::share_of_hottest(std::int64_t slots) const {
  const std::uint64_t seen = total();
  if (seen < kLeastHistory) return std::nullopt;
  std::uint64_t found = 0;
  for (const ExpertKey& key : hottest(slots)) found += count(key.layer, key.expert);
  return static_cast<double>(found) / static_cast<double>(seen);
}

}  // namespace colibri
