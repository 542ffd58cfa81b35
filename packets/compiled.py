"""Choice between a compiled kernel and its reference in plain Python.

Importing numba takes half a second and the first compilation some seconds, too much for little data. So a `Kernel` runs
its reference until the compiled functions are loaded; with ``auto`` this happens in a thread after `LOAD_AFTER_BYTES`
of input, and they are used from the next call on. CHECKMATE_KERNELS changes this: ``compiled`` loads them at the first
call, ``reference`` never.

Compiled code is cached on disk, in a folder named after the digest of the sources: numba itself checks only the file
that contains a function, and would reuse code that was compiled with another file's old constants. Missing code is
compiled by a separate process: numba's compiler holds the interpreter lock, and a shadow node whose capture waits for
that lock loses packets.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

LOAD_AFTER_BYTES = 32 << 20
"""Bytes processed by the references before the compiled kernels are loaded."""
_VARIABLE = "CHECKMATE_KERNELS"
_FOLDER = "kernels-"
_UNUSED_SECONDS = 30 * 86400
"""Seconds after which compiled code of other sources is removed."""
_COMPILED_MARK = "complete"


class Mode(StrEnum):
    """Values of CHECKMATE_KERNELS."""

    AUTO = "auto"
    COMPILED = "compiled"
    REFERENCE = "reference"


class _State:
    """State of the process."""

    def __init__(self) -> None:
        self.kernels: list[Kernel[Any, Any]] = []
        self.worked = 0
        self.loader: threading.Thread | None = None
        self.lock = threading.Lock()
        self.notice: str | None = None


def mode() -> Mode:
    """Return the value of CHECKMATE_KERNELS.

    Raises:
        ValueError: it is invalid.
    """
    word = os.environ.get(_VARIABLE, Mode.AUTO)
    try:
        return Mode(word)
    except ValueError:
        raise ValueError(f"{_VARIABLE} is {word!r}: it must be {', '.join(Mode)}") from None


class Kernel(Generic[P, R]):
    """A function over arrays with two implementations and equal results."""

    def __init__(
        self, reference: Callable[P, R], compiled: str, example: Callable[[], tuple[object, ...]] | None = None
    ) -> None:
        """Register it.

        Args:
            reference: implementation in plain Python or numpy.
            compiled: ``module:function``; the module is imported only when needed, and its functions are decorated with
                `jit`.
            example: returns small arguments of exactly the types used in calls: the loader calls the function with
                them, so that it is compiled before anyone waits for it.
        """
        self.reference = reference
        """The implementation in plain Python."""
        self._module, self._function = compiled.split(":")
        self._run = reference
        self._example = example
        with _state.lock:
            _state.kernels.append(self)
            # If the others are already loaded, load again for this one.
            _state.loader, _state.worked = None, 0

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the current implementation."""
        if _state.loader is None and mode() is Mode.COMPILED:
            load()
        return self._run(*args, **kwargs)

    @property
    def module(self) -> str:
        """Name of the module with the compiled function."""
        return self._module

    @property
    def registered_by(self) -> str:
        """Name of the module that registered it."""
        return (self._example or self.reference).__module__

    def compiled(self) -> Callable[P, R]:
        """Return the compiled function, importing it if necessary."""
        function: Callable[P, R] = getattr(import_module(self._module), self._function)
        return function

    def prepare(self) -> None:
        """Compile the function, or load it from the cache."""
        function: Callable[..., object] = self.compiled()
        if self._example is not None:
            function(*self._example())

    def use_compiled(self) -> None:
        """Use the compiled function from the next call on."""
        self._run = self.compiled()


_state = _State()


def count_input(size: int) -> None:
    """Count bytes of input; enough of them trigger loading the compiled kernels."""
    if _state.loader is None:
        _state.worked += size
        if _state.worked >= LOAD_AFTER_BYTES and mode() is Mode.AUTO:
            with _state.lock:
                if _state.loader is None:
                    # Not a daemon: an interpreter that exits while the compiler runs crashes.
                    _state.loader = threading.Thread(target=_load, name="load-kernels")
                    _state.loader.start()


def load() -> str | None:
    """Load the compiled kernels now, whatever the mode; return why the references stay in use, None if they do not."""
    with _state.lock:
        if _state.loader is None:
            _state.loader = threading.Thread(target=_load, name="load-kernels")
            _state.loader.start()
        loader = _state.loader
    loader.join()
    return _state.notice


def notice() -> str | None:
    """Return a line that says why the references run although compiled kernels were requested, None otherwise."""
    return _state.notice


def _load() -> None:
    try:
        kernels = list(_state.kernels)
        folder = _keep_compiled_code({kernel.module for kernel in kernels})
        if not (folder / _COMPILED_MARK).exists():
            _compile_elsewhere(sorted({kernel.registered_by for kernel in kernels}), folder)
        for kernel in kernels:
            kernel.prepare()
        for kernel in kernels:
            kernel.use_compiled()
    except Exception as error:  # numba can fail in many ways; the references then stay in use
        why = " ".join(str(error).split())
        _state.notice = f"packets are processed by plain Python, which is slower: no compiled kernels ({why})"


def _compile_elsewhere(modules: list[str], folder: Path) -> None:
    """Let another process compile the kernels of `modules` into `folder`."""
    script = (
        "import sys; from importlib import import_module; from packets import compiled;"
        "[import_module(name) for name in sys.argv[2:]]; compiled.prepare(sys.argv[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder), *modules],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise OSError(f"the compiler failed: {last[0]}")
    (folder / _COMPILED_MARK).touch()


def prepare(folder: str) -> None:
    """Compile every registered kernel, and cache the code in `folder`."""
    import numba

    numba.config.CACHE_DIR = folder  # type: ignore[attr-defined]
    for kernel in _state.kernels:
        kernel.prepare()


def _keep_compiled_code(modules: set[str]) -> Path:
    """Set numba's cache folder: beside the sources, or in the user's cache if that is read-only."""
    import numba

    digest = hashlib.sha256()
    folders = sorted({Path(str(find_spec(name).origin)).parent for name in modules})  # type: ignore[union-attr]
    for source in sorted(path for folder in folders for path in folder.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "checkmate"
    for base in (Path(__file__).parent / "__pycache__", cache):
        folder = base / f"{_FOLDER}{digest.hexdigest()[:16]}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            os.utime(folder)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            for other in base.glob(f"{_FOLDER}*"):
                if other.stat().st_mtime < time.time() - _UNUSED_SECONDS:
                    shutil.rmtree(other, ignore_errors=True)
            numba.config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]
            return folder
    raise OSError(f"neither {Path(__file__).parent} nor {cache} is writable")


def jit(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a kernel, or a function that it calls, without the interpreter lock; cached code is reused."""
    import numba

    compiled: Callable[P, R] = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return compiled
