// expect: its place in the grid is used without first_group
#include <metal_stdlib>
#pragma METAL fp contract(off)
using namespace metal;
struct Args {
  device float* x;
  uint n, first_group;
};

kernel void k(constant Args& a [[buffer(0)]], uint group [[threadgroup_position_in_grid]]) {
  a.x[group] = 1.0f;
}
