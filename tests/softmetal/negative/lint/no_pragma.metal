// expect: there is no '#pragma METAL fp contract(off)'
#include <metal_stdlib>
using namespace metal;
struct Args {
  device float* x;
  uint n, first_group;
};

kernel void k(constant Args& a [[buffer(0)]], uint group [[threadgroup_position_in_grid]]) {
  const uint i = group + a.first_group;
  a.x[i] = 1.0f;
}
