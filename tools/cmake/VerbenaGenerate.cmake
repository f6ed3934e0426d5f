# verbena_generate(): messages, stubs and services of .proto files, for projects that use Verbena.
#
#   add_library(blocks)
#   verbena_generate(TARGET blocks PROTOS blocks.proto)
#
# gives the library `blocks` the files blocks.pb.{h,cc} and blocks.verbena.pb.{h,cc}, and whoever
# links it their headers and Verbena::verbena.

# Sets `result` to the file of the imported `target`; empty if it has none.
function(verbena_imported_file result target)
  get_target_property(configurations "${target}" IMPORTED_CONFIGURATIONS)
  set(${result} "" PARENT_SCOPE)
  foreach(property IN ITEMS IMPORTED_LOCATION IMPORTED_LOCATION_RELEASE LISTS configurations)
    if(property IN_LIST configurations)
      string(TOUPPER "IMPORTED_LOCATION_${property}" property)
    endif()
    get_target_property(file "${target}" ${property})
    if(file)
      set(${result} "${file}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# protoc's version is the library's, or what it writes does not compile.
function(verbena_check_protoc)
  get_property(checked GLOBAL PROPERTY VERBENA_PROTOC_CHECKED)
  verbena_imported_file(protoc protobuf::protoc)
  if(NOT protoc)
    set(protoc "${Protobuf_PROTOC_EXECUTABLE}")  # a file that is not there has no target
  endif()
  if(checked OR NOT protoc OR NOT Protobuf_VERSION)
    return()  # without a version, it is built together with the library
  endif()
  execute_process(COMMAND "${protoc}" --version OUTPUT_VARIABLE version RESULT_VARIABLE failed
                  ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(failed)
    message(FATAL_ERROR
      "${protoc} does not run, so nothing writes the code of .proto files. Name a protoc by "
      "-DProtobuf_PROTOC_EXECUTABLE=PATH. On Debian: apt-get install protobuf-compiler.")
  endif()
  string(REGEX REPLACE "^libprotoc " "" version "${version}")
  verbena_protobuf_common_version(version_of_all "${version}")
  verbena_protobuf_common_version(library_of_all "${Protobuf_VERSION}")
  if(NOT version_of_all VERSION_EQUAL library_of_all)
    verbena_protobuf_place(place)
    message(FATAL_ERROR
      "${protoc} is protoc '${version}', but the library is protobuf ${Protobuf_VERSION} "
      "(${place}). Name the protoc of that library: "
      "-DProtobuf_PROTOC_EXECUTABLE=PATH. On Debian: apt-get install protobuf-compiler.")
  endif()
  set_property(GLOBAL PROPERTY VERBENA_PROTOC_CHECKED TRUE)
endfunction()

# Has protoc write what `PROTO`, a path below one of the directories PATHS, stands for into OUT, and
# again if one of DEPENDS has changed.
# PLUGIN: protoc-gen-verbena and what it depends on, to write stubs and services, too. OPTIONS: the
# plugin's. MOCKS: a header of mocks as well. Sets RESULT to the names of the files.
function(verbena_run_protoc)
  cmake_parse_arguments(PARSE_ARGV 0 arg "MOCKS" "OUT;PROTO;PLUGIN;RESULT" "PATHS;OPTIONS;DEPENDS")
  list(GET arg_PATHS 0 first)
  string(REGEX REPLACE "\\.proto$" "" base "${arg_OUT}/${arg_PROTO}")
  set(outputs "${base}.pb.h" "${base}.pb.cc")
  set(arguments "--cpp_out=${arg_OUT}")
  if(arg_PLUGIN)
    list(APPEND outputs "${base}.verbena.pb.h" "${base}.verbena.pb.cc")
    list(APPEND arguments "--plugin=protoc-gen-verbena=${arg_PLUGIN}" "--verbena_out=${arg_OUT}")
    if(arg_MOCKS)
      list(APPEND outputs "${base}_mock.verbena.pb.h")
      list(APPEND arguments --verbena_opt=generate_mock_code=true)
    endif()
    foreach(option IN LISTS arg_OPTIONS)
      list(APPEND arguments "--verbena_opt=${option}")
    endforeach()
  endif()
  list(TRANSFORM arg_PATHS PREPEND --proto_path=)
  add_custom_command(
    OUTPUT ${outputs}
    COMMAND "$<TARGET_FILE:protobuf::protoc>" ${arg_PATHS} ${arguments} "${arg_PROTO}"
    DEPENDS "${first}/${arg_PROTO}" ${arg_PLUGIN} ${arg_DEPENDS}
    COMMENT "Generating code of ${arg_PROTO}"
    VERBATIM)
  if(arg_RESULT)
    set(${arg_RESULT} ${outputs} PARENT_SCOPE)
  endif()
endfunction()

# Adds to the library TARGET the code of PROTOS.
#   PROTOS       .proto files, relative to BASE_DIR
#   BASE_DIR     where the paths of imports and of headers start (default: this directory)
#   IMPORT_DIRS  where imported files of other projects are
#   MOCKS        also <name>_mock.verbena.pb.h: mocks for tests, which link Verbena::testing and
#                GTest::gmock
#   SERVICES_NAMESPACE, EXPORT_MACRO
#                as docs/guide.md describes them for Bazel
function(verbena_generate)
  cmake_parse_arguments(PARSE_ARGV 0 arg "MOCKS" "TARGET;BASE_DIR;SERVICES_NAMESPACE;EXPORT_MACRO"
                        "PROTOS;IMPORT_DIRS")
  set(arguments "Its arguments are TARGET, PROTOS, BASE_DIR, IMPORT_DIRS, MOCKS, SERVICES_NAMESPACE "
                "and EXPORT_MACRO.")
  if(arg_UNPARSED_ARGUMENTS)
    list(GET arg_UNPARSED_ARGUMENTS 0 unknown)
    message(FATAL_ERROR "verbena_generate: there is no argument '${unknown}'. " ${arguments})
  elseif(NOT TARGET "${arg_TARGET}")
    message(FATAL_ERROR "verbena_generate: TARGET '${arg_TARGET}' is no target: write "
                        "add_library(${arg_TARGET}) before")
  elseif(NOT arg_PROTOS)
    message(FATAL_ERROR "verbena_generate: PROTOS names no file")
  endif()
  verbena_check_protoc()
  if(NOT arg_BASE_DIR)
    set(arg_BASE_DIR "${CMAKE_CURRENT_SOURCE_DIR}")
  endif()
  get_filename_component(arg_BASE_DIR "${arg_BASE_DIR}" ABSOLUTE)
  # Neither the caller's variables nor cached ones of these names.
  set(protos "")  # relative to BASE_DIR
  set(options "")
  set(mocks "")
  foreach(proto IN LISTS arg_PROTOS)
    get_filename_component(file "${proto}" ABSOLUTE BASE_DIR "${arg_BASE_DIR}")
    file(RELATIVE_PATH path "${arg_BASE_DIR}" "${file}")
    if(NOT proto MATCHES "\\.proto$")
      message(FATAL_ERROR "verbena_generate: '${proto}' behind PROTOS is neither a .proto file nor an "
                          "argument. " ${arguments})
    elseif(path MATCHES "^\\.\\./")
      message(FATAL_ERROR "verbena_generate: '${proto}' lies outside of BASE_DIR, which is "
                          "'${arg_BASE_DIR}'. Paths of imports and headers start there: give a "
                          "BASE_DIR that has all PROTOS below it.")
    elseif(NOT EXISTS "${file}")
      message(FATAL_ERROR "verbena_generate: there is no file '${file}'. Paths in PROTOS start at "
                          "BASE_DIR.")
    endif()
    list(APPEND protos "${path}")
  endforeach()
  list(TRANSFORM arg_IMPORT_DIRS REPLACE "^([^/].*)$" "${CMAKE_CURRENT_SOURCE_DIR}/\\1")

  set(plugin "$<TARGET_FILE:Verbena::protoc-gen-verbena>")
  if(VERBENA_HOST_PLUGIN)
    set(plugin "${VERBENA_HOST_PLUGIN}")
  elseif(CMAKE_CROSSCOMPILING)
    message(FATAL_ERROR "verbena_generate: name a protoc-gen-verbena that runs on this machine: "
                        "-DVERBENA_HOST_PLUGIN=PATH")
  endif()
  get_target_property(verbena_protos Verbena::verbena VERBENA_PROTO_DIR)
  if(arg_SERVICES_NAMESPACE)
    list(APPEND options "services_namespace=${arg_SERVICES_NAMESPACE}")
  endif()
  if(arg_EXPORT_MACRO)
    list(APPEND options "export_macro=${arg_EXPORT_MACRO}")
  endif()
  if(arg_MOCKS)
    set(mocks MOCKS)
  endif()

  set(out "${CMAKE_CURRENT_BINARY_DIR}/${arg_TARGET}.verbena")
  file(MAKE_DIRECTORY "${out}")
  # Any of them may import any other.
  list(TRANSFORM protos PREPEND "${arg_BASE_DIR}/" OUTPUT_VARIABLE files)
  foreach(proto IN LISTS protos)
    verbena_run_protoc(OUT "${out}" PROTO "${proto}" PLUGIN "${plugin}" ${mocks} OPTIONS ${options}
                       PATHS "${arg_BASE_DIR}" ${arg_IMPORT_DIRS} "${verbena_protos}"
                       DEPENDS ${files} RESULT outputs)
    target_sources(${arg_TARGET} PRIVATE ${outputs})
  endforeach()
  target_include_directories(${arg_TARGET} PUBLIC "$<BUILD_INTERFACE:${out}>")
  target_link_libraries(${arg_TARGET} PUBLIC Verbena::verbena)
endfunction()
