# Compiler settings every target gets through colibri_settings.
#
# The arithmetic contract (docs/numerics.md) fixes the order of every operation, so contraction and
# reassociation are off everywhere; a fused multiply-add is written where the contract asks for one.
add_library(colibri_settings INTERFACE)
target_include_directories(colibri_settings INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
target_compile_options(colibri_settings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Werror
  -ffp-contract=off -fno-fast-math -fno-math-errno)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports these inside its own standard headers at -O2 and above.
  target_compile_options(colibri_settings INTERFACE -Wno-stringop-overflow -Wno-array-bounds -Wno-restrict -Wno-psabi)
endif()
if(COLIBRI_SANITIZE)
  target_compile_options(colibri_settings INTERFACE -fsanitize=${COLIBRI_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(colibri_settings INTERFACE -fsanitize=${COLIBRI_SANITIZE})
endif()

# colibri_room(NAME sources...): one room of src/ as a static library, colibri_NAME.
function(colibri_room name)
  add_library(colibri_${name} STATIC ${ARGN})
  target_link_libraries(colibri_${name} PUBLIC colibri_settings)
  if(name STREQUAL base)
    colibri_precompile(colibri_base)
  else()
    colibri_share_precompiled(colibri_${name} colibri_base)
  endif()
endfunction()
