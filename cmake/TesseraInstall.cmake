# SPDX-License-Identifier: Apache-2.0
# cmake --install: bin/tessera, the two libraries, the headers, the recipes, the licence, and find_package(tessera).
include(CMakePackageConfigHelpers)
set(package_dir lib/cmake/tessera)
set_target_properties(tessera_program PROPERTIES INSTALL_RPATH "\$ORIGIN/../lib")
set_target_properties(tessera tessera_core PROPERTIES INSTALL_RPATH "\$ORIGIN")
# In the build folder as well, where bin/ and lib/ lie alike. CMake pads an RPATH that it replaces at installation with colons,
# and an empty entry makes the loader search the working directory.
set_target_properties(tessera_program tessera tessera_core PROPERTIES BUILD_WITH_INSTALL_RPATH ON)
install(TARGETS tessera_program tessera tessera_core RUNTIME DESTINATION bin LIBRARY DESTINATION lib)
if(TESSERA_CUDA)
  set_target_properties(tessera_cuda PROPERTIES INSTALL_RPATH "\$ORIGIN" BUILD_WITH_INSTALL_RPATH ON)
  install(TARGETS tessera_cuda LIBRARY DESTINATION lib)  # opened beside libtessera.so
  install(TARGETS tessera_cuda LIBRARY DESTINATION lib COMPONENT cuda_plugin EXCLUDE_FROM_ALL)
endif()
include(TesseraPublicHeaders)
foreach(header ${TESSERA_PUBLIC_HEADERS})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION include/${folder})
endforeach()
install(DIRECTORY recipes DESTINATION share/tessera)
install(DIRECTORY launch DESTINATION share/tessera USE_SOURCE_PERMISSIONS)
install(FILES LICENSE NOTICE DESTINATION share/doc/tessera)
configure_file(cmake/tesseraConfig.cmake.in generated/tesseraConfig.cmake @ONLY)
write_basic_package_version_file(generated/tesseraConfigVersion.cmake COMPATIBILITY SameMinorVersion)
# Names the LibTorch of this machine, for the program and for find_package(tessera); elsewhere they find their own.
install(FILES ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/torch.path DESTINATION lib)
install(FILES ${CMAKE_BINARY_DIR}/generated/tesseraConfig.cmake ${CMAKE_BINARY_DIR}/generated/tesseraConfigVersion.cmake
  cmake/TesseraTorch.cmake DESTINATION ${package_dir})
