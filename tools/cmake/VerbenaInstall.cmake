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
# Users' .proto files import these; code generated from them includes these headers.
foreach(proto IN ITEMS options status remote_memory)
  install(FILES proto/${proto}.proto "${generated_root}/verbena/${proto}.pb.h"
          DESTINATION "${headers_at}" COMPONENT dev)
endforeach()

set(installed verbena_usage verbena verbena_reflection verbena_testing protoc-gen-verbena)
if(VERBENA_ETCD)
  list(APPEND installed verbena_etcd)
endif()
if(VERBENA_ADMIN)
  list(APPEND installed verbena_admin)
endif()
# An rpath leads to linked libraries outside the system's directories.
foreach(target IN ITEMS verbena verbena_admin verbena_etcd verbena_reflection protoc-gen-verbena
        verbena_command verbena_soft)
  if(TARGET ${target})
    set_target_properties(${target} PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
  endif()
endforeach()
set_target_properties(verbena_usage PROPERTIES EXPORT_NAME usage)
target_include_directories(verbena_usage INTERFACE "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
install(TARGETS ${installed} EXPORT VerbenaTargets
        RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT dev
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT library NAMELINK_COMPONENT dev
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT dev)
if(VERBENA_TOOLS)
  install(TARGETS verbena_command RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT tools)
  install(FILES tools/verbena/verbena.1 DESTINATION "${CMAKE_INSTALL_MANDIR}/man1" COMPONENT tools)
  install(FILES tools/verbena/completion.bash RENAME verbena
          DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" COMPONENT tools)
  install(TARGETS verbena_soft LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT soft)
endif()

install(FILES LICENSE tools/packaging/verbena.spdx
        DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT library)
install(FILES README.md CHANGELOG.md DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT dev)
install(DIRECTORY docs DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT dev
        FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "verbena.rules.yml" PATTERN "dashboard.json")

# --- CMake's package.

# Users find the protobuf and the Abseil of CMake packages where this build found them, unless they
# name others. Those of a system have no packages, or any build finds them.
set(protobuf_found_at)
set(absl_found_at)
if(Protobuf_CONFIG)
  set(protobuf_found_at "${Protobuf_DIR}")
  set(absl_found_at "${absl_DIR}")
endif()
set(package_at "${CMAKE_INSTALL_LIBDIR}/cmake/Verbena")
configure_package_config_file(tools/cmake/VerbenaConfig.cmake.in VerbenaConfig.cmake
                              INSTALL_DESTINATION "${package_at}" PATH_VARS CMAKE_INSTALL_INCLUDEDIR)
# Below 1.0, each minor version may change the API.
write_basic_package_version_file(VerbenaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/VerbenaConfig.cmake"
              "${PROJECT_BINARY_DIR}/VerbenaConfigVersion.cmake"
              tools/cmake/VerbenaGenerate.cmake tools/cmake/VerbenaProtobuf.cmake
        DESTINATION "${package_at}" COMPONENT dev)
install(EXPORT VerbenaTargets NAMESPACE Verbena:: DESTINATION "${package_at}" COMPONENT dev)

# --- pkg-config. Debian's Abseil has a file for each of its parts, named absl_<part>.

# Sets `result` to how a .pc file names the directory `path`, which belongs to the prefix.
function(verbena_pc_path result path)
  if(IS_ABSOLUTE "${path}")
    set(${result} "${path}" PARENT_SCOPE)
  else()
    set(${result} "\${prefix}/${path}" PARENT_SCOPE)
  endif()
endfunction()

# A .pc file finds the prefix by its own place, so that cmake --install --prefix may give another.
set(pc_at "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
set(pc_prefix "${CMAKE_INSTALL_PREFIX}")
if(NOT IS_ABSOLUTE "${pc_at}")
  file(RELATIVE_PATH pc_prefix "/${pc_at}" /)
  string(REGEX REPLACE "/$" "" pc_prefix "\${pcfiledir}/${pc_prefix}")
endif()
verbena_pc_path(pc_bindir "${CMAKE_INSTALL_BINDIR}")
verbena_pc_path(pc_libdir "${CMAKE_INSTALL_LIBDIR}")
verbena_pc_path(pc_includedir "${CMAKE_INSTALL_INCLUDEDIR}")
string(REPLACE "absl::" "absl_" pc_requires "${VERBENA_ABSL}")
set(pc_coroutines -fcoro-aligned-allocation)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(pc_coroutines -foptimize-sibling-calls)
endif()
list(APPEND pc_requires protobuf)
if(Protobuf_VERSION)
  # protobuf.pc says 29.3.0, also if CMake has read 5.29.3 in the headers.
  set(pc_protobuf "${Protobuf_VERSION}")
  if(Protobuf_VERSION MATCHES "^[0-9]\\.([0-9]+)\\.([0-9]+)" AND CMAKE_MATCH_1 GREATER_EQUAL 22)
    set(pc_protobuf "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}.0")
  endif()
  list(APPEND pc_requires "protobuf = ${pc_protobuf}")
endif()
if(absl_VERSION)
  list(APPEND pc_requires "absl_status = ${absl_VERSION}")
endif()
if(NOT BUILD_SHARED_LIBS)
  # Who links libverbena.a links these, too, with or without pkg-config's --static.
  list(APPEND pc_requires fmt libibverbs librdmacm liburing libisal)
  set(pc_libraries "-ldl")
  set(pc_flags -DVERBENA_STATIC)
  set(pc_etcd_requires openssl)
endif()
list(JOIN pc_requires " " pc_requires)
set(pc_modules verbena verbena-reflection)
if(VERBENA_ADMIN)
  list(APPEND pc_modules verbena-admin)
endif()
if(VERBENA_ETCD)
  list(APPEND pc_modules verbena-etcd)
endif()
foreach(module IN LISTS pc_modules)
  configure_file(tools/cmake/${module}.pc.in ${module}.pc @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/${module}.pc" DESTINATION "${pc_at}" COMPONENT dev)
endforeach()
