"""The targets that BUILD files declare, found by running the files as Python.

Starlark is almost a subset of Python. Names that a file does not define stand for objects that
allow everything and do nothing, so that a .bzl file can be read whose rules nobody runs. Macros of
this workspace are run; targets that they declare count as their callers' packages'.
"""

import ast
import builtins
import dataclasses
import functools
import re

import tree


@dataclasses.dataclass(frozen=True)
class Target:
    package: str
    rule: str
    name: str
    arguments: dict = dataclasses.field(compare=False)

    def label(self):
        return f"//{self.package}:{self.name}"

    def files(self, argument):
        """The source files among `argument`, a list of labels, relative to the workspace."""
        paths = (self._path(label) for label in self.arguments.get(argument) or [])
        return [path for path in paths if tree.has(path)]

    def labels(self, argument):
        """The labels of this workspace in `argument`, in full."""
        return [self._full(label) for label in self.arguments.get(argument) or []
                if not label.startswith("@")]

    def _full(self, label):
        if label.startswith("//"):
            return label if ":" in label else f"{label}:{label.rsplit('/', 1)[-1]}"
        return f"//{self.package}:{label.lstrip(':')}"

    def _path(self, label):
        package, name = self._full(label)[2:].split(":")
        return f"{package}/{name}"


def _matches(name, pattern):
    """Whether Bazel's glob() takes `name` for `pattern`: * stays within a folder, ** does not."""
    parts = re.split(r"(\*\*/|\*\*|\*)", pattern)
    words = {"**/": r"(?:.*/)?", "**": r".*", "*": r"[^/]*"}
    return re.fullmatch("".join(words.get(part) or re.escape(part) for part in parts), name) is not None


class _Anything:
    """Stands for a name that no file here defines."""

    def __call__(self, *_, **__):
        return self

    def __getattr__(self, _):
        return self

    def __getitem__(self, _):
        return self

    def __iter__(self):
        return iter(())

    def __add__(self, other):
        return other

    def __radd__(self, other):
        return other


class _Native:
    """The rules and functions that Bazel itself has, for one package."""

    def __init__(self, package, targets):
        self._package = package
        self._targets = targets

    def package_name(self):
        return self._package

    def glob(self, include, exclude=(), **_):
        prefix = self._package + "/"
        names = [name.removeprefix(prefix) for name in tree.files() if name.startswith(prefix)]
        return [name for name in names
                if any(_matches(name, pattern) for pattern in include)
                and not any(_matches(name, pattern) for pattern in exclude)]

    def existing_rules(self):
        return {target.name: {"kind": target.rule,
                              "srcs": [f":{source.lstrip(':')}" for source in target.arguments.get("srcs") or []]}
                for target in self._targets}

    def select(self, branches, **_):
        return branches.get("//conditions:default", [])

    def __getattr__(self, rule):
        def declare(name=None, **arguments):
            if name is not None:
                self._targets.append(Target(self._package, rule, name, arguments))
        return declare


def _run(path, native, rules):
    """Runs the file `path`. Returns what it defines. `rules`: whether names are rules there."""
    code = ast.parse(tree.text(path), path)
    scope = {"native": native, "select": native.select, "glob": native.glob}

    def load(label, *names, **renamed):
        package, file = label.removeprefix("//").rsplit(":", 1)
        package = package or path.rsplit("/", 1)[0]
        wanted = {**{name: name for name in names}, **renamed}
        if not label.startswith("@"):
            loaded = _run(f"{package}/{file}", native, rules=False)
            scope.update({name: loaded[theirs] for name, theirs in wanted.items()})

    scope["load"] = load
    for node in ast.walk(code):
        if isinstance(node, ast.Name) and not hasattr(builtins, node.id):
            scope.setdefault(node.id, getattr(native, node.id) if rules else _Anything())
    exec(compile(code, path, "exec"), scope)  # pylint: disable=exec-used
    return scope


@functools.lru_cache(maxsize=None)
def targets(package):
    """The targets of the BUILD file in the folder `package`."""
    found = []
    _run(f"{package}/BUILD", _Native(package, found), rules=True)
    return found


def packages(folder):
    """The packages of this workspace in and below `folder`."""
    files = tree.files()
    workspaces = [name.removesuffix("WORKSPACE") for name in files if name.endswith("/WORKSPACE")]
    return [name.removesuffix("/BUILD") for name in files
            if name.startswith(folder + "/") and name.endswith("/BUILD")
            and not any(name.startswith(workspace) for workspace in workspaces)]
