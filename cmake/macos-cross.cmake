# macOS on Apple silicon, built on Linux: clang 19 and Zig (apple/cxx), libraries in build/apple/prefix, Apple's
# own as stubs in build/apple/stubs. scripts/macos_cross.sh makes all of it and calls CMake.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
get_filename_component(root ${CMAKE_CURRENT_LIST_DIR} DIRECTORY)

set(CMAKE_C_COMPILER ${root}/apple/cc)
set(CMAKE_CXX_COMPILER ${root}/apple/cxx)
set(CMAKE_OBJCXX_COMPILER ${root}/apple/cxx)
set(CMAKE_AR /usr/bin/llvm-ar-19 CACHE FILEPATH "")
set(CMAKE_RANLIB /usr/bin/llvm-ranlib-19 CACHE FILEPATH "")
set(CMAKE_INSTALL_NAME_TOOL /usr/bin/llvm-install-name-tool-19 CACHE FILEPATH "")
set(CMAKE_OSX_SYSROOT "" CACHE PATH "")
set(CMAKE_OSX_DEPLOYMENT_TARGET "" CACHE STRING "")  # the compilers say macOS 13

# Libraries and headers come from these two folders, programs from this machine.
set(CMAKE_FIND_ROOT_PATH ${root}/build/apple/prefix ${root}/build/apple/stubs)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(ENV{PKG_CONFIG_LIBDIR} ${root}/build/apple/prefix/lib/pkgconfig)
set(CMAKE_EXE_LINKER_FLAGS_INIT "-F${root}/build/apple/stubs/Frameworks -L${root}/build/apple/stubs/lib")
