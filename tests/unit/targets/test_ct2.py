"""The container's reader against an independent writer, and against hostile files."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from fixtures.container import TIED, Variables, container_variables, text, write_container
from fixtures.toy import tiny_whisper_files
from hypothesis import given
from hypothesis import strategies as st

from soothsay.targets.ct2 import read_container, whisper_tensors
from soothsay.types import WeightsError

FILES = tiny_whisper_files(seed=1)
VARIABLES = container_variables(FILES)
CONTAINER = bytes(write_container(VARIABLES))
SMALL = bytes(
    write_container({"a/b": np.arange(6, dtype=np.float16).reshape(2, 3)}, {"x": "a/b"}, "Any")
)


def edited(**changes: np.ndarray | None) -> bytearray:
    """The toy's container with variables replaced (or, by None, left out); `__` stands for /."""
    variables: Variables = dict(VARIABLES)
    for key, array in changes.items():
        name = key.replace("__", "/")
        if array is None:
            del variables[name]
        else:
            variables[name] = array
    return write_container(variables)


@pytest.mark.parametrize("dtype", ["float32", "int8", "int16", "int32", "float16"])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (2, 3, 4), (1, 2, 1, 2)])
def test_reads_what_was_written(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(-99, 99, shape).astype(dtype)
    read = read_container(write_container({"odd": array, "same": array}, {}, "Any"))
    assert read.spec == "Any"
    for tensor in read.variables.values():
        assert tensor.numpy().dtype == array.dtype
        assert tensor.shape == shape
        np.testing.assert_array_equal(tensor.numpy(), array)


def test_splits_fused_products_under_the_names_of_transformers() -> None:
    tensors, encoder_heads, decoder_heads = whisper_tensors(read_container(bytearray(CONTAINER)))
    assert (encoder_heads, decoder_heads) == (2, 2)
    assert tensors.keys() == FILES.tensors.keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == torch.float16
        assert tensor.equal(FILES.tensors[name]), name


def test_tensors_outlive_and_do_not_alias_the_buffer() -> None:
    buffer = bytearray(CONTAINER)
    tensors, _, _ = whisper_tensors(read_container(buffer))
    buffer[:] = bytes(len(buffer))
    for name, tensor in tensors.items():
        assert tensor.equal(FILES.tensors[name]), name


def test_facts_that_only_some_converters_write_are_accepted() -> None:
    zero = np.array(0, np.int8)
    whisper_tensors(read_container(edited(decoder__alibi=zero, decoder__scale_alibi=zero)))


# What describes every Whisper, a converter may leave out.
NEEDED = VARIABLES.keys() - {"decoder/activation", "decoder/pre_norm", "decoder/alignment_layer"}


@pytest.mark.parametrize("name", sorted(NEEDED))
def test_a_missing_tensor_is_named(name: str) -> None:
    with pytest.raises(WeightsError, match=name):
        whisper_tensors(read_container(edited(**{name: None})))


def test_a_surplus_tensor_is_named() -> None:
    surplus = np.ones(3, np.float16)
    with pytest.raises(WeightsError, match="encoder/layer_0/extra"):
        whisper_tensors(read_container(edited(encoder__layer_0__extra=surplus)))


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("decoder/activation", np.array(0, np.int8), "decoder/activation"),
        ("decoder/alibi", np.array(1, np.int8), "decoder/alibi"),
        ("encoder/num_heads", np.array([2, 2], np.int16), "encoder/num_heads"),
        ("encoder/num_heads", np.array(2, np.float32), "encoder/num_heads"),
        ("encoder/layer_0/ffn/linear_0/weight", np.array(1, np.float16), "ffn/linear_0"),
        ("encoder/layer_0/ffn/linear_0/bias", np.ones((1, 64), np.float16), "ffn/linear_0"),
        (
            "decoder/layer_1/attention/linear_1/weight",
            np.ones((63, 32), np.float16),
            "attention/linear_1",
        ),
    ],
)
def test_another_architecture_is_refused(name: str, array: np.ndarray, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        whisper_tensors(read_container(edited(**{name: array})))


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("encoder/layer_1/self_attention/linear_0/bias", 32),  # q, k, v: k is the second of three
        ("decoder/layer_0/self_attention/linear_0/bias", 63),
        ("decoder/layer_1/attention/linear_1/bias", 0),  # k, v: k is the first of two
    ],
)
def test_a_key_bias_is_refused(name: str, row: int) -> None:
    bias = VARIABLES[name].copy()
    bias[row] = 0.5
    with pytest.raises(WeightsError, match="key bias"):
        whisper_tensors(read_container(edited(**{name: bias})))


@pytest.mark.parametrize(
    "aliases", [{}, {"decoder/projection/weight": "other"}, {**TIED, "encoder/x": "encoder/y"}]
)
def test_an_untied_output_projection_is_refused(aliases: dict[str, str]) -> None:
    with pytest.raises(WeightsError, match="output projection"):
        whisper_tensors(read_container(write_container(VARIABLES, aliases)))


def test_another_spec_is_refused() -> None:
    with pytest.raises(WeightsError, match="TransformerSpec"):
        whisper_tensors(read_container(write_container(VARIABLES, spec="TransformerSpec")))


def test_every_truncation_is_refused() -> None:
    read_container(bytearray(SMALL))
    for length in range(len(SMALL)):
        with pytest.raises(WeightsError, match="ends at byte"):
            read_container(bytearray(SMALL[:length]))


def test_bytes_behind_the_end_are_refused() -> None:
    with pytest.raises(WeightsError, match="behind its end"):
        read_container(bytearray(SMALL + b"\0"))


HEAD = struct.pack("<I", 6) + text("Any") + struct.pack("<I", 3)
HUGE = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (struct.pack("<I", HUGE), "variables"),
        (struct.pack("<II", 0, HUGE), "aliases"),
        (struct.pack("<IH", 1, 0xFFFF), "ends at byte"),
        (struct.pack("<IHB", 1, 1, 0) + bytes([255]), "rank 255"),
        (
            struct.pack("<I", 1) + text("a") + struct.pack("<BIBI", 1, HUGE // 2, 4, HUGE - 1),
            "ends at byte",
        ),
        (
            struct.pack("<I", 1) + text("a") + struct.pack("<BIIIIBI", 4, *[HUGE] * 4, 0, HUGE),
            "bytes for shape",
        ),
        (
            struct.pack("<I", 1) + text("a") + struct.pack("<BIIIIBI", 4, 0, *[HUGE] * 3, 0, 0),
            "a is empty",
        ),
        (struct.pack("<I", 1) + text("a") + struct.pack("<BIBI", 1, 1, 9, 1), "unknown dtype 9"),
        (struct.pack("<IH", 1, 1) + b"\xff" + bytes(20), "not text"),
        (struct.pack("<I", 1) + text("two\nlines") + bytes(20), "not text"),
    ],
)
def test_declared_sizes_are_not_believed(body: bytes, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        read_container(bytearray(HEAD + body))


def test_the_same_name_twice_is_refused() -> None:
    one = write_container({"a": np.ones(1, np.float16)}, {}, "Any")
    entry = bytes(one[len(HEAD) + 4 : -4])
    with pytest.raises(WeightsError, match="a stands in it twice"):
        read_container(bytearray(HEAD + struct.pack("<I", 2) + entry * 2 + struct.pack("<I", 0)))
    pair = text("x") + text("a")
    with pytest.raises(WeightsError, match="alias x stands in it twice"):
        read_container(bytearray(HEAD + struct.pack("<II", 0, 2) + pair * 2))


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(WeightsError, match="version 7"):
        read_container(bytearray(struct.pack("<I", 7) + SMALL[4:]))


# Places where structure is: hitting the 100 kB of weights alone would test nothing.
STRUCTURE = [at for name in VARIABLES for at in [CONTAINER.index(text(name))]]
EDITS = st.tuples(
    st.one_of(
        st.integers(0, len(CONTAINER) - 1),
        st.tuples(st.sampled_from(STRUCTURE), st.integers(-8, 80)).map(sum),
    ),
    st.sampled_from(["set", "insert", "delete", "cut"]),
    st.binary(min_size=1, max_size=6),
)


@given(st.lists(EDITS, min_size=1, max_size=4))
def test_a_mutated_container_gives_tensors_or_a_clear_error(
    edits: list[tuple[int, str, bytes]],
) -> None:
    data = bytearray(CONTAINER)
    for at, kind, patch in edits:
        if kind == "set":
            data[at : at + len(patch)] = patch
        elif kind == "insert":
            data[at:at] = patch
        elif kind == "delete":
            del data[at : at + len(patch)]
        else:
            del data[at:]
    try:
        tensors, _, _ = whisper_tensors(read_container(data))
    except WeightsError as error:
        message = str(error)
    else:
        assert tensors.keys() == FILES.tensors.keys()
        return
    assert message.isprintable()


@given(st.binary(max_size=300))
def test_noise_behind_a_valid_head_gives_a_clear_error(noise: bytes) -> None:
    try:
        container = read_container(bytearray(HEAD + noise))
    except WeightsError:
        return
    with pytest.raises(WeightsError):
        whisper_tensors(container)
