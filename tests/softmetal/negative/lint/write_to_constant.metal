// expect: cannot assign to variable 'a'
#include <metal_stdlib>
#pragma METAL fp contract(off)
using namespace metal;
struct Args {
  device float* x;
  uint n, first_group;
};

kernel void k(constant Args& a [[buffer(0)]], uint group [[threadgroup_position_in_grid]]) {
  const uint i = group + a.first_group;
  a.n = i;
}
