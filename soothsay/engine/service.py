"""The device thread: one thread owns the engine; everyone else sends messages and waits.

Submissions, aborts and shutdown are messages taken between steps, so no lock guards the engine.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType

from soothsay.drafters.drafter import Drafter
from soothsay.engine.engine import Engine
from soothsay.engine.request import Delta, Request, Result
from soothsay.engine.rollout import SEQUENCES, Rollout
from soothsay.types import SoothsayError


@dataclass(slots=True, eq=False)
class TokenStream:
    """The output of one request, as it is committed. Iterate it, or wait for `result`."""

    request: Request
    _service: EngineService
    _deltas: queue.SimpleQueue[Delta | Exception] = field(default_factory=queue.SimpleQueue)
    _result: Result | None = None
    _error: Exception | None = None  # why nothing more will come, however often one asks
    number: int | None = None  # set by the device thread when it takes the request

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """Newly committed tokens, step by step, until the sequence has ended."""
        while self._result is None:
            if self._error is not None:
                raise self._error
            delta = self._deltas.get()
            if isinstance(delta, Exception):
                self._error = delta
                continue
            self._result = delta.result
            if delta.tokens:
                yield delta.tokens

    def result(self) -> Result:
        """Wait for the end → the result. Raises what the engine said if it refused the request."""
        for _ in self:
            pass
        assert self._result is not None
        return self._result

    def abort(self) -> None:
        """Withdraw the request; the stream ends with finish reason `abort` soon after."""
        self._service._messages.put(_Abort(self))


@dataclass(frozen=True, slots=True)
class _Abort:
    stream: TokenStream


@dataclass(slots=True, eq=False)
class Probation:
    """What became of a drafter that was handed to a running engine."""

    _decided: Future[bool] = field(default_factory=Future)

    def kept(self, timeout: float | None = None) -> bool:
        """Wait until it is decided. TimeoutError after so many seconds; SoothsayError if the
        engine ended, or another drafter came, before."""
        return self._decided.result(timeout)


@dataclass(frozen=True, slots=True)
class _TryDrafter:
    drafter: Drafter | None
    sequences: int
    probation: Probation


class _Close:
    """The last message."""


class EngineService:
    """Runs an engine in its own thread. A context manager: leaving it aborts what still runs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._messages: queue.SimpleQueue[TokenStream | _Abort | _TryDrafter | _Close] = (
            queue.SimpleQueue()
        )
        self._streams: dict[int, TokenStream] = {}
        self._trial: tuple[Rollout, Probation] | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="soothsay-device", daemon=True)

    def __enter__(self) -> EngineService:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._messages.put(_Close())
        self._thread.join()

    def submit(self, request: Request) -> TokenStream:
        """Send a request to the device thread; returns at once, from any thread."""
        stream = TokenStream(request, self)
        self._messages.put(stream)
        if not self._thread.is_alive():
            self._fail_rest(SoothsayError("the engine is not running"))
        return stream

    def try_drafter(self, drafter: Drafter | None, sequences: int = SEQUENCES) -> Probation:
        """Draft new sequences with another drafter, and take it back if it does worse; from any
        thread. sequences: finished with the old one, then with the new one, before they are
        compared. No sequence is interrupted, and no output changes."""
        probation = Probation()
        self._messages.put(_TryDrafter(drafter, sequences, probation))
        if not self._thread.is_alive():
            self._fail_rest(SoothsayError("the engine is not running"))
        return probation

    def _run(self) -> None:
        reason = SoothsayError("the engine was shut down")
        try:
            while not self._closed:
                self._take_messages()
                if not self._engine.scheduler.idle:
                    self._deliver(self._engine.step())
                    self._watch_trial()
        except Exception as error:  # the device is gone: nobody may wait for ever
            reason = SoothsayError(f"the engine stopped: {type(error).__name__}: {error}")
            raise
        finally:
            self._fail_rest(reason)

    def _take_messages(self) -> None:
        """All messages there are; when nothing runs, wait for one."""
        while not self._messages.empty() or self._engine.scheduler.idle:
            message = self._messages.get()
            if isinstance(message, _Close):
                self._closed = True
                return
            if isinstance(message, _Abort):
                self._abort(message.stream)
            elif isinstance(message, _TryDrafter):
                self._start_trial(message)
            else:
                self._accept(message)

    def _start_trial(self, wanted: _TryDrafter) -> None:
        self._end_trial(SoothsayError("another drafter came before this one was judged"))
        try:
            rollout = Rollout(self._engine.drafting, wanted.drafter, wanted.sequences)
            self._trial = rollout, wanted.probation
            self._watch_trial()
        except Exception as error:  # whatever a caller hands in, the sequences go on
            self._trial = None
            wanted.probation._decided.set_exception(error)

    def _watch_trial(self) -> None:
        if self._trial is None:
            return
        rollout, probation = self._trial
        try:
            kept = rollout.watch()
        except Exception as error:
            self._trial = None
            probation._decided.set_exception(error)
            return
        if kept is not None:
            self._trial = None
            probation._decided.set_result(kept)

    def _end_trial(self, reason: SoothsayError) -> None:
        if self._trial is not None:
            self._trial[1]._decided.set_exception(reason)
            self._trial = None

    def _accept(self, stream: TokenStream) -> None:
        try:
            stream.number = self._engine.submit(stream.request)
        except Exception as error:  # whatever a caller hands in, the others go on
            stream._deltas.put(error)
        else:
            self._streams[stream.number] = stream

    def _abort(self, stream: TokenStream) -> None:
        if stream.number is None or stream.number not in self._streams:
            return  # already finished, or never accepted
        if result := self._engine.abort(stream.number):
            self._deliver([Delta(stream.number, (), result)])

    def _deliver(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            self._streams[delta.sequence]._deltas.put(delta)
            if delta.result is not None:
                del self._streams[delta.sequence]

    def _fail_rest(self, reason: SoothsayError) -> None:
        """Tell everyone still waiting, accepted or not, that nothing more will come."""
        self._end_trial(reason)
        for number in list(self._streams):
            self._streams.pop(number)._deltas.put(reason)
        while not self._messages.empty():
            message = self._messages.get()
            if isinstance(message, TokenStream):
                message._deltas.put(reason)
            elif isinstance(message, _TryDrafter):
                message.probation._decided.set_exception(reason)
