#include "engine/oracle.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>

#include "engine/session.h"
#include "format/safetensors.h"
#include "numerics/selection.h"

namespace colibri {
namespace {

using Tensors = std::map<std::string, NamedTensor>;

class Checker {
 public:
  Checker(Engine& engine, Tensors expected, Tensors contract)
      : engine_(engine),
        expected_(std::move(expected)),
        contract_(std::move(contract)),
        vocab_(engine.config().vocab_size),
        hidden_(engine.config().hidden_size) {
    if (!contract_.empty()) report_.contract_bits_differ = 0;
  }

  Result<OracleReport> run() {
    if (expected_.contains("input_ids")) {
      COLIBRI_CHECK(check_all_positions());
    } else if (expected_.contains("ids.0") || expected_.contains("ids.long")) {
      for (int n = 0; expected_.contains(fmt::format("ids.{}", n)); ++n) COLIBRI_CHECK(check_case(fmt::format("{}", n)));
      if (expected_.contains("ids.long")) COLIBRI_CHECK(check_long());
    } else {
      return fail("expected.safetensors: found neither `input_ids` nor `ids.0`; these are not reference values of a model");
    }
    return std::move(report_);
  }

  const std::vector<NamedTensor>& computed() const { return computed_; }

 private:
  // Everything one pass over a sequence computes.
  struct Pass {
    std::vector<float> logits;  // [S, vocab]
    std::vector<float> hidden;  // [layers + 1, S, hidden]
    std::vector<float> mtp;     // [S - 1, vocab]
  };

  Result<std::vector<float>> reference(const Tensors& from, const std::string& name, std::size_t count) const {
    const auto it = from.find(name);
    if (it == from.end()) return fail("reference values: `{}` is missing", name);
    if (it->second.dtype != DType::kF32)
      return fail("reference values `{}`: expected F32, found {}", name, dtype_name(it->second.dtype));
    std::vector<float> values = it->second.floats();
    if (values.size() != count)
      return fail("reference values `{}`: expected {} numbers for this model, found {}", name, count, values.size());
    return values;
  }

  // Token ids or positions, at least one.
  Result<std::vector<std::int32_t>> integers(const std::string& name) const {
    const auto it = expected_.find(name);
    if (it == expected_.end()) return fail("expected.safetensors: `{}` is missing", name);
    std::vector<std::int32_t> values = it->second.ints();
    if (values.empty())
      return fail("expected.safetensors: `{}`: expected at least one number of type I32, found {} of type {}", name,
                  it->second.count(), dtype_name(it->second.dtype));
    return values;
  }

  // Walks ids in steps of the engine's chunk size.
  Result<Pass> pass_over(std::span<const std::int32_t> ids, bool want_hidden, bool want_mtp) {
    Model& model = engine_.model();
    const std::size_t s = ids.size(), d = static_cast<std::size_t>(hidden_), v = static_cast<std::size_t>(vocab_);
    const auto layers = static_cast<std::size_t>(engine_.config().layers);
    if (s == 0 || static_cast<std::int64_t>(s) > engine_.context())
      return fail("a reference sequence of {} tokens does not fit the context of {} positions; use a larger --ctx", s,
                  engine_.context());
    KvCache cache = model.make_cache();
    Pass pass;
    pass.logits.resize(s * v);
    if (want_hidden) pass.hidden.resize((layers + 1) * s * d);
    if (want_mtp) pass.mtp.resize((s - 1) * v);
    for (std::size_t first = 0; first < s;) {
      const std::size_t rows = std::min(s - first, static_cast<std::size_t>(model.limits().max_rows));
      COLIBRI_TRY(at, ContiguousRows::make(cache, static_cast<std::int64_t>(first), static_cast<std::int64_t>(rows)));
      const auto keep = [&](std::size_t layer, const float* x) {
        if (want_hidden) std::copy(x, x + rows * d, pass.hidden.begin() + static_cast<std::ptrdiff_t>((layer * s + first) * d));
      };
      COLIBRI_CHECK(model.forward(StepPhase::kPrefill, ids.subspan(first, rows), at,
                                  [&](std::int64_t layer, const float* x) { keep(static_cast<std::size_t>(layer), x); }));
      keep(layers, model.hidden().data());
      COLIBRI_CHECK(model.logits(0, static_cast<std::int64_t>(rows), pass.logits.data() + first * v));
      const std::size_t pairs = std::min(rows, s - 1 - first);  // the last token has no successor
      if (want_mtp && pairs > 0) {
        const std::vector<float> states(model.hidden().begin(), model.hidden().begin() + static_cast<std::ptrdiff_t>(pairs * d));
        COLIBRI_TRY(with_next, ContiguousRows::make(cache, at.first(), static_cast<std::int64_t>(pairs)));
        COLIBRI_CHECK(model.mtp_forward(StepPhase::kPrefill, ids.subspan(first + 1, pairs), states, with_next));
        COLIBRI_CHECK(model.logits(0, static_cast<std::int64_t>(pairs), pass.mtp.data() + first * v));
      }
      first += rows;
    }
    return pass;
  }

  static double relative_error(std::span<const float> ours, std::span<const float> reference) {
    double worst = 0, largest = 0;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      const double difference = std::abs(static_cast<double>(ours[i]) - reference[i]);
      worst = std::isnan(difference) ? std::numeric_limits<double>::infinity() : std::max(worst, difference);
      largest = std::max(largest, std::abs(static_cast<double>(reference[i])));
    }
    return largest > 0 ? worst / largest : worst;
  }

  void keep_computed(const std::string& name, std::span<const float> values) {
    NamedTensor tensor{name, DType::kF32, expected_.at(name).shape, {}};
    const auto bytes = std::as_bytes(values);
    tensor.bytes.assign(bytes.begin(), bytes.end());
    computed_.push_back(std::move(tensor));
  }

  Result<void> compare_bits(const std::string& name, std::span<const float> ours) {
    if (contract_.empty()) return {};
    COLIBRI_TRY(bits, reference(contract_, name, ours.size()));
    report_.contract_values += static_cast<std::int64_t>(ours.size());
    for (std::size_t i = 0; i < ours.size(); ++i)
      report_.contract_bits_differ += std::bit_cast<std::uint32_t>(ours[i]) != std::bit_cast<std::uint32_t>(bits[i]);
    return {};
  }

  // An array of logit rows: error, bits and best tokens.
  Result<void> compare_logits(const std::string& name, std::span<const float> ours) {
    COLIBRI_TRY(wanted, reference(expected_, name, ours.size()));
    report_.max_rel_logit_err = std::max(report_.max_rel_logit_err, relative_error(ours, wanted));
    const auto v = static_cast<std::size_t>(vocab_);
    for (std::size_t row = 0; row < ours.size() / v; ++row) {
      ++report_.positions;
      const auto mine = ours.subspan(row * v, v), theirs = std::span<const float>(wanted).subspan(row * v, v);
      const auto best = static_cast<std::int32_t>(numerics::argmax(theirs));
      if (numerics::argmax(mine) == best)
        ++report_.argmax_equal;
      else
        report_.mismatches.push_back(describe(name, static_cast<std::int64_t>(row), mine, theirs, best));
    }
    keep_computed(name, ours);
    return compare_bits(name, ours);
  }

  static OracleMismatch describe(const std::string& what, std::int64_t row, std::span<const float> ours,
                                 std::span<const float> reference, std::int32_t expected) {
    OracleMismatch m{what, row, {}, 0, expected};
    std::vector<std::int32_t> order;
    if (!numerics::top_k(ours, 5, order)) return m;
    for (const std::int32_t id : order) {
      const auto i = static_cast<std::size_t>(id);
      m.top.push_back({id, ours[i], reference.empty() ? std::nanf("") : reference[i]});
    }
    if (m.top.size() > 1) m.margin = m.top[0].ours - m.top[1].ours;
    return m;
  }

  // Generates as a user would, one token a step, and counts what agrees before the first difference.
  Result<void> check_greedy(const std::string& what, std::span<const std::int32_t> prompt, std::span<const std::int32_t> wanted) {
    report_.greedy_total += static_cast<std::int64_t>(wanted.size());
    const std::size_t needed = prompt.size() + wanted.size() - 1;
    if (static_cast<std::int64_t>(needed) > engine_.context())
      return fail("the reference's greedy run needs {} positions, the context has {}; use a larger --ctx", needed,
                  engine_.context());
    Session session(engine_);
    COLIBRI_CHECK(session.prefill(prompt));
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      COLIBRI_TRY(id, session.sample({}));
      if (id != wanted[i]) {
        report_.mismatches.push_back(describe(what, static_cast<std::int64_t>(i), session.logits(), {}, wanted[i]));
        return {};
      }
      ++report_.greedy_equal;
      if (i + 1 < wanted.size()) COLIBRI_CHECK(session.append(id));
    }
    return {};
  }

  Result<void> check_all_positions() {
    COLIBRI_TRY(ids, integers("input_ids"));
    const bool hidden = expected_.contains("hidden"), mtp = expected_.contains("mtp_logits");
    if (mtp && !engine_.model().has_mtp())
      return fail("expected.safetensors has `mtp_logits`, but the model's files hold no MTP layer; is a shard missing?");
    COLIBRI_TRY(pass, pass_over(ids, hidden, mtp));
    COLIBRI_CHECK(compare_logits("logits", pass.logits));
    if (hidden) {
      COLIBRI_TRY(wanted, reference(expected_, "hidden", pass.hidden.size()));
      const std::size_t size = ids.size() * static_cast<std::size_t>(hidden_);
      for (std::size_t first = 0; first < wanted.size(); first += size)
        report_.hidden_rel_err.push_back(
            relative_error(std::span(pass.hidden).subspan(first, size), std::span(wanted).subspan(first, size)));
      keep_computed("hidden", pass.hidden);
      COLIBRI_CHECK(compare_bits("hidden", pass.hidden));
    }
    if (mtp) {
      COLIBRI_TRY(wanted, reference(expected_, "mtp_logits", pass.mtp.size()));
      report_.mtp_max_rel_err = relative_error(pass.mtp, wanted);
      keep_computed("mtp_logits", pass.mtp);
      COLIBRI_CHECK(compare_bits("mtp_logits", pass.mtp));
    }
    if (!expected_.contains("greedy")) return {};
    COLIBRI_TRY(greedy, integers("greedy"));
    return check_greedy("greedy", ids, greedy);
  }

  // ids.N is prompt and continuation; logits_prompt.N belongs to the last prompt token, which is found by its logits.
  Result<void> check_case(const std::string& n) {
    COLIBRI_TRY(ids, integers("ids." + n));
    const auto v = static_cast<std::size_t>(vocab_);
    COLIBRI_TRY(pass, pass_over(ids, false, false));
    COLIBRI_TRY(prompt_logits, reference(expected_, "logits_prompt." + n, v));
    std::size_t prompt = 0;
    double best = std::numeric_limits<double>::infinity();
    for (std::size_t row = 0; row < ids.size(); ++row) {
      const double error = relative_error(std::span(pass.logits).subspan(row * v, v), prompt_logits);
      if (error < best) best = error, prompt = row;
    }
    COLIBRI_CHECK(compare_logits("logits_prompt." + n, std::span(pass.logits).subspan(prompt * v, v)));
    COLIBRI_CHECK(compare_logits("logits_last." + n, std::span(pass.logits).subspan((ids.size() - 1) * v, v)));
    return check_greedy("greedy " + n, std::span(ids).first(prompt + 1), std::span(ids).subspan(prompt + 1));
  }

  Result<void> check_long() {
    COLIBRI_TRY(ids, integers("ids.long"));
    COLIBRI_TRY(positions, integers("positions.long"));
    COLIBRI_TRY(pass, pass_over(ids, false, false));
    std::vector<float> rows;
    for (const std::int32_t position : positions) {
      if (position < 0 || static_cast<std::size_t>(position) >= ids.size())
        return fail("expected.safetensors: `positions.long` names position {} of {} tokens", position, ids.size());
      const auto begin = pass.logits.begin() + position * vocab_;
      rows.insert(rows.end(), begin, begin + vocab_);
    }
    return compare_logits("logits.long", rows);
  }

  Engine& engine_;
  Tensors expected_, contract_;
  std::int64_t vocab_, hidden_;
  OracleReport report_;
  std::vector<NamedTensor> computed_;
};

}  // namespace

bool OracleReport::passed(double tolerance) const {
  const auto small = [&](double error) { return error <= tolerance; };
  return positions > 0 && small(max_rel_logit_err) && small(mtp_max_rel_err) &&
         std::all_of(hidden_rel_err.begin(), hidden_rel_err.end(), small) && argmax_equal == positions &&
         greedy_equal == greedy_total && contract_bits_differ <= 0;
}

Result<OracleReport> check_against_oracle(Engine& engine, const std::filesystem::path& dump) {
  const std::filesystem::path dir = engine.checkpoint().dir();
  std::error_code ignored;
  if (!dump.empty() && std::filesystem::equivalent(dump.has_parent_path() ? dump.parent_path() : ".", dir, ignored))
    return fail("{}: a dump inside the model's own folder would become part of the model; give another place", dump.string());
  COLIBRI_TRY(expected, read_safetensors(dir / "expected.safetensors"));
  Tensors contract;
  if (std::filesystem::exists(dir / "contract.safetensors")) {
    COLIBRI_TRY(values, read_safetensors(dir / "contract.safetensors"));
    contract = std::move(values);
    if (contract.empty()) return fail("{}: holds no arrays", (dir / "contract.safetensors").string());
  }
  Checker checker(engine, std::move(expected), std::move(contract));
  COLIBRI_TRY(report, checker.run());
  if (!dump.empty()) COLIBRI_CHECK(write_safetensors(dump, checker.computed()));
  return report;
}

}  // namespace colibri
