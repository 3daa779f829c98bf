// expect: its only buffer is
#include <metal_stdlib>
#pragma METAL fp contract(off)
using namespace metal;
struct Args {
  device float* x;
  uint n, first_group;
};

kernel void k(constant Args& a [[buffer(0)]], device float* y [[buffer(1)]], uint group [[threadgroup_position_in_grid]]) {
  y[group + a.first_group] = 1.0f;
}
