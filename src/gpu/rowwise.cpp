#include "gpu/rowwise.h"

#include "base/aligned.h"
#include "gpu/kernels/rowwise.h"

namespace colibri::gpu {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::int64_t kElementsPerGroup = 1024;

void each_element(Encoder& encoder, std::string_view function, const ElementArgs& args) {
  encoder.dispatch({"rowwise", function}, args, {ceil_div(static_cast<std::int64_t>(args.n), kElementsPerGroup)}, kThreads);
}

}  // namespace

void rms_norm(Encoder& encoder, const Rows& x, Address weight, float eps, Address out, std::int64_t out_stride) {
  RmsNormArgs args{};
  args.x = x.data;
  args.weight = weight;
  args.out = out;
  args.stride = static_cast<u64>(x.stride);
  args.out_stride = static_cast<u64>(out_stride);
  args.cols = static_cast<u32>(x.cols);
  args.eps = eps;
  args.aligned = x.data % 16 == 0 && x.stride % 4 == 0;
  encoder.dispatch({"rowwise", "rms_norm"}, args, {x.count}, kThreads);
}

void swiglu(Encoder& encoder, Address gate, Address up, Address out, std::int64_t n) {
  ElementArgs args{};
  args.a = gate;
  args.b = up;
  args.out = out;
  args.n = static_cast<u64>(n);
  each_element(encoder, "swiglu", args);
}

void add(Encoder& encoder, Address a, Address b, Address out, std::int64_t n, Address damage, std::uint32_t bit) {
  ElementArgs args{};
  args.a = a;
  args.b = b;
  args.out = out;
  args.damage = damage;
  args.n = static_cast<u64>(n);
  args.bit = bit;
  each_element(encoder, "add", args);
}

}  // namespace colibri::gpu
