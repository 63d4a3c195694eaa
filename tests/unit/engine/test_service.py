"""The device thread: many callers, one engine."""

from __future__ import annotations

import threading

import pytest
from fixtures.toy_whisper import END, VOCAB, toy_features, toy_files

from soothsay.control.budget import FixedBudget
from soothsay.drafters.probe import RandomDrafter
from soothsay.engine.engine import Engine
from soothsay.engine.request import Request
from soothsay.engine.service import EngineService, TokenStream
from soothsay.reference import Reference
from soothsay.targets.whisper import WhisperTarget
from soothsay.types import FinishReason, OptionError, SoothsayError

FILES = toy_files(1)
REFERENCE = Reference(FILES)


def make_engine(sequences: int = 4) -> Engine:
    drafter = RandomDrafter(VOCAB, END, seed=2)
    return Engine(WhisperTarget(FILES), drafter, FixedBudget(4), sequences)


def request(number: int, **options: object) -> Request:
    return Request(features=toy_features(number), prompt=(1, 5), end_token=END, **options)


def expected(number: int) -> list[int]:
    return REFERENCE.greedy(toy_features(number), (1, 5), END)


def test_callers_in_many_threads_get_their_own_text() -> None:
    found: dict[int, list[int]] = {}

    def call(service: EngineService, number: int) -> None:
        stream = service.submit(request(number))
        streamed = [token for tokens in stream for token in tokens]
        assert tuple(streamed) == stream.result().tokens
        found[number] = streamed

    with EngineService(make_engine()) as service:
        callers = [threading.Thread(target=call, args=(service, n)) for n in range(10)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert found == {n: expected(n) for n in range(10)}


def test_a_refused_request_raises_in_its_caller_alone() -> None:
    with EngineService(make_engine()) as service:
        bad, good = service.submit(request(0, max_tokens=0)), service.submit(request(1))
        with pytest.raises(OptionError, match="max_tokens"):
            bad.result()
        assert list(good.result().tokens) == expected(1)
        with pytest.raises(OptionError, match="max_tokens"):
            bad.result()  # asked again, it says so again
        with pytest.raises(AttributeError):
            service.submit("rubbish").result()  # type: ignore[arg-type]
        assert list(service.submit(request(2)).result().tokens) == expected(2)


def test_abort_ends_the_stream_and_frees_its_place() -> None:
    engine = make_engine(sequences=1)
    with EngineService(engine) as service:
        streams = [service.submit(request(n)) for n in range(3)]
        for stream in streams[:2]:
            stream.abort()
        finishes = [stream.result().finish for stream in streams]
        assert finishes[1] is FinishReason.ABORT
        # The first may have ended by itself before the message arrived.
        assert finishes[0] in (FinishReason.ABORT, FinishReason.STOP, FinishReason.LENGTH)
        assert list(streams[2].result().tokens) == expected(2)
        streams[2].abort()  # after the end: nothing happens
        assert list(service.submit(request(3)).result().tokens) == expected(3)
    engine.scheduler.check_integrity()


def test_leaving_tells_those_who_wait() -> None:
    waiting: TokenStream
    with EngineService(make_engine(sequences=1)) as service:
        waiting = [service.submit(request(n)) for n in range(30)][-1]
    with pytest.raises(SoothsayError, match="shut down"):
        waiting.result()
    with pytest.raises(SoothsayError, match="not running"):
        service.submit(request(0)).result()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_broken_engine_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()

    def broken() -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(engine, "step", broken)
    with EngineService(engine) as service:
        with pytest.raises(SoothsayError, match="the device is gone"):
            service.submit(request(0)).result()
        service._thread.join()
        with pytest.raises(SoothsayError, match="not running"):
            service.submit(request(1)).result()
