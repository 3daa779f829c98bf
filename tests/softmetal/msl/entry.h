// How the executor calls a kernel: each parameter from its attribute, which translate.py writes down as a Source.
#pragma once

#include "atomic.h"

namespace msl {

enum class From {
  kBuffer,
  kThreadgroupMemory,
  kThreadInGrid,
  kThreadInGroup,
  kGroupInGrid,
  kThreadsPerGroup,
  kGroupsPerGrid,
  kThreadsPerGrid,
  kThreadIndex,
  kSimdIndex,
  kLane,
  kSimdsPerGroup,
  kSimdWidth,
};
struct Source {
  From from;
  int index;
};

MSL_INLINE uint position(const softmetal::ThreadContext& c, From from, int d) {
  switch (from) {
    case From::kThreadInGrid: return c.group[d] * c.threads[d] + c.place[d];
    case From::kThreadInGroup: return c.place[d];
    case From::kGroupInGrid: return c.group[d];
    case From::kThreadsPerGroup: return c.threads[d];
    case From::kGroupsPerGrid: return c.groups[d];
    case From::kThreadsPerGrid: return c.groups[d] * c.threads[d];
    case From::kThreadIndex: return c.index;
    case From::kSimdIndex: return c.index / 32;
    case From::kLane: return c.index % 32;
    case From::kSimdsPerGroup: return (c.threads[0] * c.threads[1] * c.threads[2] + 31) / 32;
    case From::kSimdWidth: return 32;
    default: return 0;
  }
}
MSL_INLINE void* memory(const softmetal::ThreadContext& c, Source s) {
  return s.from == From::kThreadgroupMemory ? c.threadgroup_memory[s.index] : c.buffers[s.index];
}

template <class P>
struct Parameter {
  static MSL_INLINE_MEMBER P get(const softmetal::ThreadContext& c, Source s) {
    if constexpr (Shape<P>::kWidth == 1) {
      return (P)position(c, s.from, 0);
    } else {
      P r;
      for (int d = 0; d < Shape<P>::kWidth; ++d) r[d] = (typename Shape<P>::Element)position(c, s.from, d);
      return r;
    }
  }
};
template <class P>
struct Parameter<P*> {
  static MSL_INLINE_MEMBER P* get(const softmetal::ThreadContext& c, Source s) { return (P*)memory(c, s); }
};
template <class P>
struct Parameter<P&> {
  static MSL_INLINE_MEMBER P& get(const softmetal::ThreadContext& c, Source s) { return *(P*)memory(c, s); }
};

template <int... I>
struct Indices {};
template <int N, int... I>
struct MakeIndices : MakeIndices<N - 1, N - 1, I...> {};
template <int... I>
struct MakeIndices<0, I...> {
  using T = Indices<I...>;
};
template <class... P, int... I>
MSL_INLINE void call(void (*f)(P...), const softmetal::ThreadContext& c, const Source* s, Indices<I...>) {
  f(Parameter<P>::get(c, s[I])...);
}
template <class... P>
MSL_INLINE void enter(void (*f)(P...), const softmetal::ThreadContext& c, const Source* s) {
  call(f, c, s, typename MakeIndices<sizeof...(P)>::T{});
}

template <class T, int kId>
MSL_INLINE T& threadgroup_array() {
  return *(T*)softmetal_threadgroup_array(kId, sizeof(T));
}

}  // namespace msl
