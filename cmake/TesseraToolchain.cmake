# SPDX-License-Identifier: Apache-2.0
# Compiler settings for our own targets: warnings, sanitizers, ccache.
add_library(tessera_settings INTERFACE)
# -Wrestrict: false alarms of g++ 12 on std::string (GCC bug 105651).
target_compile_options(tessera_settings INTERFACE -Wall -Wextra -Wno-unused-parameter
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
# No path of the build machine in what is built: asserts and debug information name files relative to the checkout, so that
# the same sources give the same bytes in every folder.
target_compile_options(tessera_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${CMAKE_SOURCE_DIR}/=>)
if(TESSERA_WERROR)
  target_compile_options(tessera_settings INTERFACE -Werror)
endif()
if(TESSERA_SANITIZE)
  # -Wmaybe-uninitialized: false alarms of g++ 12 on std::regex under sanitizers.
  target_compile_options(tessera_settings INTERFACE -fsanitize=${TESSERA_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(tessera_settings INTERFACE -fsanitize=${TESSERA_SANITIZE})
endif()
target_include_directories(tessera_settings INTERFACE
  $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}> $<BUILD_INTERFACE:${CMAKE_BINARY_DIR}/generated>)

if(TESSERA_CCACHE)
  find_program(CCACHE_PROGRAM ccache)
  if(CCACHE_PROGRAM)
    # Precompiled headers need these relaxations (ccache manual, "Precompiled headers").
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
        CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
        CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
  endif()
endif()
