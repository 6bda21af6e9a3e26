# SPDX-License-Identifier: Apache-2.0
# LibTorch by hand, for this build and for those who use the installed package: its own find_package(Torch) demands a
# CUDA toolkit, and libtorch.so pulls CUDA in. torch_cpu and c10 are all that the CPU side needs.

# tessera_import_torch(FOLDER HEADERS_TARGET TARGET): targets for the torch package (lib/, include/) in FOLDER.
function(tessera_import_torch folder headers target)
  get_filename_component(folder ${folder} REALPATH)
  if(NOT EXISTS ${folder}/lib/libtorch_cpu.so)
    message(FATAL_ERROR "LibTorch not found: expected ${folder}/lib/libtorch_cpu.so "
                        "(run ./dev setup, or pass -DTESSERA_TORCH_DIR=<folder of the torch package>)")
  endif()
  add_library(${headers} INTERFACE IMPORTED GLOBAL)
  target_include_directories(${headers} SYSTEM INTERFACE
    ${folder}/include ${folder}/include/torch/csrc/api/include)
  target_compile_definitions(${headers} INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
  # at::parallel_for is a template: without -fopenmp it compiles, into a plain loop. LibTorch's own libgomp is the one to
  # link, so that one pool of threads serves both. Clang's -fopenmp calls libomp, which libgomp cannot replace and whose
  # threads would come on top of LibTorch's: there it stays a plain loop.
  target_compile_options(${headers} INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fopenmp>)
  add_library(${target} INTERFACE IMPORTED GLOBAL)
  file(GLOB openmp ${folder}/lib/libgomp*.so*)
  if(NOT openmp)
    message(FATAL_ERROR "OpenMP's runtime not found: expected libgomp beside LibTorch in ${folder}/lib")
  endif()
  target_link_libraries(${target} INTERFACE ${headers} ${folder}/lib/libtorch_cpu.so ${folder}/lib/libc10.so ${openmp})
  get_filename_component(site_packages ${folder}/.. REALPATH)
  # Only for the linker: in a build folder CMake adds a RUNPATH to the libraries above, and an installed program finds
  # LibTorch by itself.
  file(GLOB cuda ${site_packages}/nvidia/*/lib)  # cu13; of packages for CUDA 12 cuda_runtime and cuda_cupti
  list(TRANSFORM cuda PREPEND -Wl,-rpath-link,)
  target_link_options(${target} INTERFACE ${cuda})
endfunction()

# tessera_find_torch(PREFIX VERSION VARIABLE): the folder of the torch package VERSION that the program installed in PREFIX
# would load (tessera/launch/find_torch.h), looked for in the same places; empty where there is none.
function(tessera_find_torch prefix version variable)
  set(places ${prefix}/lib/torch)
  if(EXISTS ${prefix}/lib/torch.path)
    file(STRINGS ${prefix}/lib/torch.path recorded LIMIT_COUNT 1)
    list(APPEND places ${recorded})
  endif()
  set(environments $ENV{VIRTUAL_ENV})
  find_program(tessera_python3 python3 NO_CACHE)
  if(tessera_python3)
    get_filename_component(bin ${tessera_python3} DIRECTORY)
    get_filename_component(real ${tessera_python3} REALPATH)
    get_filename_component(real_bin ${real} DIRECTORY)
    list(APPEND environments ${bin}/.. ${real_bin}/..)
  endif()
  foreach(environment ${environments})
    file(GLOB packages ${environment}/lib*/python3*/site-packages/torch ${environment}/lib*/python3*/dist-packages/torch
      ${environment}/local/lib/python3*/dist-packages/torch)
    list(APPEND places ${packages})
  endforeach()
  if(NOT "$ENV{TESSERA_TORCH_DIR}" STREQUAL "")
    set(places $ENV{TESSERA_TORCH_DIR})  # must be right, as for the program
  endif()
  set(found "")
  foreach(place ${places})
    tessera_torch_version(${place} found_version)
    if(found_version STREQUAL version AND EXISTS ${place}/lib/libtorch_cpu.so)
      set(found ${place})
      break()
    endif()
  endforeach()
  set(${variable} "${found}" PARENT_SCOPE)
endfunction()

# tessera_torch_version(FOLDER VARIABLE): "2.11.0" of the torch package (version.py) or LibTorch archive (build-version)
# in FOLDER; empty where it does not say.
function(tessera_torch_version folder variable)
  set(version "")
  if(EXISTS ${folder}/version.py)
    file(STRINGS ${folder}/version.py line REGEX "^__version__")
    string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" version "${line}")
  elseif(EXISTS ${folder}/build-version)
    file(STRINGS ${folder}/build-version line LIMIT_COUNT 1)
    string(REGEX MATCH "^[0-9]+\\.[0-9]+\\.[0-9]+" version "${line}")
  endif()
  set(${variable} "${version}" PARENT_SCOPE)
endfunction()
