# The libraries that Verbena is built with, all from packages. What a user of the headers compiles
# and links with is in VERBENA_PUBLIC_LIBRARIES, what the library alone needs in
# VERBENA_PRIVATE_LIBRARIES.

# Ends the configuration unless `found` is true. A fourth argument says what is there instead.
function(verbena_need found what package)
  if(NOT found)
    set(but "which is not there")
    if(ARGN)  # ARGV3 would be the caller's if it has none
      set(but "but ${ARGN}")
    endif()
    message(FATAL_ERROR
      "Verbena needs ${what}, ${but}. On Debian: apt-get install ${package}. "
      "docs/install.md names the packages of other systems.")
  endif()
endfunction()

# Says so if `version` of `library` begins with none of the versions that were tried: all further
# arguments.
function(verbena_tried library version)
  foreach(tried IN LISTS ARGN)
    string(FIND "${version}" "${tried}" at)
    if(at EQUAL 0)
      return()
    endif()
  endforeach()
  if(version)
    list(JOIN ARGN " and " tried)
    message(WARNING "Verbena is built and tested with ${library} ${tried}; no test runs "
                    "with ${version}.")
  endif()
endfunction()

# Makes the imported target `target` of a library without a CMake package.
function(verbena_import target library header package)
  if(TARGET ${target})
    return()
  endif()
  string(MAKE_C_IDENTIFIER "VERBENA_${library}" name)
  find_library(${name}_LIBRARY ${library})
  find_path(${name}_INCLUDE_DIR ${header})
  mark_as_advanced(${name}_LIBRARY ${name}_INCLUDE_DIR)
  if(NOT ${name}_LIBRARY OR NOT ${name}_INCLUDE_DIR)
    verbena_need(FALSE "lib${library} with ${header}" ${package})
  endif()
  add_library(${target} UNKNOWN IMPORTED GLOBAL)
  set_target_properties(${target} PROPERTIES
    IMPORTED_LOCATION "${${name}_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${${name}_INCLUDE_DIR}")
endfunction()

# A project that takes Verbena by add_subdirectory() links these, too, from a folder above.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

# A project that brings Abseil, protobuf or fmt itself has their targets already. protobuf comes
# first: its CMake package finds the Abseil that it was built with.
verbena_find_protobuf()
verbena_need("${Protobuf_FOUND}" "protobuf 3.21" libprotobuf-dev "${VERBENA_PROTOBUF_WRONG}")
if(Protobuf_VERSION AND Protobuf_VERSION VERSION_LESS 3.21)
  verbena_protobuf_place(place)
  verbena_need(FALSE "protobuf 3.21" libprotobuf-dev
               "${place} has ${Protobuf_VERSION}, which is older")
endif()
verbena_tried(protobuf "${Protobuf_VERSION}" 3.21)
if(NOT TARGET absl::status)
  find_package(absl QUIET)
  verbena_need("${absl_FOUND}" "Abseil" libabsl-dev)
endif()
if(NOT TARGET absl::any_invocable)
  verbena_need(FALSE "Abseil 20220623" libabsl-dev "${absl_DIR} has ${absl_VERSION}, which is older")
endif()
verbena_tried(Abseil "${absl_VERSION}" 20220623 20240722)
if(NOT TARGET protobuf::protoc)
  verbena_need(FALSE "protoc, which writes the code of .proto files" protobuf-compiler
               "there is none")
endif()
if(NOT TARGET protobuf::libprotoc)
  verbena_need(FALSE "libprotoc, for protoc-gen-verbena" libprotoc-dev)
endif()
if(NOT TARGET fmt::fmt)
  find_package(fmt QUIET)
  verbena_need("${fmt_FOUND}" "fmt" libfmt-dev)
endif()

# Sets `result` to whether who links `library` links an archive by it. A target that is no library
# of its own (INTERFACE, as Conan makes them) is looked through. Of an expression all parts count,
# whatever its conditions say.
function(verbena_is_archive result library)
  set(waiting "${library}")
  set(seen)
  while(waiting)
    list(POP_FRONT waiting each)
    if(each IN_LIST seen)
      continue()
    endif()
    list(APPEND seen "${each}")
    set(file "${each}")
    set(type)
    if(TARGET "${each}")
      get_target_property(type "${each}" TYPE)
      verbena_imported_file(file "${each}")
    endif()
    if(type STREQUAL "STATIC_LIBRARY" OR file MATCHES "\\.a$")
      set(${result} TRUE PARENT_SCOPE)
      return()
    elseif(type STREQUAL "INTERFACE_LIBRARY" OR (type AND NOT file))
      get_target_property(links "${each}" INTERFACE_LINK_LIBRARIES)
      # "$<$<CONFIG:Release>:a::b>" becomes CONFIG, Release and a::b.
      string(REPLACE "::" "\n" links "${links}")
      string(REGEX REPLACE "\\$<|[>:,]" ";" links "${links}")
      string(REPLACE "\n" "::" links "${links}")
      list(APPEND waiting ${links})
    endif()
  endwhile()
  set(${result} FALSE PARENT_SCOPE)
endfunction()

# A hidden copy of them in libverbena.so would be a second one in each program.
if(BUILD_SHARED_LIBS)
  foreach(library IN ITEMS absl::status protobuf::libprotobuf)
    verbena_is_archive(archive ${library})
    if(archive)
      message(FATAL_ERROR "${library} is an archive, of which libverbena.so and a program would have "
                          "a copy each: add -DBUILD_SHARED_LIBS=OFF")
    endif()
  endforeach()
endif()

find_path(VERBENA_BOOST_INCLUDE_DIR boost/json/src.hpp)
mark_as_advanced(VERBENA_BOOST_INCLUDE_DIR)
verbena_need("${VERBENA_BOOST_INCLUDE_DIR}" "Boost's headers (Asio, Beast, JSON)" libboost1.81-dev)
file(STRINGS "${VERBENA_BOOST_INCLUDE_DIR}/boost/version.hpp" boost_version
     REGEX "^#define BOOST_LIB_VERSION ")
string(REGEX REPLACE ".*\"([0-9]+)_([0-9]+).*" "\\1.\\2" boost_version "${boost_version}")
if(boost_version VERSION_LESS 1.81)
  verbena_need(FALSE "Boost 1.81" libboost1.81-dev
               "${VERBENA_BOOST_INCLUDE_DIR} has ${boost_version}, which is older")
endif()
add_library(verbena_boost INTERFACE)
target_include_directories(verbena_boost SYSTEM INTERFACE "${VERBENA_BOOST_INCLUDE_DIR}")

verbena_import(Verbena::ibverbs ibverbs infiniband/verbs.h libibverbs-dev)
verbena_import(Verbena::rdmacm rdmacm rdma/rdma_cma.h librdmacm-dev)
verbena_import(Verbena::uring uring liburing.h liburing-dev)
verbena_import(Verbena::isal isal isa-l/crc.h libisal-dev)
if(VERBENA_ETCD)
  find_package(OpenSSL QUIET)
  verbena_need("${OPENSSL_FOUND}" "OpenSSL (or -DVERBENA_ETCD=OFF)" libssl-dev)
endif()

if(VERBENA_TOOLS)
  find_path(VERBENA_CLI11_INCLUDE_DIR CLI/CLI.hpp)
  mark_as_advanced(VERBENA_CLI11_INCLUDE_DIR)
  verbena_need("${VERBENA_CLI11_INCLUDE_DIR}" "CLI11 (or -DVERBENA_TOOLS=OFF)" libcli11-dev)
  add_library(verbena_cli11 INTERFACE)
  target_include_directories(verbena_cli11 SYSTEM INTERFACE "${VERBENA_CLI11_INCLUDE_DIR}")
endif()

# The parts of Abseil that headers and sources name.
set(VERBENA_ABSL
    absl::any_invocable absl::btree absl::cleanup absl::cord absl::core_headers absl::flat_hash_map
    absl::flat_hash_set absl::function_ref absl::hash absl::inlined_vector absl::node_hash_map
    absl::span absl::status absl::statusor absl::strings)
set(VERBENA_PUBLIC_LIBRARIES ${VERBENA_ABSL} protobuf::libprotobuf Threads::Threads)
set(VERBENA_PRIVATE_LIBRARIES
    fmt::fmt "$<BUILD_INTERFACE:verbena_boost>" Verbena::ibverbs Verbena::rdmacm Verbena::uring
    Verbena::isal ${CMAKE_DL_LIBS})
