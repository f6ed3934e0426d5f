# Finds protobuf, for Verbena's own build and for find_package(Verbena).
#
# A protobuf that was built by CMake has a CMake package, whose targets name the Abseil that it
# needs. From version 22 on it needs one. CMake's own module FindProtobuf finds any protobuf by its
# files, such as Debian's 3.21, which has no package. The module knows nothing of Abseil.

# Sets Protobuf_FOUND and Protobuf_VERSION, and makes protobuf::libprotobuf and its like, unless they
# are there. The first of these is taken:
#   1. a CMake package in a place that the user named (Protobuf_DIR, CMAKE_PREFIX_PATH …) or in one
#      of the directories that are this macro's arguments
#   2. files that the user named, or in such a place
#   3. a CMake package of the system
#   4. files of the system
# Sets VERBENA_PROTOBUF_WRONG to why a CMake package that is there cannot be used: no other protobuf
# is taken for it in silence.
macro(verbena_find_protobuf)
  set(VERBENA_PROTOBUF_WRONG)
  if(TARGET protobuf::libprotobuf)
    set(Protobuf_FOUND TRUE)
    if(NOT Protobuf_VERSION)
      set(Protobuf_VERSION "${protobuf_VERSION}")
    endif()
  else()
    if(protobuf_DIR AND NOT Protobuf_DIR)
      set(Protobuf_DIR "${protobuf_DIR}")
    endif()
    set(verbena_prefix_path "${CMAKE_PREFIX_PATH}")
    if(Protobuf_DIR)  # its Abseil may lie beside it, where no other name leads
      list(PREPEND CMAKE_PREFIX_PATH "${Protobuf_DIR}/..")
    endif()
    set(verbena_named_places NO_SYSTEM_ENVIRONMENT_PATH NO_CMAKE_SYSTEM_PATH)
    if(NOT Protobuf_LIBRARY AND NOT Protobuf_LIBRARY_RELEASE)
      find_package(Protobuf CONFIG QUIET ${verbena_named_places} NO_CMAKE_PACKAGE_REGISTRY
                   NO_CMAKE_SYSTEM_PACKAGE_REGISTRY HINTS ${ARGN})
      verbena_take_protobuf_package()
    endif()
    if(NOT Protobuf_FOUND AND NOT VERBENA_PROTOBUF_WRONG)
      find_library(Protobuf_LIBRARY_RELEASE protobuf ${verbena_named_places})
      if(NOT Protobuf_LIBRARY AND NOT Protobuf_LIBRARY_RELEASE)
        find_package(Protobuf CONFIG QUIET)
        verbena_take_protobuf_package()
      endif()
    endif()
    if(NOT Protobuf_FOUND AND NOT VERBENA_PROTOBUF_WRONG)
      find_package(Protobuf MODULE QUIET)
    endif()
    set(CMAKE_PREFIX_PATH "${verbena_prefix_path}")
  endif()
endmacro()

# What follows a search for protobuf's CMake package: its protoc is Protobuf_PROTOC_EXECUTABLE, if the
# user has named one, as it is with FindProtobuf.
macro(verbena_take_protobuf_package)
  if(Protobuf_FOUND AND Protobuf_PROTOC_EXECUTABLE)
    if(NOT TARGET protobuf::protoc)
      add_executable(protobuf::protoc IMPORTED GLOBAL)
    endif()
    set_target_properties(protobuf::protoc PROPERTIES
                          IMPORTED_CONFIGURATIONS VERBENA
                          IMPORTED_LOCATION_VERBENA "${Protobuf_PROTOC_EXECUTABLE}")
  elseif(Protobuf_CONSIDERED_CONFIGS AND NOT Protobuf_FOUND)
    set(VERBENA_PROTOBUF_WRONG "${Protobuf_CONSIDERED_CONFIGS} cannot be used")
    if(Protobuf_NOT_FOUND_MESSAGE)
      string(APPEND VERBENA_PROTOBUF_WRONG ": ${Protobuf_NOT_FOUND_MESSAGE}")
    endif()
  endif()
endmacro()

# Sets `result` to where the protobuf that was found lies.
function(verbena_protobuf_place result)
  set(${result} "${Protobuf_INCLUDE_DIRS}" PARENT_SCOPE)
  if(NOT Protobuf_INCLUDE_DIRS)
    set(${result} "${Protobuf_DIR}" PARENT_SCOPE)
  endif()
endfunction()

# Sets `result` to the part of a version that all of protobuf shares. Headers may say 5.29.3 where
# the CMake package says 29.3.0 and protoc 29.3: each language counts a first number of its own.
function(verbena_protobuf_common_version result version)
  string(REGEX REPLACE "^[0-9]\\.([0-9]+\\.[0-9]+)" "\\1" version "${version}")
  set(${result} "${version}" PARENT_SCOPE)
endfunction()
