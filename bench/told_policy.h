// Yardsticks for cache policies on synthetic routing: a policy that knows the form and the constants of the generator
// (experts/routing_model.h) and is told some of what it draws. The parts of a score that it is not told it estimates from
// the ids: for every expert it keeps how likely each value of them is, and corrects that by Bayes' rule with every turn.
//
// It never sees the future, so it shows how far a learner of the ids could come that is told as much. It is no proven
// limit: every expert is estimated alone, the score needed to be chosen is taken as constant within a phrase, and the order
// of the ids, which is that of their scores, is not used.
#pragma once

#include <cstdint>
#include <memory>

#include "experts/cache_policy.h"
#include "experts/routing_model.h"

namespace colibri {

struct Told {
  enum class Part : std::uint8_t {
    kScores,    // the part of every score, for the topic also those of the topics that are not on
    kSwitches,  // when it changes, and the topic's number; the scores are estimated
    kNothing,   // the scores are estimated, and they may change at every turn
    kIgnored,   // for the phrase, when all else is told: it may have any scores, and nothing is learned about them
  };
  bool lasting = true;  // the lasting part; otherwise it is estimated
  Part topic = Part::kScores, phrase = Part::kScores;
  // An expert's worth is the expected discount of its next use, 1 - 1/horizon a turn, as the chance per turn that would
  // give the same. Long horizons count the turns until the next use, short ones ask whether it is soon.
  double horizon = 10;
};

// For a trace of `model` that consists of decode steps of one row, from position 0 on.
std::unique_ptr<CachePolicy> make_told(const RoutingModel& model, const CacheShape& shape, const Told& told);

}  // namespace colibri
