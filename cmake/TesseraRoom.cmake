# SPDX-License-Identifier: Apache-2.0
# tessera_room(NAME [TORCH] [COLD] SOURCES ...): the object library of one folder of tessera/. TORCH rooms see LibTorch's
# headers, precompiled once for all of them. COLD rooms compute nothing and are compiled for quick building. Torch-free
# rooms end up in libtessera_core.so, which the program links; the others in libtessera.so, which it loads only when a
# command computes.
function(tessera_room name)
  cmake_parse_arguments(ROOM "TORCH;COLD" "" "SOURCES" ${ARGN})
  if(NOT ROOM_SOURCES)
    return()
  endif()
  add_library(tessera_room_${name} OBJECT ${ROOM_SOURCES})
  target_link_libraries(tessera_room_${name} PUBLIC tessera_settings)
  tessera_unite(tessera_room_${name})
  if(ROOM_COLD)
    target_compile_options(tessera_room_${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  if(ROOM_TORCH)
    target_link_libraries(tessera_room_${name} PUBLIC torch_headers)
    tessera_use_pch(tessera_room_${name} ${TESSERA_TORCH_PCH})
    set_property(GLOBAL APPEND PROPERTY TESSERA_TORCH_ROOMS tessera_room_${name})
  else()
    set_property(GLOBAL APPEND PROPERTY TESSERA_CORE_ROOMS tessera_room_${name})
  endif()
endfunction()

# The tensors and operators that nearly every file uses. All of torch/torch.h would cost every file 12 s: a precompiled
# header hands its waiting template instantiations on to each of them.
set(TESSERA_TORCH_PCH torch_pch torch_headers <ATen/ATen.h>)

# tessera_unite(TARGET): its files are compiled TESSERA_UNITY_BATCH at a time, since most of a file's time is headers and templates
# that its neighbours need as well: all of room ops take 46 s as one, 131 s four at a time. So names in anonymous namespaces
# should differ within a folder: the compiler refuses a second of one kind, but a function there also hides a header's of that
# name from the files behind it.
function(tessera_unite target)
  if(NOT TESSERA_UNITY_BATCH GREATER 1)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${TESSERA_UNITY_BATCH})
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # To the compiler a file that another includes is a header, where a type of such a namespace does not belong.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

# tessera_use_pch(TARGET OWNER LIBRARY HEADERS...): TARGET's files begin with the HEADERS, precompiled once with LIBRARY's
# settings for all that name the same OWNER.
function(tessera_use_pch target owner library)
  if(NOT TESSERA_PCH)
    return()
  endif()
  if(NOT TARGET tessera_${owner})
    file(WRITE ${CMAKE_BINARY_DIR}/generated/${owner}.cpp "// Owns precompiled headers.\n")
    add_library(tessera_${owner} OBJECT ${CMAKE_BINARY_DIR}/generated/${owner}.cpp)
    target_link_libraries(tessera_${owner} PUBLIC tessera_settings ${library})
    target_precompile_headers(tessera_${owner} PRIVATE ${ARGN})
  endif()
  # CMake compiles programs with -fPIE; the precompiled headers, made with -fPIC, serve only what has the same.
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${target} PRIVATE -fPIC)
  target_precompile_headers(${target} REUSE_FROM tessera_${owner})
endfunction()

# tessera_test(NAME [TORCH] [SUITES] [LABELS l...] [TIMEOUT s] [PROCESSORS n] SOURCES ...): one GoogleTest program of one room, every
# test of it registered with ctest; SUITES: every suite, where loading LibTorch takes longer than most tests.
# Labels: unit (default), ranks, slow, cuda.
function(tessera_test name)
  cmake_parse_arguments(T "TORCH;SUITES" "TIMEOUT;PROCESSORS" "LABELS;SOURCES" ${ARGN})
  if(NOT T_LABELS)
    set(T_LABELS unit)
  endif()
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 120)
  endif()
  if(NOT T_PROCESSORS)
    set(T_PROCESSORS 1)
  endif()
  if(T_TORCH AND NOT TESSERA_TORCH)
    return()
  endif()
  add_executable(test_${name} ${T_SOURCES})
  target_link_libraries(test_${name} PRIVATE tessera_settings tessera_core GTest::gtest GTest::gtest_main)
  target_compile_definitions(test_${name} PRIVATE TESSERA_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
    TESSERA_BINARY_DIR="${CMAKE_BINARY_DIR}")
  set(headers <gtest/gtest.h> <algorithm> <filesystem> <fstream> <functional> <map> <memory> <set> <span> <sstream> <string>
    <thread> <vector>)
  tessera_unite(test_${name})
  if(NOT T_TORCH)
    tessera_use_pch(test_${name} test_pch GTest::gtest ${headers})
  else()
    target_link_libraries(test_${name} PRIVATE tessera torch)
    tessera_use_pch(test_${name} test_torch_pch "torch_headers;GTest::gtest" <ATen/ATen.h> ${headers})
  endif()
  if(T_SUITES)
    tessera_suites(${name})
    return()
  endif()
  gtest_discover_tests(test_${name} TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS "${T_LABELS}" TIMEOUT ${T_TIMEOUT} PROCESSORS ${T_PROCESSORS} ENVIRONMENT "XDG_CACHE_HOME=${CMAKE_BINARY_DIR}/cache"
    SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]")
endfunction()

# The suites of test_NAME, for tessera_test. (Module GoogleTest knows single tests alone.)
function(tessera_suites name)
  set(T_PROGRAM ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/test_${name})
  set(T_SCRIPT ${CMAKE_CURRENT_BINARY_DIR}/suites_of_${name}.cmake)
  set(T_PROPERTIES "LABELS [[${T_LABELS}]] TIMEOUT ${T_TIMEOUT} PROCESSORS ${T_PROCESSORS}
    ENVIRONMENT [[XDG_CACHE_HOME=${CMAKE_BINARY_DIR}/cache]] WORKING_DIRECTORY [[${CMAKE_CURRENT_BINARY_DIR}]]")
  set(lister ${CMAKE_CURRENT_BINARY_DIR}/list_suites_of_${name}.cmake)
  configure_file(${CMAKE_SOURCE_DIR}/cmake/TesseraSuites.cmake.in ${lister} @ONLY)
  add_custom_command(TARGET test_${name} POST_BUILD COMMAND ${CMAKE_COMMAND} -P ${lister} VERBATIM)
  set_property(TARGET test_${name} APPEND PROPERTY LINK_DEPENDS ${lister})
  file(CONFIGURE OUTPUT ${T_SCRIPT}.if_built @ONLY CONTENT [=[
if(EXISTS "@T_SCRIPT@")
  include("@T_SCRIPT@")
else()
  add_test(test_@name@_NOT_BUILT test_@name@_NOT_BUILT)
endif()
]=])
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${T_SCRIPT}.if_built)
endfunction()
