# cmake --install: libraries, headers, programs, and what CMake and pkg-config find them by.

include(CMakePackageConfigHelpers)

# The public headers and those that they include, which is all that a user's compiler reads. Paths
# are relative to the top.
function(verbena_public_headers result)
  file(GLOB waiting RELATIVE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/rpc/*.h")
  list(APPEND waiting verbena.h testing.h rpc/testing/mock_stream.h rpc/testing/mocked_call.h)
  set(found)
  while(waiting)
    list(POP_FRONT waiting header)
    if(header IN_LIST found OR NOT EXISTS "${PROJECT_SOURCE_DIR}/${header}")
      continue()  # seen, or generated
    endif()
    list(APPEND found "${header}")
    file(STRINGS "${PROJECT_SOURCE_DIR}/${header}" lines REGEX "^#include \"verbena/")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^#include \"verbena/([^\"]*)\".*" "\\1" included "${line}")
      list(APPEND waiting "${included}")
    endforeach()
  endwhile()
  set(${result} ${found} PARENT_SCOPE)
endfunction()

set(headers_at "${CMAKE_INSTALL_INCLUDEDIR}/verbena")
verbena_public_headers(public_headers)
foreach(header IN LISTS public_headers)
  get_filename_component(folder "${header}" DIRECTORY)
  install(FILES "${header}" DESTINATION "${headers_at}/${folder}" COMPONENT dev)
endforeach()
# A .proto of a user imports these, and headers include what they become.
foreach(proto IN ITEMS options status remote_memory)
  install(FILES proto/${proto}.proto "${generated_root}/verbena/${proto}.pb.h"
          DESTINATION "${headers_at}" COMPONENT dev)
endforeach()

set(installed verbena_usage verbena verbena_testing protoc-gen-verbena)
if(VERBENA_ETCD)
  list(APPEND installed verbena_etcd)
endif()
set_target_properties(verbena_usage PROPERTIES EXPORT_NAME usage)
target_include_directories(verbena_usage INTERFACE "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
install(TARGETS ${installed} EXPORT VerbenaTargets
        RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT dev
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT library NAMELINK_COMPONENT dev
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT dev)
if(VERBENA_TOOLS)
  install(TARGETS verbena_command RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT tools)
  install(TARGETS verbena_soft LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT soft)
endif()

# --- CMake's package.

set(package_at "${CMAKE_INSTALL_LIBDIR}/cmake/Verbena")
configure_package_config_file(tools/cmake/VerbenaConfig.cmake.in VerbenaConfig.cmake
                              INSTALL_DESTINATION "${package_at}" PATH_VARS CMAKE_INSTALL_INCLUDEDIR)
# Below 1.0, each minor version may change the API.
write_basic_package_version_file(VerbenaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/VerbenaConfig.cmake"
              "${PROJECT_BINARY_DIR}/VerbenaConfigVersion.cmake"
              tools/cmake/VerbenaGenerate.cmake
        DESTINATION "${package_at}" COMPONENT dev)
install(EXPORT VerbenaTargets NAMESPACE Verbena:: DESTINATION "${package_at}" COMPONENT dev)

# --- pkg-config. Debian's Abseil has a file for each of its parts, named absl_<part>.

string(REPLACE "absl::" "absl_" absl_modules "${VERBENA_ABSL}")
list(JOIN absl_modules " " absl_modules)
foreach(module IN ITEMS verbena verbena-etcd)
  if(module STREQUAL "verbena" OR VERBENA_ETCD)
    configure_file(tools/cmake/${module}.pc.in ${module}.pc @ONLY)
    install(FILES "${PROJECT_BINARY_DIR}/${module}.pc"
            DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT dev)
  endif()
endforeach()
