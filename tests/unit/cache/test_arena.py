from __future__ import annotations

import pytest
import torch

from soothsay.cache.arena import Arena, ArenaShape

SHAPE = ArenaShape(
    layers=2,
    heads=3,
    head_width=4,
    slots=20,
    streams=2,
    encoder_positions=5,
    dtype=torch.float32,
    device=torch.device("cpu"),
)


def test_size_is_what_it_says() -> None:
    arena = Arena(SHAPE)
    tensors = (arena.self_k, arena.self_v, arena.cross_k, arena.cross_v)
    assert SHAPE.bytes == sum(t.numel() * t.itemsize for t in tensors)


def test_views_are_the_arena_itself() -> None:
    arena = Arena(SHAPE)
    views = arena.views(slot=6, committed=3, rows=2, stream=1)
    for layer in range(2):
        views.fresh_k[layer].fill_(layer + 1)
        views.fresh_v[layer].fill_(layer + 3)
        assert views.keys_t[layer].shape == (3, 4, 5)
        assert views.values[layer].shape == (3, 5, 4)
        assert views.cross_keys_t[layer].data_ptr() == arena.cross_k[layer, 1].data_ptr()
        assert views.cross_values[layer].data_ptr() == arena.cross_v[layer, 1].data_ptr()
        assert bool((views.keys_t[layer][:, :, 3:] == layer + 1).all())
        assert arena.self_k[layer].sum() == (layer + 1) * 3 * 2 * 4
        assert bool((arena.self_v[layer, :, 9:11] == layer + 3).all())


@pytest.mark.parametrize(
    ("sources", "destinations"), [([4, 6], [3, 4]), ([3, 4, 5], [4, 5, 6]), ([9], [2])]
)
def test_rows_move_even_where_they_overlap(sources: list[int], destinations: list[int]) -> None:
    arena = Arena(SHAPE)
    arena.self_k.normal_()
    arena.self_v.normal_()
    before_k, before_v = arena.self_k.clone(), arena.self_v.clone()
    arena.move_rows(torch.tensor(sources), torch.tensor(destinations))
    for slot in range(SHAPE.slots):
        origin = sources[destinations.index(slot)] if slot in destinations else slot
        assert torch.equal(arena.self_k[:, :, slot], before_k[:, :, origin])
        assert torch.equal(arena.self_v[:, :, slot], before_v[:, :, origin])
