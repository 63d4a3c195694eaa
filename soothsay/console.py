"""What commands share: where figures, progress and errors go. Figures and JSON are for stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from soothsay.output import flat, write_stdout
from soothsay.types import SoothsayError

errors = Console(stderr=True, highlight=False)
tables = Console(highlight=False)


@contextmanager
def clear_errors() -> Iterator[None]:
    """A SoothsayError becomes one line on stderr and exit status 2."""
    try:
        yield
    except SoothsayError as error:
        errors.print(f"soothsay: {error}", markup=False, soft_wrap=True)
        raise typer.Exit(2) from error


@contextmanager
def progress(label: str, total: float, unit: str) -> Iterator[Callable[[float], None]]:
    """A bar on a terminal, nothing elsewhere → a function that sets how much is done."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
    )
    with Progress(
        *columns, TimeRemainingColumn(), console=errors, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def counter(label: str, total: int) -> Iterator[Callable[[], None]]:
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        update(done)

    with progress(label, total, "clips") as update:
        yield advance


def print_json(report: Any) -> None:
    with clear_errors():
        write_stdout(json.dumps(report, ensure_ascii=False) + "\n")


def print_report(report: dict[str, Any], as_json: bool) -> None:
    """JSON, or the same as a table: nested figures under dotted names."""
    if as_json:
        print_json(report)
        return
    table = Table("figure", "value")
    for name, value in flat(report):
        table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
    tables.print(table)
