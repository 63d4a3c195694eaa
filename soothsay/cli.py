"""The command line. Figures and JSON go to stdout; progress, warnings and errors to stderr."""

from __future__ import annotations

import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table
from rich.text import Text

from soothsay.audio.decode import decode_blocks, expected_seconds
from soothsay.audio.features import WINDOW_SECONDS
from soothsay.cli_bench import bench_app, verify
from soothsay.cli_options import (
    Dtype,
    Json,
    Language,
    Model,
    Nodes,
    Prompt,
    Threads,
    make_recogniser,
)
from soothsay.config import keep_freed_memory
from soothsay.console import (
    clear_errors,
    errors,
    print_json,
    print_report,
    progress,
    tables,
)
from soothsay.demo import run_demo
from soothsay.doctor import examine
from soothsay.fallback import Fallback
from soothsay.output import (
    FORMATS,
    TIMED_FORMATS,
    check_targets,
    render,
    shown,
    write_atomically,
    write_stdout,
)
from soothsay.targets.load import available, resolve
from soothsay.train.command import adapt_drafters, train_head
from soothsay.transcribe import (
    DEFAULT_NODES,
    Options,
    Recogniser,
    Transcription,
)
from soothsay.types import OptionError, Sampling, SoothsayError

app = typer.Typer(
    help="Speech recognisers served faster, without changing one token of what they write.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(bench_app, name="bench", no_args_is_help=True)
app.command("verify")(verify)
app.command("train-head")(train_head)
app.command("adapt")(adapt_drafters)


@app.callback()
def _main(
    verbose: Annotated[bool, typer.Option("--verbose", help="Log to stderr.")] = False,
) -> None:
    logging.basicConfig(level=logging.INFO if verbose else logging.ERROR, stream=sys.stderr)
    keep_freed_memory()


@app.command()
def transcribe(
    files: Annotated[list[Path], typer.Argument(help="Audio files of any common kind.")],
    model: Model = "base",
    speculate: Annotated[str, typer.Option(help="auto, off or history.")] = "auto",
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    fallback: Annotated[
        bool,
        typer.Option(
            "--fallback/--no-fallback",
            help="Decode windows again, at higher temperatures, whose text repeats itself or is "
            "hardly believed; no text where the model hears no speech.",
        ),
    ] = True,
    seed: Annotated[int | None, typer.Option(help="For temperatures above 0.")] = None,
    language: Language = None,
    prompt: Prompt = None,
    no_repeat_ngram: Annotated[
        int, typer.Option(min=0, help="Never write so many tokens in a row twice; 0: off.")
    ] = 0,
    task: Annotated[
        str, typer.Option(help="transcribe, or translate (into English).")
    ] = "transcribe",
    timestamps: Annotated[
        str | None,
        typer.Option(help="none, segment or word (default: segment where the format has times)."),
    ] = None,
    vad: Annotated[
        bool,
        typer.Option(
            "--vad/--no-vad", help="Decode only where somebody speaks, in windows cut at pauses."
        ),
    ] = True,
    format: Annotated[str, typer.Option(help=", ".join(FORMATS))] = "text",
    as_json: Json = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="Figures of each file, on stderr.")
    ] = False,
    output_dir: Annotated[Path | None, typer.Option(help="Write one file an input there.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Skip inputs already written.")] = False,
    dtype: Dtype = "auto",
    nodes: Nodes = DEFAULT_NODES,
    threads: Threads = None,
) -> None:
    """Transcribe audio files. A file that fails is named on stderr; the others go on."""
    with clear_errors():
        targets = check_targets(files, output_dir, "json" if as_json else format, resume)
        if as_json and format != "text":
            raise OptionError("--json has a shape of its own: give it or --format, not both")
        if seed is not None and temperature == 0.0:
            raise OptionError("--seed needs a --temperature above 0: greedy decoding draws nothing")
        options = Options(
            language=language,
            task=task,
            timestamps=timestamps or ("segment" if format in TIMED_FORMATS else "none"),
            sampling=Sampling(temperature=temperature, seed=seed),
            log_probs=format == "verbose_json",
            vad=vad,
            prompt=prompt,
            fallback=Fallback() if fallback else None,
            no_repeat_ngram=no_repeat_ngram,
        )
        recogniser = make_recogniser(model, threads, drafter=speculate, dtype=dtype, nodes=nodes)
        recogniser.check(options)
    failed = False
    for file in files:
        target = targets.get(file)
        if resume and target is not None and target.exists():
            continue
        try:
            done = _transcribe_one(recogniser, file, options)
            text = render(done, "json" if as_json else format, file)
            if target is not None:
                write_atomically(target, text)
            else:
                head = f"==> {shown(file)} <==\n" if len(files) > 1 and not as_json else ""
                with clear_errors():
                    write_stdout(head + text)
            if stats:
                _print_stats(file, done)
        except SoothsayError as error:
            failed = True
            errors.print(f"soothsay: {shown(file)}: {error}", markup=False, soft_wrap=True)
    if failed:
        raise typer.Exit(2)


def _transcribe_one(recogniser: Recogniser, file: Path, options: Options) -> Transcription:
    warnings: list[str] = []
    with progress(shown(Path(file.name)), round(expected_seconds(file)), "s") as update:
        done = recogniser.transcribe(
            decode_blocks(file, warnings), options, lambda seconds: update(round(seconds))
        )
    if not options.vad and options.timestamps != "none" and done.audio_seconds > WINDOW_SECONDS:
        warnings.append(f"with timestamps, words at the cuts every {WINDOW_SECONDS} s may be lost")
    for warning in warnings:
        _warn(file, warning)
    if not done.results:
        _warn(file, "no speech was heard (--no-vad decodes all of it)")
    return done


def _warn(file: Path, warning: str) -> None:
    errors.print(f"soothsay: {shown(file)}: warning: {warning}", markup=False, soft_wrap=True)


def _print_stats(file: Path, done: Transcription) -> None:
    table = Table("figure", "value", title=Text(shown(file)))
    for name, value in done.figures().items():
        table.add_row(name, f"{value:.3f}" if isinstance(value, float) else str(value))
    errors.print(table)


@app.command()
def demo(
    model: Model = "base",
    dtype: Dtype = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Transcribe the shipped clips plainly and speculatively, side by side."""
    with clear_errors():
        if threads:
            torch.set_num_threads(threads)
        report = run_demo(resolve(model), dtype, tables if not as_json else None)
    if as_json:
        print_json(report)
    if not report["identical"]:
        raise typer.Exit(1)


@app.command()
def models(
    download: Annotated[str | None, typer.Option(help="Fetch this one from the hub first.")] = None,
    as_json: Json = False,
) -> None:
    """The models known by name, and whether their weights are here."""
    if download is not None:
        with clear_errors():
            resolve(download, download=True)
    rows = available()
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    table = Table("model", "source", "installed", "licence")
    for row in rows:
        table.add_row(row.name, row.source, "yes" if row.installed else "no", row.licence)
    tables.print(table)


@app.command()
def doctor(as_json: Json = False) -> None:
    """What this machine offers, what is installed, and what to do about what is missing."""
    report = examine()
    print_report(report, as_json)
    if not report["ready"]:
        raise typer.Exit(1)
