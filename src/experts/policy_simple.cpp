// The textbook policies: what the others are measured against.
#include "experts/policies.h"

namespace colibri {
namespace {

// Least recently used. Worth nothing when one token's experts do not fit: the layers come in turn, and each expert leaves
// just before its layer comes again.
class Lru final : public CachePolicy {
 public:
  explicit Lru(const CacheShape& shape) : shape_(shape), last_(shape.count()) {}
  void access(std::int64_t layer, std::span<const std::int32_t> ids, std::span<const std::int32_t>) override {
    for (const std::int32_t id : ids) last_[shape_.index(layer, id)] = static_cast<double>(++clock_);
  }
  double value(std::int64_t layer, std::int64_t expert) const override { return last_[shape_.index(layer, expert)]; }

 private:
  CacheShape shape_;
  std::vector<double> last_;
  std::uint64_t clock_ = 0;
};

// Frequency with aging: every use counts one and fades with every turn of its layer.
class DecayedFrequency final : public CachePolicy {
 public:
  explicit DecayedFrequency(const CacheShape& shape, double decay) : shape_(shape), count_(shape.count()), decay_(decay) {}
  void access(std::int64_t layer, std::span<const std::int32_t> ids, std::span<const std::int32_t>) override {
    double* counts = count_.data() + shape_.index(layer, 0);
    for (std::int64_t e = 0; e < shape_.experts; ++e) counts[e] *= decay_;
    for (const std::int32_t id : ids) counts[id] += 1;
  }
  double value(std::int64_t layer, std::int64_t expert) const override { return count_[shape_.index(layer, expert)]; }

 private:
  CacheShape shape_;
  std::vector<double> count_;
  double decay_;
};

}  // namespace

std::unique_ptr<CachePolicy> make_lru(const CacheShape& shape) { return std::make_unique<Lru>(shape); }
std::unique_ptr<CachePolicy> make_lfu(const CacheShape& shape) { return std::make_unique<DecayedFrequency>(shape, 0.95); }

}  // namespace colibri
