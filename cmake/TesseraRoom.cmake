# tessera_room(NAME [TORCH] [COLD] SOURCES ... [PLAIN ...]): the object library of one folder of tessera/. TORCH rooms
# see LibTorch's headers, precompiled once for all of them; their files that include none are named under PLAIN
# and spared the loading. Code of COLD rooms runs a few times in a run and is compiled for quick building. Torch-free
# rooms end up in libtessera_core.so, which the program links; the others in libtessera.so, which it loads only when a
# command computes.
function(tessera_room name)
  cmake_parse_arguments(ROOM "TORCH;COLD" "" "SOURCES;PLAIN" ${ARGN})
  if(NOT ROOM_SOURCES)
    return()
  endif()
  set_source_files_properties(${ROOM_PLAIN} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  add_library(tessera_room_${name} OBJECT ${ROOM_SOURCES} ${ROOM_PLAIN})
  target_link_libraries(tessera_room_${name} PUBLIC tessera_settings)
  if(ROOM_COLD)
    target_compile_options(tessera_room_${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  if(ROOM_TORCH)
    target_link_libraries(tessera_room_${name} PUBLIC torch_headers)
    tessera_use_torch_pch(tessera_room_${name})
    set_property(GLOBAL APPEND PROPERTY TESSERA_TORCH_ROOMS tessera_room_${name})
  else()
    set_property(GLOBAL APPEND PROPERTY TESSERA_CORE_ROOMS tessera_room_${name})
  endif()
endfunction()

# tessera_use_torch_pch(TARGET [MODULES]): the tensors and operators that nearly every file uses. All of torch/torch.h
# would cost every file 12 s: a precompiled header hands its waiting template instantiations on to each of them. With
# MODULES torch::nn and torch::optim as well, for programs whose files nearly all use these.
function(tessera_use_torch_pch target)
  if(NOT TESSERA_PCH)
    return()
  endif()
  if("MODULES" IN_LIST ARGN)
    set(owner torch_modules_pch)
    set(headers <torch/types.h> <torch/nn.h> <torch/nn/utils/clip_grad.h> <torch/optim.h>)
  else()
    set(owner torch_pch)
    set(headers <torch/types.h>)
  endif()
  if(NOT TARGET tessera_${owner})
    file(WRITE ${CMAKE_BINARY_DIR}/generated/${owner}.cpp "// Owns the precompiled LibTorch headers.\n")
    add_library(tessera_${owner} OBJECT ${CMAKE_BINARY_DIR}/generated/${owner}.cpp)
    target_link_libraries(tessera_${owner} PUBLIC tessera_settings torch_headers)
    target_precompile_headers(tessera_${owner} PRIVATE ${headers})
  endif()
  # CMake compiles programs with -fPIE; the precompiled headers, made with -fPIC, serve only what has the same.
  target_compile_options(${target} PRIVATE -fPIC)
  target_precompile_headers(${target} REUSE_FROM tessera_${owner})
endfunction()

# tessera_test(NAME [TORCH] [MODULES] [LABELS l...] SOURCES ...): one GoogleTest program of one room, every test of it
# registered with ctest. Labels: unit (default), ranks, slow, cuda.
function(tessera_test name)
  cmake_parse_arguments(T "TORCH;MODULES" "TIMEOUT" "LABELS;SOURCES" ${ARGN})
  if(NOT T_LABELS)
    set(T_LABELS unit)
  endif()
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 120)
  endif()
  if(T_TORCH AND NOT TESSERA_TORCH)
    return()
  endif()
  add_executable(test_${name} ${T_SOURCES})
  target_link_libraries(test_${name} PRIVATE tessera_settings tessera_core GTest::gtest GTest::gtest_main)
  target_compile_definitions(test_${name} PRIVATE TESSERA_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
    TESSERA_BINARY_DIR="${CMAKE_BINARY_DIR}")
  if(T_TORCH)
    target_link_libraries(test_${name} PRIVATE tessera torch)
    # The precompiled headers were made with -fPIC, and only the same setting may reuse them.
    set_target_properties(test_${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(test_${name} PRIVATE -fPIC)
    if(T_MODULES)
      tessera_use_torch_pch(test_${name} MODULES)
    else()
      tessera_use_torch_pch(test_${name})
    endif()
  endif()
  gtest_discover_tests(test_${name} TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS "${T_LABELS}" TIMEOUT ${T_TIMEOUT} ENVIRONMENT "XDG_CACHE_HOME=${CMAKE_BINARY_DIR}/cache"
    SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]")
endfunction()
