# The headers of the standard library and of {fmt} that nearly every file includes, parsed once. A file still includes all it
# uses: the cross build for macOS and clang-tidy do without this and would show what is missing.
option(COLIBRI_PRECOMPILE "Parse the most used library headers once" ON)
if(CMAKE_CROSSCOMPILING AND CMAKE_SYSTEM_NAME STREQUAL Darwin)
  set(COLIBRI_PRECOMPILE OFF)
endif()

set(common_headers <algorithm> <array> <atomic> <chrono> <cstdint> <filesystem> <functional> <map> <memory> <optional> <span> <string>
  <string_view> <vector> <fmt/format.h> <tl/expected.hpp>)

# colibri_precompile(TARGET [headers...]): common_headers and these for a target with options of its own.
function(colibri_precompile target)
  if(COLIBRI_PRECOMPILE)
    target_precompile_headers(${target} PRIVATE ${common_headers} ${ARGN})
  endif()
endfunction()

# colibri_share_precompiled(TARGET OWNER): what OWNER, a target with the same options, has precompiled.
function(colibri_share_precompiled target owner)
  if(COLIBRI_PRECOMPILE)
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endif()
endfunction()
