// expect: fast:: rounds as it likes
#include <metal_stdlib>
#pragma METAL fp contract(off)
using namespace metal;
struct Args {
  device float* x;
  uint n, first_group;
};

kernel void k(constant Args& a [[buffer(0)]], uint group [[threadgroup_position_in_grid]]) {
  const uint i = group + a.first_group;
  a.x[i] = fast::divide(a.x[i], 3.0f);
}
