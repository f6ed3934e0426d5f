"""The rows of ./dev toolchains: a Debian, a compiler, and how it compiles."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mode:
    """How a row compiles: CMake's build type, flags in the place of those of that type, flags and options besides."""

    build_type: str
    of_type: str
    besides: str = ""
    settings: tuple = ()

    def options(self, more=""):
        """What CMake is configured with, also for programs that use the library."""
        flags = " ".join(word for word in (self.besides, more) if word)
        return [f"-DCMAKE_BUILD_TYPE={self.build_type}", f"-DCMAKE_CXX_FLAGS_{self.build_type.upper()}={self.of_type}",
                f"-DCMAKE_CXX_FLAGS={flags}", *self.settings]

    def flags(self):
        return f"{self.of_type} {self.besides}".strip()


MODES = {
    "O0": Mode("Debug", "-O0"),
    "O2": Mode("Release", "-O2 -DNDEBUG"),
    # Debian's Abseil was compiled without asan. Headers that are precompiled would come behind the one that says so.
    "asan": Mode("Debug", "-O0 -g1", "-fsanitize=address -fno-omit-frame-pointer "
                 "-include /verbena/tests/toolchains/abseil_without_asan.h",
                 ("-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON",)),
}

# What compilers want of the linker. Debian 13's g++-13 links a libstdc++ of its own, which lacks symbols that Debian's
# libraries, GoogleTest's archive among them, have from gcc 14's. That one is there when a program runs: it is linked, too.
LINKING = {"g++-13": "-L/usr/lib/gcc/x86_64-linux-gnu/14"}

# What a row does: everything; libraries of one compiler with programs of another; library, tests and hello.
WHOLE, MIXED, SHORT = "whole", "mixed", "short"


@dataclasses.dataclass(frozen=True)
class Row:
    """What is built, and how. `compiler` is a program's name; "g++" and "clang++" are the root's newest."""

    name: str
    suite: str
    compiler: str
    mode: str
    kind: str = WHOLE
    # Whether a failure fails the run. A row that does not gate runs only if it is named.
    gates: bool = True

    def is_clang(self):
        return self.compiler.startswith("clang++")


# The row whose instructions the others are compared with runs first.
REFERENCE = "trixie-clang19-O2"
ROWS = (
    Row(REFERENCE, "trixie", "clang++-19", "O2"),
    Row("trixie-g++14-O2", "trixie", "g++-14", "O2"),
    Row("trixie-g++14-O0", "trixie", "g++-14", "O0"),
    Row("trixie-g++14-asan", "trixie", "g++-14", "asan"),
    Row("trixie-g++13-O2", "trixie", "g++-13", "O2"),
    Row("trixie-mixed", "trixie", "", "O2", kind=MIXED),
    Row("sid-g++-O2", "sid", "g++", "O2", kind=SHORT, gates=False),
    Row("sid-clang-O2", "sid", "clang++", "O2", kind=SHORT, gates=False),
    Row("sid-g++15-asan", "sid", "g++-15", "asan", kind=SHORT, gates=False),
)


class Unknown(Exception):
    """A name that is no row's."""


def by_name(name):
    return next(row for row in ROWS if row.name == name)


def matching(name):
    """The rows that `name` stands for: one, or all whose names begin with it and a dash."""
    return [row for row in ROWS if row.name == name or row.name.startswith(f"{name}-")]


def select(names):
    """The rows that are named, in their order; without names those that gate."""
    for name in names:
        if not matching(name):
            raise Unknown(f"there is no row '{name}'; rows: {', '.join(row.name for row in ROWS)}")
    chosen = {row.name for name in names for row in matching(name)}
    return [row for row in ROWS if (row.name in chosen if names else row.gates)]
