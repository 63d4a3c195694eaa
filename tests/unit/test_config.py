import platform

import pytest
import torch

from soothsay.config import int8_products, keep_freed_memory, resolve_dtype
from soothsay.types import OptionError


def test_names() -> None:
    assert resolve_dtype("float32") == torch.float32
    assert resolve_dtype("auto") in (torch.float32, torch.bfloat16)
    if int8_products():
        assert resolve_dtype("int8") == torch.int8


def test_unknown_names_are_refused_with_those_known() -> None:
    with pytest.raises(OptionError, match=r"'int4'.*auto, float32, bfloat16, int8"):
        resolve_dtype("int4")


@pytest.mark.parametrize("missing", ["build", "cpu"])
def test_int8_is_refused_where_its_kernel_is_missing(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "cpu":
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    else:
        monkeypatch.setattr("soothsay.config.int8_products", lambda: False)
    with pytest.raises(OptionError, match=r"int8 needs .* choose float32"):
        resolve_dtype("int8")


def test_memory_is_kept_where_glibc_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())  # a C library without mallopt
    assert not keep_freed_memory()
