# SPDX-License-Identifier: Apache-2.0
# Makes generated/tessera_version.h: what a bug report needs to know about this build. The git state is read at
# every build, but the file changes only when it did, and only tessera/base/version.cpp includes it.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  find_package(Git QUIET)
  string(TOUPPER "${CMAKE_BUILD_TYPE}" build_type)
  string(STRIP "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${build_type}}" flags)
  add_custom_target(tessera_version
    COMMAND ${CMAKE_COMMAND} "-DGIT=$<$<BOOL:${GIT_FOUND}>:${GIT_EXECUTABLE}>" -DSOURCE=${CMAKE_SOURCE_DIR}
      -DVERSION=${PROJECT_VERSION} -DBUILD_TYPE=${CMAKE_BUILD_TYPE} "-DFLAGS=${flags}"
      -DPRESET=${TESSERA_PRESET} -DSANITIZERS=${TESSERA_SANITIZE}
      "-DCOMPILER=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}"
      -DOUT=${CMAKE_BINARY_DIR}/generated/tessera_version.h -P ${CMAKE_CURRENT_LIST_FILE}
    BYPRODUCTS ${CMAKE_BINARY_DIR}/generated/tessera_version.h
    COMMENT "Asking git for the version" VERBATIM)
  return()
endif()

set(commit "")
if(GIT AND EXISTS ${SOURCE}/.git)
  # Without tags: the version stands beside the commit, and a tagged commit must not lose its hash.
  execute_process(COMMAND ${GIT} -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(commit STREQUAL "")
  set(commit unknown)
endif()
set(text "// Made by cmake/TesseraVersion.cmake.\n#pragma once\n")
foreach(name VERSION COMPILER BUILD_TYPE FLAGS PRESET SANITIZERS)
  string(REPLACE "\\" "\\\\" value "${${name}}")
  string(REPLACE "\"" "\\\"" value "${value}")
  string(APPEND text "#define TESSERA_BUILD_${name} \"${value}\"\n")
endforeach()
string(APPEND text "#define TESSERA_BUILD_COMMIT \"${commit}\"\n")
set(old "")
if(EXISTS ${OUT})
  file(READ ${OUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUT} "${text}")
endif()
