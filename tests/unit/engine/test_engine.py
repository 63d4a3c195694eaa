"""The engine against the slow reference: whatever drafts, and whoever runs beside, output stays."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from fixtures.lattices import toy_head
from fixtures.toy_whisper import END, SIZES, VOCAB, toy_features, toy_files

from soothsay.control.budget import FixedBudget
from soothsay.drafters.blend import BlendDrafter
from soothsay.drafters.drafter import Drafter
from soothsay.drafters.history import HistoryDrafter
from soothsay.drafters.lattice import LatticeDrafter, Signs
from soothsay.drafters.probe import AdversarialDrafter, OracleDrafter, ProbeState, RandomDrafter
from soothsay.engine.engine import Engine
from soothsay.engine.request import PromptChoice, Request
from soothsay.reference import Reference
from soothsay.speculate.filters import LogitFilter, NoRepeatNgram, SuppressAtBegin, SuppressTokens
from soothsay.speculate.tree import DraftTree
from soothsay.targets.whisper import WhisperTarget
from soothsay.types import FinishReason, OptionError, Price, Sampling

FILES = toy_files(1)
REFERENCE = Reference(FILES)
PROMPTS = [(1,), (1, 5), (1, 5, 9, 2), (1, 2, 3), (1, 7), (4, 4, 4), (1, 3), (2,)]
LATTICE = LatticeDrafter(  # random weights; prompts without 1 want timestamps, those with 9 nothing
    toy_head(5),
    torch.arange(2, VOCAB),
    FILES.tensors["model.decoder.embed_tokens.weight"],
    Signs(END, first_timestamp=14, no_timestamps=1, translate=9, stops=frozenset({3, 8})),
)
DRAFTERS: dict[str, Drafter] = {
    "history": HistoryDrafter(),
    "random": RandomDrafter(VOCAB, END, seed=3),
    "oracle 1.0": OracleDrafter(1.0, VOCAB, END),
    "oracle 0.6": OracleDrafter(0.6, VOCAB, END),
    "lattice": LATTICE,
    "blend": BlendDrafter([LATTICE, HistoryDrafter(), OracleDrafter(0.6, VOCAB, END)]),
} | {f"adversary {k}": AdversarialDrafter(k, VOCAB, END) for k in AdversarialDrafter.KINDS}


def engine(drafter: Drafter | None, nodes: int = 6, sequences: int = 8, **options) -> Engine:
    target = WhisperTarget(FILES, torch.float64)
    return Engine(target, drafter, FixedBudget(nodes), sequences, **options)


def request(number: int, **options) -> Request:
    prompt = PROMPTS[number % len(PROMPTS)]
    return Request(features=toy_features(number), prompt=prompt, end_token=END, **options)


_KNOWN: dict[tuple, list[int]] = {}


def expected(req: Request) -> list[int]:
    key = (req.features.numpy().tobytes(), req.prompt, req.filters, req.max_tokens)
    if key not in _KNOWN:
        _KNOWN[key] = REFERENCE.greedy(
            req.features, req.prompt, req.end_token, req.filters, max_tokens=req.max_tokens
        )
    return _KNOWN[key]


RULES: tuple[LogitFilter, ...] = (
    SuppressTokens([3, 11]),
    SuppressAtBegin([END, 6]),
    NoRepeatNgram(2),
)


def with_hints(requests: Sequence[Request]) -> list[Request]:
    return [replace(r, hint=expected(r)) for r in requests]


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    """Every second one under rules; all with the truth as hint, for drafters that use one."""
    return with_hints([request(n, filters=RULES if n % 2 else ()) for n in range(8)])


def test_the_toy_writes_texts_worth_testing(requests: list[Request]) -> None:
    texts = [expected(r) for r in requests]
    assert len({tuple(t) for t in texts}) == len(texts)
    assert sum(map(len, texts)) > 60
    assert any(len(t) < SIZES.max_target_positions - 6 for t in texts), "none ends by itself"


@pytest.mark.parametrize("nodes", [2, 6, 17])
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.filterwarnings("ignore")
def test_no_drafter_changes_output(requests: list[Request], name: str, nodes: int) -> None:
    results = engine(DRAFTERS[name], nodes).run(requests)
    for req, result in zip(requests, results, strict=True):
        assert list(result.tokens) == expected(req)
        ended = len(result.tokens) < SIZES.max_target_positions - len(req.prompt)
        assert result.finish is (FinishReason.STOP if ended else FinishReason.LENGTH)


@pytest.mark.parametrize("name", ["lattice", "blend"])
def test_a_lattice_drafts_to_the_last(
    requests: list[Request], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No drafter may fail unseen: the engine would go on without it."""
    running = engine(DRAFTERS[name])
    drafted = [result.stats.drafted for result in running.run(requests)]
    assert not caplog.records
    silent = [n for n, count in enumerate(drafted) if not count]
    assert silent == ([2] if name == "lattice" else [])  # the third prompt asks to translate
    assert running.stats.accepted > 0


@pytest.mark.parametrize("sequences", [1, 3])
def test_more_requests_than_places(requests: list[Request], sequences: int) -> None:
    results = engine(DRAFTERS["random"], sequences=sequences).run(requests)
    assert [list(r.tokens) for r in results] == [expected(req) for req in requests]


def test_packed_float32_writes_the_same(requests: list[Request]) -> None:
    target = WhisperTarget(FILES, torch.float32)
    results = Engine(target, DRAFTERS["oracle 0.6"], FixedBudget(6)).run(requests)
    assert [list(r.tokens) for r in results] == [expected(req) for req in requests]


def test_a_perfect_oracle_saves_forwards(requests: list[Request]) -> None:
    plain = engine(None).run(requests)
    ours = engine(DRAFTERS["oracle 1.0"]).run(requests)
    for one, other in zip(plain, ours, strict=True):
        assert one.stats.tokens == other.stats.tokens == one.stats.target_forwards
        assert other.stats.target_forwards == math.ceil(other.stats.tokens / 6)
        assert other.stats.accepted == sum(other.stats.accepted_per_depth)


@pytest.mark.parametrize("limit", [1, 2, 5])
@pytest.mark.parametrize("name", ["oracle 1.0", "adversary oversize", "random"])
def test_max_tokens_cuts_trees(name: str, limit: int) -> None:
    requests = with_hints([request(n, max_tokens=limit) for n in range(8)])
    for req, result in zip(requests, engine(DRAFTERS[name]).run(requests), strict=True):
        assert list(result.tokens) == expected(req)
        assert len(result.tokens) <= limit


def test_a_refused_run_leaves_nothing_behind(requests: list[Request]) -> None:
    running = engine(None)
    with pytest.raises(OptionError):
        running.run([requests[0], replace(requests[1], prompt=())])
    assert running.scheduler.idle


def test_speculate_false_decodes_plainly() -> None:
    (result,) = engine(DRAFTERS["oracle 1.0"]).run([request(0, speculate=False, hint=[1, 2])])
    assert result.stats.drafted == 0
    assert list(result.tokens) == expected(request(0))


def test_join_and_leave_between_steps(requests: list[Request]) -> None:
    running = engine(DRAFTERS["oracle 0.6"], sequences=3)
    numbers, results, deltas = {}, {}, {}
    waiting = list(requests)
    while waiting or not running.scheduler.idle:
        if waiting:  # one more joins at every step
            joining = waiting.pop(0)
            numbers[running.submit(joining)] = joining
        for delta in running.step():
            deltas.setdefault(delta.sequence, []).extend(delta.tokens)
            if delta.result:
                results[delta.sequence] = delta.result
    running.scheduler.check_integrity()
    for number, req in numbers.items():
        assert list(results[number].tokens) == expected(req) == deltas[number]


def test_abort_running_and_waiting(requests: list[Request]) -> None:
    running = engine(None, sequences=1)
    first, second, third = (running.submit(r) for r in requests[:3])
    running.step()
    assert running.abort(second).finish is FinishReason.ABORT
    assert running.abort(first) is None
    results = {d.sequence: d.result for d in running.step() if d.result}
    assert results[first].finish is FinishReason.ABORT
    assert list(results[first].tokens) == expected(requests[0])[:1]
    while not running.scheduler.idle:
        results |= {d.sequence: d.result for d in running.step() if d.result}
    assert list(results[third].tokens) == expected(requests[2])
    assert running.abort(first) is None
    running.scheduler.check_integrity()


class FailsLater:
    """A rule that breaks once some text is written."""

    def apply(self, logits: torch.Tensor, histories: Sequence[Sequence[int]]) -> None:
        if any(len(history) >= 2 for history in histories):
            raise RuntimeError("broken on purpose")


class ForbidsAll:
    def apply(self, logits: torch.Tensor, histories: Sequence[Sequence[int]]) -> None:
        logits.fill_(-math.inf)


@pytest.mark.parametrize("rule", [FailsLater(), ForbidsAll()])
def test_a_failing_sequence_fails_alone(rule: LogitFilter) -> None:
    requests = with_hints([request(n) for n in range(4)])
    requests[2] = request(2, filters=(rule,))
    running = engine(DRAFTERS["oracle 0.6"])
    results = running.run(requests)
    assert results[2].finish is FinishReason.ERROR
    assert results[2].error
    for n in (0, 1, 3):
        assert list(results[n].tokens) == expected(requests[n])
    assert [list(r.tokens) for r in running.run(requests[:2])] == [
        list(r.tokens) for r in results[:2]
    ]


def test_a_broken_segment_fails_alone() -> None:
    requests = [request(n) for n in range(3)]
    requests[1].features[0, 0] = math.nan
    results = engine(None).run(requests)
    assert results[1].finish is FinishReason.ERROR
    assert list(results[2].tokens) == expected(requests[2])


def test_prompt_choice_is_the_likeliest_of_its_alternatives() -> None:
    among, then = (4, 9, 17), (5, 2)
    for drafter in (None, DRAFTERS["oracle 0.6"]):
        for number in range(4):
            req = Request(
                features=toy_features(number),
                prompt=(1,),
                end_token=END,
                choice=PromptChoice(among, then),
                hint=[3, 4],
            )
            (result,) = engine(drafter).run([req])
            row = REFERENCE.logits(REFERENCE.encode(req.features), [1])[-1][list(among)]
            chosen = among[int(row.argmax())]
            assert result.prompt == (1, chosen, *then)
            assert result.choice_probability == pytest.approx(float(row.softmax(-1).max()))
            assert list(result.tokens) == REFERENCE.greedy(req.features, result.prompt, END)


@pytest.mark.parametrize("name", [None, "oracle 0.6"])
def test_log_probs_are_the_filtered_targets(name: str | None) -> None:
    (req,) = with_hints([request(1, filters=RULES, log_probs=True)])
    (result,) = engine(DRAFTERS[name] if name else None).run([req])
    hidden, tokens = REFERENCE.encode(req.features), [*result.tokens]
    if result.finish is FinishReason.STOP:
        tokens.append(END)
    assert len(result.log_probs) == len(tokens)
    for at, token in enumerate(tokens):
        row = REFERENCE.logits(hidden, [*req.prompt, *tokens[:at]])[-1:]
        for rule in RULES:
            rule.apply(row, [tokens[:at]])
        assert result.log_probs[at] == pytest.approx(float(row[0].log_softmax(-1)[token]), abs=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": ()}, "prompt is empty"),
        ({"prompt": (99,)}, "outside"),
        ({"prompt": (1,) * 48}, "no room"),
        ({"prompt": (1,), "max_tokens": 0}, "max_tokens"),
        ({"prompt": (1,), "features": torch.zeros(4, 7)}, "features"),
    ],
)
def test_impossible_requests_are_refused(options: dict, message: str) -> None:
    fields = {"features": toy_features(0), "end_token": END} | options
    running = engine(None)
    with pytest.raises(OptionError, match=message):
        running.submit(Request(**fields))
    assert running.scheduler.idle


class NearDrafter(RandomDrafter):
    """Two children, and two below the first, drawn from a q not far from the target's p."""

    def __init__(self, q: list[float]) -> None:
        super().__init__(VOCAB, END, seed=1)
        self._q = torch.tensor(q)

    def propose(self, state: ProbeState, price: Price) -> DraftTree:
        generator = torch.Generator().manual_seed(state.chance.getrandbits(60))
        drawn = [torch.multinomial(self._q, 2, generator=generator).tolist() for _ in range(2)]
        tokens, rows = (state.tokens[-1], *drawn[0], *drawn[1]), torch.zeros(5, VOCAB)
        rows[0] = rows[1] = self._q
        return DraftTree(tokens, (-1, 0, 0, 1, 1), (0.0,) * 5, (1.0, 0.5, 0.5, 0.2, 0.2), rows)


@pytest.mark.parametrize(
    ("drafter", "rule"),
    [
        (None, "traversal"),
        (RandomDrafter(VOCAB, END, seed=1), "traversal"),
        (LATTICE, "traversal"),
        (NearDrafter, "traversal"),
        (NearDrafter, "rejection"),
    ],
    ids=["plain", "ranked", "lattice", "traversal", "rejection"],
)
def test_sampled_pipeline_by_chi_square(drafter, rule: str) -> None:
    """The first two tokens of 1,600 sampled texts follow the target's warped distribution."""
    sampling = {"temperature": 1.5, "top_k": 6, "top_p": 0.95}
    prompt, features, samples = (1, 5), toy_features(5), 1600
    hidden = REFERENCE.encode(features)

    def warped(tokens: list[int]) -> list[float]:
        row = REFERENCE.logits(hidden, [*prompt, *tokens])[-1] / sampling["temperature"]
        order = sorted(range(VOCAB), key=lambda t: -float(row[t]))[: sampling["top_k"]]
        weights = {t: math.exp(float(row[t])) for t in order}
        total, mass, kept = sum(weights.values()), 0.0, {}
        for t in order:
            if mass >= sampling["top_p"]:
                break
            kept[t] = weights[t] / total
            mass += kept[t]
        return [kept.get(t, 0.0) / mass for t in range(VOCAB)]

    cells: dict[tuple[int, ...], float] = {}
    for first, p in enumerate(warped([])):
        if p and first == END:
            cells[(END,)] = p
        elif p:
            cells |= {(first, t): p * q for t, q in enumerate(warped([first])) if q}
    if drafter is NearDrafter:
        drafter = NearDrafter([0.7 * p + 0.3 / VOCAB for p in warped([])])
    running = engine(drafter, nodes=5, sampled_rule=rule)
    results = running.run(
        [
            Request(
                features=features,
                prompt=prompt,
                end_token=END,
                sampling=Sampling(seed=seed, **sampling),
                max_tokens=4,
            )
            for seed in range(samples)
        ]
    )
    texts = [(*r.tokens, END) if r.finish is FinishReason.STOP else r.tokens for r in results]
    counts = Counter(text[:2] for text in texts)
    assert counts.keys() <= cells.keys()
    if drafter is not None:
        assert running.stats.accepted > 50
    rare = {cell for cell, p in cells.items() if p * samples < 5}
    pooled = [(counts[c], p * samples) for c, p in cells.items() if c not in rare]
    pooled.append((sum(counts[c] for c in rare), sum(cells[c] for c in rare) * samples))
    pooled = [(seen, mean) for seen, mean in pooled if mean > 0]
    statistic = sum((seen - mean) ** 2 / mean for seen, mean in pooled)
    freedom = len(pooled) - 1
    # Wilson and Hilferty: chi-square's 99.9 % point, to a fraction of a percent.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3
    assert freedom >= 5
    assert statistic < limit
