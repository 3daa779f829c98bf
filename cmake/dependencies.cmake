# Libraries from the system. Cross builds (tests under emulation) use the header-only forms.
find_package(Threads REQUIRED)

# colibri_headers(NAME PROBE): an interface library for the headers that PROBE ("fmt/format.h") belongs to.
# A foreign compiler must not see all of this machine's include folder, which holds the wrong C library; it gets
# a folder of links to just the header-only libraries.
function(colibri_headers name probe)
  find_path(${name}_INCLUDE_DIR ${probe} REQUIRED)
  set(dir ${${name}_INCLUDE_DIR})
  if(CMAKE_CROSSCOMPILING)
    string(REGEX REPLACE "/.*" "" folder ${probe})  # or the header itself, when it is a single file
    file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/host-headers)
    file(CREATE_LINK ${dir}/${folder} ${CMAKE_BINARY_DIR}/host-headers/${folder} SYMBOLIC)
    set(dir ${CMAKE_BINARY_DIR}/host-headers)
  endif()
  add_library(${name} INTERFACE)
  target_include_directories(${name} SYSTEM INTERFACE ${dir})
endfunction()

colibri_headers(colibri_expected tl/expected.hpp)
colibri_headers(colibri_json nlohmann/json.hpp)
colibri_headers(colibri_fmt fmt/format.h)
colibri_headers(colibri_xxhash xxhash.h)  # used inline, no library
if(CMAKE_CROSSCOMPILING)
  target_compile_definitions(colibri_fmt INTERFACE FMT_HEADER_ONLY=1)
else()
  find_package(fmt REQUIRED)
  target_link_libraries(colibri_fmt INTERFACE fmt::fmt)
endif()
