# SPDX-License-Identifier: Apache-2.0
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
find_path(LIBDEFLATE_INCLUDE libdeflate.h REQUIRED)
find_library(LIBDEFLATE_LIBRARY deflate REQUIRED)

if(TESSERA_TORCH)
  include(TesseraTorch)
  tessera_import_torch(${TESSERA_TORCH_DIR} torch_headers torch)
  get_filename_component(TESSERA_TORCH_REAL ${TESSERA_TORCH_DIR} REALPATH)
  tessera_torch_version(${TESSERA_TORCH_REAL} TESSERA_TORCH_VERSION)
  # Tells the program of this build folder which LibTorch to load (launch/find_torch.h).
  file(WRITE ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/torch.path "${TESSERA_TORCH_REAL}\n")
endif()
