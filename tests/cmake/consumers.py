#!/usr/bin/env python3
"""Builds libverbena with CMake, installs it, and builds and runs programs that use it.

Prints a line for each row. The installation lies below a path with spaces, which each row thereby
tests, too. The library's build stays in ~/.cache/verbena-cmake for the next run.
"""

import argparse
import hashlib
import os
import pathlib
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "tools" / "dev")]
import lock

CONSUMER = TOP / "tests" / "cmake" / "consumer"
COMPILER = "clang++-19"
VERSION = ".".join(re.findall(r"^#define VERBENA_VERSION_(?:MAJOR|MINOR) (\d+)$",
                              (TOP / "rpc" / "version.h").read_text(), re.MULTILINE))
GREETING = "Hello, storage!"
# The words of the client of etcd: a program without it says that it cannot reach etcd.
SHOWN_STATUS = "listens at 127.0.0.1:"
ASKED_ETCD = "etcd at 127.0.0.1:1, /v3/kv/range: cannot connect"
# What a command of a row may take, and what a build of the library may take without a cache.
COMMAND_S = 600
LIBRARY_S = 2 * 3600
# What the new service's server may take to begin or to end.
END_S = 60

# What libverbena.so may define: names in these namespaces, with their vtables, types and thunks, and
# what protobuf writes for Verbena's messages.
SHOWN = re.compile(r"_Z(?:T[A-Z]|Th[n\d]+_|Tv[n\d]+_[n\d]+_|GV|GR)?N[KVrRO]*(?:7verbena|4absl|6google)"
                   r"|descriptor_table_verbena_2f")


class RowFailed(Exception):
    """Why a row failed: a text for whoever runs it."""


def run(*command, fails=False, env=None, cwd=None, timeout=COMMAND_S):
    """Runs `command`, which must succeed, or fail if `fails` says so. Returns what it printed. After
    `timeout` seconds it is killed, with all that it has started."""
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", cwd=cwd, env={**os.environ, **(env or {})},
                          start_new_session=True) as process:
        late = False
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            late = True
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if late or (process.returncode != 0) != fails:
        how = f"took longer than {timeout} s" if late else "succeeded" if fails else f"failed ({process.returncode})"
        raise RowFailed(f"{' '.join(map(str, command))}: {how}\n{output[-4000:]}")
    return output


def expect(text, *parts):
    """Fails unless `text`, in which lines may be broken anywhere, has each of `parts`."""
    for part in parts:
        if part not in " ".join(text.split()):
            raise RowFailed(f"'{part}' is not in\n{text[-4000:]}")


# How each kind of library is built. `quick` is what every ./dev test builds: libverbena.so and the plugin alone, hardly
# optimised, and without debug information, which would have the paths of the machine that builds it.
KINDS = {"shared": ("-DBUILD_SHARED_LIBS=ON",),
         "static": ("-DBUILD_SHARED_LIBS=OFF",),
         "quick": ("-DBUILD_SHARED_LIBS=ON", "-DVERBENA_LTO=OFF", "-DVERBENA_TOOLS=OFF", "-DVERBENA_ADMIN=OFF",
                   "-DVERBENA_ETCD=OFF", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O1")}


def build_directory(kind):
    """Where libverbena of that kind is built: a directory belongs to one tree of sources."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    tree = hashlib.sha256(str(TOP).encode()).hexdigest()[:8]
    return cache / "verbena-cmake" / f"{kind}-{tree}"


def build_library(kind, install):
    """Builds libverbena of that kind, and installs it at `install`."""
    build = build_directory(kind)
    try:
        with lock.locked(build):
            # Afresh: what CMake found and what options said may have changed since. Objects stay.
            run("cmake", "--fresh", "-S", TOP, "-B", build, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={COMPILER}",
                *KINDS[kind])
            run("cmake", "--build", build, timeout=LIBRARY_S)
            run("cmake", "--install", build, "--prefix", install)
            removed_again(build, install)
            run("cmake", "--install", build, "--prefix", install)
    except lock.Held as held:
        raise RowFailed(str(held)) from held


def removed_again(build, install):
    """Removes what is installed at `install`, as docs/install.md says."""
    command = re.search(r"^    (xargs .*) < build/default/install_manifest\.txt$",
                        (TOP / "docs" / "install.md").read_text(), re.MULTILINE)[1]
    run("sh", "-c", f"{command} < {shlex.quote(str(build))}/install_manifest.txt")
    left = [str(path) for path in install.rglob("*") if not path.is_dir()]
    if left:
        raise RowFailed(f"docs/install.md's command leaves {' '.join(left[:10])}")


class Installation:
    """An installed Verbena, and a directory for builds against it."""

    def __init__(self, prefix, scratch):
        self.prefix = prefix
        self.scratch = scratch
        self.libraries = next(prefix.glob("lib*/pkgconfig")).parent
        self.pkg_config = {"PKG_CONFIG_PATH": str(self.libraries / "pkgconfig"),
                           "LD_LIBRARY_PATH": str(self.libraries)}

    def configure(self, *options, source=CONSUMER, prefixes=None, fails=False):
        """Configures a project afresh. Returns its build directory and what CMake printed."""
        build = pathlib.Path(tempfile.mkdtemp(dir=self.scratch))
        prefixes = ";".join(str(prefix) for prefix in prefixes or [self.prefix])
        return build, run("cmake", "-S", source, "-B", build, "-G", "Ninja",
                          f"-DCMAKE_CXX_COMPILER={COMPILER}", f"-DCMAKE_PREFIX_PATH={prefixes}",
                          f"-DVERSION={VERSION}", *options, fails=fails)

    def refuses(self, *options, prefixes=None):
        """What CMake prints about a consumer that cannot be configured with `options`."""
        return self.configure(*options, prefixes=prefixes, fails=True)[1]

    def make(self, *words, program="hello", env=None, fails=False):
        """Builds a program of the Makefile in a new directory. Returns that and what make printed."""
        build = tempfile.mkdtemp(dir=self.scratch)
        return pathlib.Path(build), run("make", "-C", CONSUMER, f"BUILD={build}", f"{build}/{program}", *words,
                                        env={**self.pkg_config, **(env or {})}, fails=fails)


def cmake_hello(installed, *options, target="hello", output=GREETING, timeout=COMMAND_S):
    build, _ = installed.configure(*options)
    run("cmake", "--build", build, "--target", target, timeout=timeout)
    expect(run(build / target), output)
    return build / target


def shows_its_own_names_alone(installed):
    for library in installed.libraries.glob("libverbena*.so"):
        if library.name == "libverbena_soft.so":
            continue  # it shows what libibverbs and librdmacm have
        table = run("nm", "-D", "--defined-only", library)
        names = [line.split()[-1] for line in table.splitlines()]
        others = [name for name in names if not SHOWN.match(name)]
        if not names or others:
            raise RowFailed(f"{library.name} shows {len(names)} names, and these are not its own: "
                            f"{' '.join(others[:20])}")


def tells_nothing_of_the_building_machine(installed):
    """A check that fails prints the path of its file below the top of the sources."""
    for library in installed.libraries.glob("libverbena*"):
        content = library.read_bytes()
        for path in (f"{TOP}/".encode(), b"/verbena-cmake/"):  # the sources, and where they are built
            at = content.find(path)
            if at >= 0:
                raise RowFailed(f"{library.name} has {content[at:at + 200]!r}")
        if library.name.startswith("libverbena.") and b"transport/executor/executor.cc\0" not in content:
            raise RowFailed(f"{library.name} does not name transport/executor/executor.cc")


def has_documents(installed):
    for name in ("README.md", "CHANGELOG.md", "LICENSE", *(f"docs/{path.name}" for path in TOP.glob("docs/*.md"))):
        if (installed.prefix / "share/doc/Verbena" / name).read_bytes() != (TOP / name).read_bytes():
            raise RowFailed(f"share/doc/Verbena/{name} is not the tree's")


def has_the_command(installed):
    command = installed.prefix / "bin" / "verbena"
    if not re.fullmatch(rf"verbena {re.escape(VERSION)}\.\d+\n", run(command, "--version")):
        raise RowFailed(f"verbena --version says {run(command, '--version')!r}")
    expect(run(command, "help"), "--version", "doctor")


def shared_hello(installed):
    program = cmake_hello(installed, "-DCOMPONENTS=verbena")
    libraries = re.findall(r"^\s*(lib\S+)\.so\S* =>", run("ldd", program), re.MULTILINE)
    if "libverbena" not in libraries or libraries.count("libprotobuf") != 1:
        raise RowFailed(f"hello is linked with {' '.join(sorted(libraries))}")


def own_json(installed):
    cmake_hello(installed, target="own_json", output="both read ")


def asks_etcd(installed):
    cmake_hello(installed, target="with_etcd", output=ASKED_ETCD)


def shows_status(installed):
    cmake_hello(installed, target="with_admin", output=SHOWN_STATUS)


def made_hello(installed):
    build, _ = installed.make()
    expect(run(build / "hello", env=installed.pkg_config), GREETING)


def made_to_ask_etcd(installed):
    build, _ = installed.make(program="with_etcd")
    expect(run(build / "with_etcd", env=installed.pkg_config), ASKED_ETCD)


def made_to_show_status(installed):
    build, _ = installed.make(program="with_admin")
    expect(run(build / "with_admin", env=installed.pkg_config), SHOWN_STATUS)


def subdirectory(installed):
    # Its build of the library finds most objects in ccache, if there is one.
    launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    cmake_hello(installed, "-DVERBENA_FROM=subdirectory", *launcher, timeout=LIBRARY_S)


def fetched(installed):
    """FetchContent makes the targets that add_subdirectory() makes: this one is enough."""
    build, _ = installed.configure("-DVERBENA_FROM=fetch")
    run("cmake", "--build", build, "--target", "protoc-gen-verbena")
    if "\nBUILD_SHARED_LIBS:" in (build / "CMakeCache.txt").read_text():
        raise RowFailed("Verbena has set an option of the project around it: BUILD_SHARED_LIBS")


def tests_and_examples(_):
    """The tests of the CMake build, and its examples, beside the static library that is there."""
    build = build_directory("static")
    try:
        with lock.locked(build):
            run("cmake", "-S", TOP, "-B", build, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={COMPILER}",
                "-DBUILD_SHARED_LIBS=OFF", "-DVERBENA_TESTS=ON", "-DVERBENA_EXAMPLES=ON")
            run("cmake", "--build", build, timeout=LIBRARY_S)
            expect(run("ctest", "--test-dir", build, "--parallel", os.cpu_count(), "--timeout", 300,
                       timeout=LIBRARY_S), "100% tests passed")
            expect(run(build / "examples" / "hello" / "hello"), GREETING)
    except lock.Held as held:
        raise RowFailed(str(held)) from held


def follows_imports(installed):
    """What a .proto file becomes is written anew if another file of PROTOS has changed."""
    build, _ = installed.configure()
    expect(run("ninja", "-C", build, "-t", "query", "hello.verbena/examples/hello/hello.pb.h"),
           f"{TOP}/examples/hello/hello.proto", f"{TOP}/examples/dedupe/dedupe.proto")


def new_service(installed):
    """What ./dev new-service --cmake writes, as its README says."""
    project = pathlib.Path(tempfile.mkdtemp(dir=installed.scratch)) / "block_index"
    run(TOP / "dev", "new-service", "block_index", "--cmake", "--dir", project)
    listfile = (project / "CMakeLists.txt").read_text()
    if len(listfile.splitlines()) > 15:
        raise RowFailed(f"CMakeLists.txt has more than 15 lines:\n{listfile}")
    for preset in ("default", "asan"):
        run("cmake", "--preset", preset, f"-DCMAKE_PREFIX_PATH={installed.prefix}", cwd=project)
        run("cmake", "--build", "--preset", preset, cwd=project)
        expect(run("ctest", "--preset", preset, cwd=project), "100% tests passed")
    programs = project / "build" / "default"
    with subprocess.Popen([programs / "server", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True) as server:
        try:
            if not select.select([server.stdout], [], [], END_S)[0]:
                raise RowFailed("the server does not say where it listens")
            address = server.stdout.readline().removeprefix("listening on ").strip()
            run(programs / "client", address, "put", "color", "green")
            expect(run(programs / "client", address, "get", "color"), "green")
        finally:
            server.terminate()
            try:
                server.wait(END_S)
            except subprocess.TimeoutExpired:
                server.kill()
    if server.returncode != 0:
        raise RowFailed(f"the server ended with {server.returncode}")


def plugin_of(installed, name):
    """A plugin that is linked with `installed`, as the file `name`.so, and a program that loads such."""
    build, _ = installed.configure("-DCOMPONENTS=verbena")
    run("cmake", "--build", build, "--target", "plugin", "load")
    return (build / "libplugin.so").rename(build / f"{name}.so"), build / "load"


def second_copy_is_refused(load, first, second, env=None):
    """Loads two plugins with a copy of Verbena each, and fails unless the second is refused in words."""
    for plugin in (first, second):
        expect(run(load, plugin, env=env), f"{plugin} has started")
    output = run(load, first, second, fails=True, env=env)
    expect(output, f"{first} has started", "two copies of Verbena in one process", "the first is in ",
           "the second in ", "Link both with libverbena.so, of one version")
    return output


def two_static_plugins(installed):
    first, load = plugin_of(installed, "first")
    second = shutil.copy(first, first.with_name("second.so"))
    expect(second_copy_is_refused(load, first, second), f"the first is in {first}, the second in {second}")


def static_beside_shared(shared, static):
    first, load = plugin_of(shared, "shared")
    second, _ = plugin_of(static, "static")
    library = shared.libraries / "libverbena.so"
    expect(second_copy_is_refused(load, first, second), f"the first is in {library}", f"the second in {second}")
    expect(second_copy_is_refused(load, second, first), f"the first is in {second}", f"the second in {library}")


def two_shared_plugins(installed):
    first, load = plugin_of(installed, "first")
    second = shutil.copy(first, first.with_name("second.so"))
    expect(run(load, first, second), f"{first} has started", f"{second} has started")


def two_sonames(installed):
    """As if libverbena.so had got another VERBENA_SOVERSION, and one plugin were linked with that."""
    first, load = plugin_of(installed, "first")
    soname = re.search(r"libverbena\.so\.\d+", run("objdump", "-p", first))[0]
    other = soname[:-1] + ("9" if soname[-1] != "9" else "8")
    second = first.with_name("second.so")
    for old, new in ((first, second), (installed.libraries / soname, first.with_name(other))):
        new.write_bytes(old.read_bytes().replace(soname.encode(), other.encode()))
    places = (f"the first is in {installed.libraries / soname}", f"the second in {first.with_name(other)}")
    env = {"LD_LIBRARY_PATH": str(first.parent)}
    expect(second_copy_is_refused(load, first, second, env=env), *places)
    # So is a plugin beside a program that is linked with Verbena, though the names of the program's come first.
    preloaded = first.with_name("preloaded.so")
    preloaded.symlink_to(installed.libraries / soname)
    expect(run(load, second, fails=True, env={**env, "LD_PRELOAD": str(preloaded)}), "two copies of Verbena",
           *places[1:])


# --- Bad input: each is answered by one message, which says what to do.


def without_protoc(installed):
    expect(installed.refuses("-DProtobuf_PROTOC_EXECUTABLE="),
           "there is no protoc", "apt-get install protobuf-compiler")
    expect(installed.refuses("-DProtobuf_PROTOC_EXECUTABLE=/nonexistent/protoc"),
           "/nonexistent/protoc does not run", "-DProtobuf_PROTOC_EXECUTABLE=PATH")
    expect(installed.configure("-DProtobuf_PROTOC_EXECUTABLE=", source=TOP, fails=True)[1],
           "Verbena needs protoc", "apt-get install protobuf-compiler")
    expect(installed.configure("-DProtobuf_PROTOC_LIBRARY_RELEASE=", "-DProtobuf_PROTOC_LIBRARY_DEBUG=",
                                source=TOP, fails=True)[1],
           "Verbena needs libprotoc", "apt-get install libprotoc-dev")


def with_another_protoc(installed):
    protoc = installed.scratch / "other_protoc"
    protoc.write_text("#!/bin/sh\necho libprotoc 3.20.0\n")
    protoc.chmod(0o755)
    # Newer ones leave out the first number, which each language counts for itself.
    alike = installed.scratch / "alike_protoc"
    alike.write_text("#!/bin/sh\necho libprotoc $(protoc --version | sed 's/.* 3[.]//')\n")
    alike.chmod(0o755)
    installed.configure(f"-DProtobuf_PROTOC_EXECUTABLE={alike}")
    expect(installed.refuses(f"-DProtobuf_PROTOC_EXECUTABLE={protoc}"),
           "is protoc '3.20.0', but the library is protobuf 3.21", "-DProtobuf_PROTOC_EXECUTABLE=PATH")


def with_an_old_gcc(installed):
    gcc = next((name for name in ("g++-11", "g++-12") if shutil.which(name)), None)
    if gcc is None:
        raise RowFailed("there is neither g++-11 nor g++-12: ./dev install-deps lint")
    expect(installed.refuses(f"-DCMAKE_CXX_COMPILER={gcc}"),
           "miscompiles coroutines", "-DCMAKE_CXX_COMPILER=clang++-19")
    expect(installed.configure(f"-DCMAKE_CXX_COMPILER={gcc}", source=TOP, fails=True)[1],
           "miscompiles coroutines", "-DCMAKE_CXX_COMPILER=clang++-19")
    # pkg-config asks nothing of a compiler, but the headers do.
    source = installed.scratch / "old_gcc.cc"
    source.write_text('#include "verbena/rpc/task.h"\n')
    expect(run(gcc, "-std=c++20", "-fsyntax-only", f"-I{installed.prefix / 'include'}", source, fails=True),
           "older gcc miscompiles coroutines")


def without_the_flag(installed):
    _, output = installed.make("verbena=$$(pkg-config $(1) verbena | sed s/-fcoro-aligned-allocation//)",
                               fails=True)
    expect(output, "error: Verbena needs -fcoro-aligned-allocation")


def static_without_uring(installed):
    expect(installed.refuses("-DVERBENA_uring_LIBRARY="),
           "libverbena.a is linked with liburing, which is not there", "apt-get install liburing-dev")
    expect(installed.configure("-DVERBENA_uring_LIBRARY=", source=TOP, fails=True)[1],
           "needs liburing with liburing.h, which is not there", "apt-get install liburing-dev")
    others = pathlib.Path(tempfile.mkdtemp(dir=installed.scratch))
    for folder in run("pkg-config", "--variable=pc_path", "pkg-config").strip().split(":"):
        for file in pathlib.Path(folder).glob("*.pc"):
            if file.stem != "liburing" and not (others / file.name).exists():
                (others / file.name).symlink_to(file)
    expect(installed.make(env={"PKG_CONFIG_LIBDIR": str(others)}, fails=True)[1],
           "Package 'liburing', required by 'verbena', not found")


def without_openssl(installed):
    lacks = "-DOPENSSL_CRYPTO_LIBRARY="
    expect(installed.refuses(lacks), "this Verbena has no component etcd",
           "linked with OpenSSL, which is not there", "apt-get install libssl-dev")
    installed.configure(lacks, "-DCOMPONENTS=verbena;testing")


def without_a_component(installed):
    expect(installed.refuses("-DCOMPONENTS=verbena;grpc"),
           "no component 'grpc'. It has verbena, admin, etcd, reflection and testing")
    prefix = altered(installed, "VerbenaConfig.cmake", r'if\(NOT "ON"\)', 'if(NOT "OFF")')
    expect(installed.refuses(prefixes=[prefix]),
           "this Verbena has no component etcd: it was built with -DVERBENA_ETCD=OFF")


# How a newer protobuf's CMake package makes its library. FILE is Debian's.
LIBPROTOBUF = """
add_library(protobuf::libprotobuf SHARED IMPORTED)
set_target_properties(protobuf::libprotobuf PROPERTIES IMPORTED_CONFIGURATIONS NOCONFIG
  IMPORTED_LOCATION_NOCONFIG "FILE" INTERFACE_LINK_LIBRARIES absl::strings)
"""
# How Conan's does, which may lead back to itself, too.
LIBPROTOBUF_OF_CONAN = """
add_library(protobuf::libprotobuf INTERFACE IMPORTED)
set_target_properties(protobuf::libprotobuf PROPERTIES INTERFACE_LINK_LIBRARIES
  "$<$<CONFIG:Release>:CONAN_LIB::all;CONAN_LIB::file>;$<$<CONFIG:Debug>:CONAN_LIB::all>")
add_library(CONAN_LIB::all INTERFACE IMPORTED)
set_target_properties(CONAN_LIB::all PROPERTIES INTERFACE_LINK_LIBRARIES
  "$<LINK_ONLY:protobuf::libprotobuf>;-lz;m")
add_library(CONAN_LIB::file UNKNOWN IMPORTED)
set_target_properties(CONAN_LIB::file PROPERTIES IMPORTED_LOCATION "FILE")
"""


def debian_libraries():
    return pathlib.Path(run("pkg-config", "--variable=libdir", "protobuf").strip())


def protobuf_package(installed, version="29.3.0", libprotobuf=LIBPROTOBUF, file="libprotobuf.so"):
    """A prefix with CMake packages as a newer protobuf and its Abseil install them. They call Debian's
    protobuf `version`, and Debian's Abseil 20250127."""
    prefix = pathlib.Path(tempfile.mkdtemp(dir=installed.scratch))
    libraries = debian_libraries()
    protoc = prefix / "protoc"
    # protoc leaves out the first number, which each language counts for itself, and a last 0.
    protoc.write_text(f"#!/bin/sh\necho libprotoc {re.sub(r'^[0-9][.]|[.]0$', '', version)}\n")
    protoc.chmod(0o755)
    words = f"""
include(CMakeFindDependencyMacro)
find_dependency(absl CONFIG)
{libprotobuf.replace("FILE", str(libraries / file))}
add_library(protobuf::libprotoc SHARED IMPORTED)
set_target_properties(protobuf::libprotoc PROPERTIES IMPORTED_LOCATION "{libraries}/libprotoc.so")
add_executable(protobuf::protoc IMPORTED)
set_target_properties(protobuf::protoc PROPERTIES IMPORTED_CONFIGURATIONS NOCONFIG
  IMPORTED_LOCATION_NOCONFIG "{protoc}")
"""
    for library, says, text in (("absl", "20250127", f'include("{libraries}/cmake/absl/abslConfig.cmake")\n'),
                                ("protobuf", version, words)):
        package = prefix / "lib" / "cmake" / library
        package.mkdir(parents=True)
        (package / f"{library}-config.cmake").write_text(text)
        # As protobuf's own: if a version is asked for, its first number must be the same.
        (package / f"{library}-config-version.cmake").write_text(
            f'set(PACKAGE_VERSION "{says}")\n'
            f'if("${{PACKAGE_FIND_VERSION_MAJOR}}" STREQUAL "{says.split(".", maxsplit=1)[0]}")\n'
            "  set(PACKAGE_VERSION_COMPATIBLE TRUE)\nendif()\n")
    return prefix


def cached(build, name):
    """The value of the variable `name` in CMake's cache."""
    found = re.search(rf"^{name}:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE)
    return pathlib.Path(found[1] if found else "")


# A build of Verbena that is only configured.
ONLY_LIBRARY = ("-DBUILD_SHARED_LIBS=OFF", "-DVERBENA_ETCD=OFF", "-DVERBENA_TOOLS=OFF")
UNTRIED = "Verbena is built and tested with protobuf 3.21; no test runs with 29.3.0"


def newer_protobuf(installed):
    """The CMake package of a newer protobuf is found beside Debian's protobuf, which has none."""
    prefix = protobuf_package(installed)
    package = prefix / "lib" / "cmake" / "protobuf"
    for option in (f"-DCMAKE_PREFIX_PATH={prefix}", f"-DProtobuf_DIR={package}", f"-Dprotobuf_DIR={package}"):
        build, output = installed.configure(*ONLY_LIBRARY, option, source=TOP)
        expect(output, UNTRIED, "tested with Abseil 20220623 and 20240722; no test runs with 20250127")
        expect(str(cached(build, "absl_DIR")), str(package.with_name("absl")))
        expect((build / "verbena.pc").read_text(), "protobuf = 29.3.0", "absl_status = 20250127")
    of_headers = protobuf_package(installed, version="5.29.3")
    expect((installed.configure(*ONLY_LIBRARY, source=TOP, prefixes=[of_headers])[0] / "verbena.pc").read_text(),
           "protobuf = 29.3.0")
    expect(installed.configure(*ONLY_LIBRARY, "-DProtobuf_PROTOC_EXECUTABLE=/usr/bin/protoc", source=TOP,
                               prefixes=[prefix], fails=True)[1],
           "/usr/bin/protoc is protoc '3.21", f"the library is protobuf 29.3.0 ({package})")
    # A project finds the same without a word, and is told of another that it names.
    copy = pathlib.Path(tempfile.mkdtemp(dir=installed.scratch)) / "prefix"
    shutil.copytree(installed.prefix, copy, copy_function=os.symlink)
    config = copy / installed.libraries.relative_to(installed.prefix) / "cmake" / "Verbena" / "VerbenaConfig.cmake"
    config.unlink()
    shutil.copy(build / "VerbenaConfig.cmake", config)
    user, _ = installed.configure("-DCOMPONENTS=verbena", prefixes=[copy])
    expect(f"{cached(user, 'Protobuf_DIR')} {cached(user, 'absl_DIR')}", f"{package} {package.with_name('absl')}")
    other = protobuf_package(installed, version="28.2.0")
    shutil.rmtree(other / "lib" / "cmake" / "absl")
    expect(installed.refuses("-DCOMPONENTS=verbena", prefixes=[copy, other]),
           f"this Verbena was built with protobuf 29.3.0, but {other}/lib/cmake/protobuf has 28.2.0")


def which_protobuf(installed):
    """A system's CMake package comes before its files, and what the user names before both."""
    system = f"-DCMAKE_SYSTEM_PREFIX_PATH={protobuf_package(installed)}"
    expect(installed.configure(*ONLY_LIBRARY, system, source=TOP)[1], UNTRIED)
    files = pathlib.Path(tempfile.mkdtemp(dir=installed.scratch))
    for name, place in (("include", "/usr/include/google"), ("lib", debian_libraries() / "libprotobuf.so")):
        (files / name).mkdir()
        (files / name / pathlib.Path(place).name).symlink_to(place)
    build, output = installed.configure(*ONLY_LIBRARY, system, source=TOP, prefixes=[files])
    if UNTRIED in " ".join(output.split()):
        raise RowFailed(f"The system's protobuf is taken, and not the one in {files}:\n{output}")
    expect(str(cached(build, "Protobuf_LIBRARY_RELEASE")), str(files))
    # One that cannot be used is not passed over.
    broken = protobuf_package(installed)
    (broken / "lib" / "cmake" / "absl" / "absl-config.cmake").write_text("set(absl_FOUND FALSE)\n")
    expect(installed.configure(*ONLY_LIBRARY, source=TOP, prefixes=[broken], fails=True)[1],
           "Verbena needs protobuf 3.21, but", "protobuf-config.cmake cannot be used",
           "dependency absl could not be found")


def shared_of_archives(installed):
    archive = debian_libraries() / "libprotobuf.a"
    refused = ("protobuf::libprotobuf is an archive", "-DBUILD_SHARED_LIBS=OFF")
    expect(installed.configure("-DBUILD_SHARED_LIBS=ON", f"-DProtobuf_LIBRARY={archive}",
                               f"-DProtobuf_LIBRARY_RELEASE={archive}", source=TOP, fails=True)[1], *refused)
    prefix = protobuf_package(installed, libprotobuf=LIBPROTOBUF_OF_CONAN, file=archive.name)
    expect(installed.configure("-DBUILD_SHARED_LIBS=ON", source=TOP, prefixes=[prefix], fails=True)[1], *refused)
    prefix = protobuf_package(installed, libprotobuf=LIBPROTOBUF_OF_CONAN)
    expect(installed.configure("-DBUILD_SHARED_LIBS=ON", source=TOP, prefixes=[prefix])[1], UNTRIED)


def altered(installed, file, old, new):
    """A prefix whose CMake package differs from the installed one in one text."""
    prefix = pathlib.Path(tempfile.mkdtemp(dir=installed.scratch)) / "prefix"
    package = prefix / "lib" / "cmake" / "Verbena"
    shutil.copytree(installed.libraries / "cmake" / "Verbena", package)
    text = (package / file).read_text()
    if not re.search(old, text):
        raise RowFailed(f"{file} has no '{old}'")
    (package / file).write_text(re.sub(old, new, text))
    return prefix


def two_versions(installed):
    other = altered(installed, "VerbenaConfigVersion.cmake",
                    r'(?<=PACKAGE_VERSION )"\d+\.\d+\.\d+"|"\d+\.\d+\.\d+"(?= MATCHES)', '"0.99.3"')
    # The version that is asked for is taken, whichever comes first.
    _, output = installed.configure("--debug-find-pkg=Verbena", prefixes=[other, installed.prefix])
    expect(output, f"{installed.libraries}/cmake/Verbena/VerbenaConfig.cmake")
    # If there is none, CMake says which there are.
    expect(installed.refuses(prefixes=[other]), "version: 0.99.3", "compatible with requested version")


def with_other_libraries(installed):
    for library, pattern in (("Abseil", r'(?<=absl_VERSION STREQUAL ")\w+'),
                             ("protobuf", r'(?<=\(verbena_built_with ")[\w.]+')):
        prefix = altered(installed, "VerbenaConfig.cmake", pattern, "1.2.3")
        expect(installed.refuses(prefixes=[prefix]), f"this Verbena was built with {library}",
               "docs/install.md")


def mistaken_generate(installed):
    """Mistakes in a call of verbena_generate()."""
    project = pathlib.Path(tempfile.mkdtemp(dir=installed.scratch)) / "project"
    (project / "inner").mkdir(parents=True)
    for folder in (project, project / "inner"):
        (folder / "there.proto").write_text('syntax = "proto3";\n')
    listfile = project / "inner" / "CMakeLists.txt"
    keywords = "Its arguments are TARGET, PROTOS, BASE_DIR, IMPORT_DIRS, MOCKS, SERVICES_NAMESPACE and EXPORT_MACRO."

    def refused(arguments, *words):
        listfile.write_text(f"""
cmake_minimum_required(VERSION 3.25)
project(mistaken LANGUAGES CXX)
find_package(Verbena ${{VERSION}} REQUIRED)
add_library(messages)
verbena_generate(TARGET messages {arguments})
""")
        expect(installed.configure(source=listfile.parent, fails=bool(words))[1], *words)

    refused("PROTO there.proto", "there is no argument 'PROTO'.", keywords)
    refused("PROTOS there.proto EXPROT_MACRO HERE", "'EXPROT_MACRO' behind PROTOS is neither a .proto file", keywords)
    refused("PROTOS ../there.proto",
            f"'../there.proto' lies outside of BASE_DIR, which is '{listfile.parent}'", "give a BASE_DIR")
    refused("PROTOS absent.proto", f"there is no file '{listfile.parent}/absent.proto'", "start at BASE_DIR")
    # Right: with a BASE_DIR above both.
    refused("PROTOS inner/there.proto there.proto BASE_DIR ..")
    # Variables of the caller are no arguments.
    listfile.write_text(listfile.read_text().replace("add_library", "set(mocks MOCKS)\nadd_library") + """
get_target_property(sources messages SOURCES)
string(REGEX MATCHALL "_mock|absent" wrong "${sources}")
message(STATUS "taken from the caller: '${wrong}'")
""")
    cached = [f"-D{name}={value}" for name, value in (("protos", "absent.proto"), ("options", "absent"))]
    expect(installed.configure(*cached, source=listfile.parent)[1], "taken from the caller: ''")


SHORT_ROWS = (("quick", "libverbena.so shows its own names alone", shows_its_own_names_alone),
              ("quick", "no paths of the machine that built it", tells_nothing_of_the_building_machine),
              ("quick", "documents are installed", has_documents),
              ("quick", "CMake: hello, with one protobuf", shared_hello))
OTHER_ROWS = (*(("shared", name, row) for _, name, row in SHORT_ROWS),
              ("shared", "the command verbena", has_the_command),
              ("shared", "CMake: a program with its own Boost.JSON", own_json),
              ("shared", "CMake: a program with an admin server", shows_status),
              ("shared", "CMake: a program that asks etcd", asks_etcd),
              ("shared", "make and pkg-config", made_hello),
              ("shared", "make and pkg-config: a program with an admin server", made_to_show_status),
              ("shared", "make and pkg-config: a program that asks etcd", made_to_ask_etcd),
              ("shared", "./dev new-service --cmake", new_service),
              ("shared", "two plugins", two_shared_plugins),
              ("shared", "refused: two plugins, libraries of two sonames", two_sonames),
              ("static", "CMake: hello", cmake_hello),
              ("static", "CMake: a program with its own Boost.JSON", own_json),
              ("static", "CMake: a program with an admin server", shows_status),
              ("static", "CMake: a program that asks etcd", asks_etcd),
              ("static", "make and pkg-config", made_hello),
              ("static", "make and pkg-config: a program with an admin server", made_to_show_status),
              ("static", "make and pkg-config: a program that asks etcd", made_to_ask_etcd),
              ("static", "add_subdirectory()", subdirectory),
              ("static", "FetchContent", fetched),
              ("static", "./dev new-service --cmake", new_service),
              ("static", "code follows what a .proto imports", follows_imports),
              ("static", "tests by ctest, and the examples", tests_and_examples),
              ("static", "refused: no protoc", without_protoc),
              ("static", "refused: another protoc", with_another_protoc),
              ("static", "refused: gcc 12 or older", with_an_old_gcc),
              ("static", "refused: no -fcoro-aligned-allocation", without_the_flag),
              ("static", "refused: no liburing", static_without_uring),
              ("static", "refused: no OpenSSL", without_openssl),
              ("static", "refused: a component that is not there", without_a_component),
              ("static", "refused: libverbena.so with archives in it", shared_of_archives),
              ("static", "refused: mistakes in verbena_generate()", mistaken_generate),
              ("static", "refused: two plugins with a copy each", two_static_plugins),
              ("static", "a CMake package of a newer protobuf", newer_protobuf),
              ("static", "which protobuf is taken", which_protobuf),
              ("static", "two versions installed", two_versions),
              ("static", "refused: other Abseil, other protobuf", with_other_libraries),
              ("shared+static", "refused: a plugin with a copy beside libverbena.so", static_beside_shared))


def report(kind, name, row, *arguments):
    """Runs a row, and prints a line of it. Returns whether it passed."""
    start = time.monotonic()
    try:
        row(*arguments)
        passed, why = True, ""
    except RowFailed as failure:
        passed, why = False, f"\n{failure}"
    print(f"{'passed' if passed else 'FAILED'}  {kind:7} {name}  {time.monotonic() - start:.0f} s{why}", flush=True)
    return passed


def main():
    parser = argparse.ArgumentParser(prog="tests/cmake/consumers.py", description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="all rows, of optimised libraries; otherwise those of a "
                        "quick build, which every ./dev test runs")
    parser.add_argument("--shared", type=pathlib.Path, metavar="PREFIX", help="take this installation of the shared "
                        "library instead of building it")
    parser.add_argument("--static", type=pathlib.Path, metavar="PREFIX", help="the same of the static one")
    parser.add_argument("--row", default="", metavar="TEXT", help="only rows whose lines have TEXT, such as static")
    options = parser.parse_args()
    missing = [program for program in ("cmake", "ninja", "pkg-config", "make", COMPILER)
               if not shutil.which(program)]
    if missing:
        sys.exit(f"tests/cmake/consumers.py: no {', no '.join(missing)}: run ./dev install-deps")
    rows = [row for row in (OTHER_ROWS if options.all or options.row else SHORT_ROWS)
            if options.row in f"{row[0]} {row[1]}"]
    passed = []
    installations = {}
    with tempfile.TemporaryDirectory(prefix="verbena consumers ") as directory:
        scratch = pathlib.Path(directory)
        builds = pathlib.Path(tempfile.mkdtemp(prefix="verbena_consumers_"))
        try:
            for kind in dict.fromkeys(kind for row in rows for kind in row[0].split("+")):
                prefix = getattr(options, kind, None) or scratch / kind
                if not getattr(options, kind, None):
                    passed.append(report(kind, "the library, built and installed", build_library, kind, prefix))
                    if not passed[-1]:
                        continue
                installations[kind] = Installation(prefix.resolve(), builds)
                passed += [report(kind, name, row, installations[kind]) for where, name, row in rows if where == kind]
            for where, name, row in rows:
                kinds = where.split("+")
                if len(kinds) > 1 and installations.keys() >= set(kinds):
                    passed.append(report(where, name, row, *(installations[kind] for kind in kinds)))
        finally:
            shutil.rmtree(builds)
    print(f"tests/cmake: {sum(passed)} passed, {len(passed) - sum(passed)} failed")
    return 0 if all(passed) and passed else 1


if __name__ == "__main__":
    sys.exit(main())
