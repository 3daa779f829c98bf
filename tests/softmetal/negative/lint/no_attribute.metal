// expect: a parameter without attribute
#include <metal_stdlib>
#pragma METAL fp contract(off)
using namespace metal;
struct Args {
  device float* x;
  uint n, first_group;
};

kernel void k(device float* x) { x[0] = 1.0f; }
