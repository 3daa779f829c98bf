# Libraries from the system. Cross builds (tests under emulation) use the header-only forms.
find_package(Threads REQUIRED)

add_library(colibri_fmt INTERFACE)
find_path(FMT_INCLUDE_DIR fmt/format.h REQUIRED)
if(CMAKE_CROSSCOMPILING)
  target_compile_definitions(colibri_fmt INTERFACE FMT_HEADER_ONLY=1)
else()
  find_package(fmt REQUIRED)
  target_link_libraries(colibri_fmt INTERFACE fmt::fmt)
endif()
