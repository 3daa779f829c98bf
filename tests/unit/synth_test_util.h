// Small synthetic models for tests.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>

#include "convert/synth.h"

namespace colibri::test {

inline SynthOptions tiny(std::int64_t layers = 2) {
  SynthOptions options;
  options.like = "tiny";
  options.shape = *synth_shape("tiny");
  options.sparse_layers = layers;
  options.shard_bytes = 400 << 10;  // several shards
  return options;
}

inline void make(const std::filesystem::path& dir, const SynthOptions& options, int threads = 2) {
  WriteOptions write;
  write.threads = threads;
  const auto report = synthesize_model(dir, options, write);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_FALSE(report->stopped);
}

}  // namespace colibri::test
