# Every dependency as a target. docs/dependencies.md gives the reason for each.
find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)
find_package(PNG REQUIRED)
find_package(JPEG REQUIRED)
find_package(Protobuf REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_path(TOMLPLUSPLUS_INCLUDE toml++/toml.h REQUIRED)
find_path(XXHASH_INCLUDE xxhash.h REQUIRED)
find_library(XXHASH_LIBRARY xxhash REQUIRED)

# LibTorch by hand: its own find_package(Torch) demands a CUDA toolkit, and libtorch.so pulls CUDA in.
# torch_cpu and c10 are all that the CPU side needs.
if(TESSERA_TORCH)
  if(NOT EXISTS ${TESSERA_TORCH_DIR}/lib/libtorch_cpu.so)
    message(FATAL_ERROR "LibTorch not found: expected ${TESSERA_TORCH_DIR}/lib/libtorch_cpu.so "
                        "(run ./dev setup, or pass -DTESSERA_TORCH_DIR=...)")
  endif()
  get_filename_component(TESSERA_TORCH_REAL ${TESSERA_TORCH_DIR} REALPATH)
  add_library(torch_headers INTERFACE)
  target_include_directories(torch_headers SYSTEM INTERFACE
    ${TESSERA_TORCH_REAL}/include ${TESSERA_TORCH_REAL}/include/torch/csrc/api/include)
  target_compile_definitions(torch_headers INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
  add_library(torch INTERFACE)
  target_link_libraries(torch INTERFACE torch_headers
    ${TESSERA_TORCH_REAL}/lib/libtorch_cpu.so ${TESSERA_TORCH_REAL}/lib/libc10.so)
  get_filename_component(site_packages ${TESSERA_TORCH_REAL}/.. REALPATH)
  target_link_options(torch INTERFACE
    -Wl,-rpath,${TESSERA_TORCH_REAL}/lib -Wl,-rpath-link,${site_packages}/nvidia/cu13/lib)
endif()
