"""The command line on a toy model: what goes where, what is refused, and with which status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import wave
from pathlib import Path

import pytest
from fixtures.model_directory import write_toy_model
from typer.testing import CliRunner, Result

from soothsay.bench.workload import CLIPS, read_manifest
from soothsay.cli import app

SHORTEST, NEXT = sorted(read_manifest(CLIPS), key=lambda clip: clip.duration or 0.0)[:2]
CLIP, OTHER = SHORTEST.audio, NEXT.audio

START = "from soothsay.cli import app; app()"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_toy_model(tmp_path_factory.mktemp("toy")))


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


NOTICE = "soothsay: no head ships for "


def said(stderr: str) -> list[str]:
    """The lines on stderr, but for the one that toy weights have no head."""
    return [line for line in stderr.splitlines() if not line.startswith(NOTICE)]


def one_line(result: Result) -> str:
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = said(result.stderr)
    return line


def test_a_target_without_a_head_is_told_of_once(model: str) -> None:
    result = run("transcribe", "--model", model, CLIP, CLIP)
    assert result.exit_code == 0
    assert result.stderr.count("no head ships for") == 1
    assert "soothsay train-head makes one" in result.stderr
    plain = run("transcribe", "--model", model, "--speculate", "history", CLIP)
    assert plain.stderr == ""


def test_json_is_one_object_a_file_and_nothing_else(model: str) -> None:
    result = run("transcribe", "--model", model, "--json", CLIP, OTHER)
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(rows) == 2
    for row in rows:
        assert row.keys() == {"audio", "text", "language", "segments", "stats"}
        assert row["stats"]["tokens"] > 0
        assert row["stats"]["tokens_per_forward"] == pytest.approx(
            row["stats"]["tokens"] / row["stats"]["target_forwards"]
        )
        assert row["text"] == "".join(segment["text"] for segment in row["segments"]).strip()
    assert [row["audio"] for row in rows] == [str(CLIP), str(OTHER)]
    assert rows[0]["stats"]["audio_seconds"] == pytest.approx(SHORTEST.duration, abs=0.05)


def test_speculation_changes_nothing(model: str) -> None:
    texts = [
        run("transcribe", "--model", model, "--speculate", drafter, "--dtype", "float32", CLIP)
        for drafter in ("off", "auto", "random", "adversarial:deep")
    ]
    assert {result.exit_code for result in texts} == {0}
    assert len({result.stdout for result in texts}) == 1


def test_a_bad_file_is_named_and_the_others_go_on(model: str, tmp_path: Path) -> None:
    empty, text = tmp_path / "empty.wav", tmp_path / "text.wav"
    empty.touch()
    text.write_text("not audio\n" * 50)
    missing = tmp_path / "missing.wav"
    result = run("transcribe", "--model", model, empty, CLIP, text, missing, tmp_path)
    assert result.exit_code == 2
    assert str(CLIP) in result.stdout
    lines = said(result.stderr)
    assert len(lines) == 4
    for line, path in zip(lines, (empty, text, missing, tmp_path), strict=True):
        assert line.startswith(f"soothsay: {path}: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nowhere"], "nowhere"),
        (["--language", "xx"], "unknown language 'xx'"),
        (["--task", "sing"], "unknown task 'sing'"),
        (["--task", "translate"], "English only"),
        (["--timestamps", "letter"], "unknown timestamps 'letter'"),
        (["--format", "doc"], "unknown format 'doc'"),
        (["--temperature", "-1"], "temperature"),
        (["--speculate", "magic"], "unknown drafter 'magic'"),
        (["--dtype", "float8"], "unknown dtype 'float8'"),
        (["--resume"], "--output-dir"),
        (["--seed", "1"], "--temperature above 0"),
        (["--seed", str(2**70), "--temperature", "1"], "seed must lie"),
        (["--language", ""], "language is empty"),
        (["--prompt", "word " * 2000, "--temperature", "-1"], "temperature"),
        (["--json", "--format", "srt"], "--json has a shape of its own"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    model: str, arguments: list[str], message: str
) -> None:
    given = [] if "--model" in arguments else ["--model", model]
    assert message in one_line(run("transcribe", *given, *arguments, CLIP))


@pytest.mark.parametrize(
    ("format", "beginning"),
    [
        ("srt", "1\n00:00:0"),
        ("tsv", "start\tend\ttext\n"),
        ("vtt", "WEBVTT\n\n00:00:0"),
        ("verbose_json", '{"task": "transcribe"'),
    ],
)
def test_formats(model: str, format: str, beginning: str) -> None:
    arguments = ["transcribe", "--model", model, "--format", format]
    result = run(*arguments, CLIP)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(beginning)


def test_silence_gives_no_text_and_says_so(model: str, tmp_path: Path) -> None:
    silence = tmp_path / "silence.wav"
    with wave.open(str(silence), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(bytes(2 * 32_000))
    result = run("transcribe", "--model", model, silence)
    assert (result.exit_code, result.stdout) == (0, "\n")
    (line,) = said(result.stderr)
    assert "no speech was heard" in line
    decoded = run("transcribe", "--model", model, "--no-vad", silence)
    assert len(decoded.stdout) > 1


def test_output_directory_and_resume(model: str, tmp_path: Path) -> None:
    arguments = ["transcribe", "--model", model, "--output-dir", tmp_path / "out", CLIP, OTHER]
    assert run(*arguments).stdout == ""
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert written == sorted([f"{CLIP.stem}.txt", f"{OTHER.stem}.txt"])
    kept = tmp_path / "out" / f"{CLIP.stem}.txt"
    kept.write_text("kept\n")
    (tmp_path / "out" / f"{OTHER.stem}.txt").unlink()
    assert run(*arguments, "--resume").exit_code == 0
    assert kept.read_text() == "kept\n"
    assert (tmp_path / "out" / f"{OTHER.stem}.txt").stat().st_size > 1


def test_two_inputs_for_one_output_are_refused(model: str, tmp_path: Path) -> None:
    result = run(
        "transcribe", "--model", model, "--output-dir", tmp_path, CLIP, f"x/{CLIP.stem}.wav"
    )
    assert "rename one" in one_line(result)


@pytest.mark.parametrize("drafter", ["history", "random", "oracle:0.8"])
@pytest.mark.parametrize("batch", ["1", "3"])
def test_verify_finds_all_identical(model: str, drafter: str, batch: str) -> None:
    arguments = ["verify", "--model", model, "--manifest", CLIPS, "--limit", "4", "--json"]
    result = run(*arguments, "--language", "en", "--drafter", drafter, "--batch", batch)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["total"], report["identical"], report["identity_rate"]) == (4, 4, 1.0)
    assert report["divergences"] == []
    assert report["provenance"]["drafter"] == drafter


@pytest.mark.parametrize("drafter", ["history", "random"])
def test_verify_with_retries_and_a_prompt(model: str, drafter: str) -> None:
    """A toy's text is mostly poor, so clips go through all temperatures, seeded."""
    arguments = ["verify", "--model", model, "--manifest", CLIPS, "--limit", "3", "--json"]
    arguments += ["--fallback", "--prompt", "As", "--language", "en", "--batch", "2"]
    result = run(*arguments, "--drafter", drafter)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["total"], report["identical"]) == (3, 3)
    assert report["retried"] > 0


def test_verify_exits_1_where_outputs_differ(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule of verification broken on purpose: whatever is drafted is accepted."""
    from soothsay.engine import engine
    from soothsay.speculate.verify import Acceptance

    def gullible(tree, end_token):
        rows = yield (0,)
        if len(tree.tokens) == 1:
            return Acceptance((), rows[0])
        rows = yield (1,)
        return Acceptance((1,), rows[1])

    monkeypatch.setattr(engine, "greedy_walk", gullible)
    arguments = ["verify", "--model", model, "--manifest", CLIPS, "--limit", "2", "--json"]
    result = run(*arguments, "--language", "en", "--drafter", "random")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["identity_rate"] == 0.0
    for divergence in report["divergences"]:
        assert divergence.keys() == {"id", "position", "margin"}
        assert divergence["margin"] > 0


def test_verify_refuses_sampling(model: str) -> None:
    arguments = ["verify", "--model", model, "--manifest", CLIPS, "--temperature", "0.5"]
    assert "temperature 0" in one_line(run(*arguments))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no clips"),
        ("{}", "line 1"),
        ("[" * 100_000, "line 1"),
        ('{"audio": "a", "lang": 5}', "line 1"),
        ("[1]", "line 1"),
        ('{"audio": 3}', "line 1"),
    ],
)
def test_bad_manifests(model: str, tmp_path: Path, content: str, message: str) -> None:
    manifest = tmp_path / "manifest.jsonl"
    manifest.write_text(content)
    assert message in one_line(run("verify", "--model", model, "--manifest", manifest))


def test_an_input_is_never_written_over(model: str, tmp_path: Path) -> None:
    audio = tmp_path / "talk.txt"
    audio.write_bytes(CLIP.read_bytes())
    result = run("transcribe", "--model", model, "--output-dir", tmp_path, audio)
    assert "is an input" in one_line(result)
    assert audio.read_bytes() == CLIP.read_bytes()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_stdout_is_one_clear_line(model: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", START, "transcribe", "--model", model, str(CLIP)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    wanted = ["soothsay: cannot write to standard output: No space left on device"]
    assert said(done.stderr) == wanted


def test_manifests_may_hold_any_line_separator_but_newline(model: str, tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.jsonl"
    row = {"audio": str(CLIP), "text": "a\u2028b", "lang": "en"}
    manifest.write_text("\ufeff" + json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    arguments = ["verify", "--model", model, "--manifest", manifest, "--json"]
    assert json.loads(run(*arguments).stdout)["total"] == 1


def test_a_clip_that_is_missing_is_named(model: str, tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.jsonl"
    manifest.write_text('{"audio": "gone.wav"}')
    assert "gone.wav: it cannot be read" in one_line(
        run("verify", "--model", model, "--manifest", manifest, "--language", "en")
    )


def test_names_may_hold_markup_and_any_bytes(model: str, tmp_path: Path) -> None:
    odd = [tmp_path / "[red]a[x].ogg", tmp_path / os.fsdecode(b"caf\xe9.ogg")]
    for path in odd:
        path.write_bytes(CLIP.read_bytes())
    result = run("transcribe", "--model", model, "--stats", *odd)
    assert result.exit_code == 0, result.output
    assert "==> " in result.stdout
    assert "[red]a[x].ogg" in result.stdout
    assert "caf\ufffd.ogg" in result.stdout


def test_written_files_have_ordinary_permissions(model: str, tmp_path: Path) -> None:
    ordinary = tmp_path / "ordinary"
    ordinary.touch()
    run("transcribe", "--model", model, "--output-dir", tmp_path, CLIP)
    written = tmp_path / f"{CLIP.stem}.txt"
    assert written.stat().st_mode == ordinary.stat().st_mode


def test_bench_decode_reports_ratios(model: str, tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.jsonl"
    manifest.write_text(json.dumps({"audio": str(CLIP), "lang": "en"}) + "\n")
    arguments = ["bench", "decode", "--model", model, "--manifest", manifest, "--json"]
    result = run(*arguments, "--drafter", "oracle:1.0", "--nodes", "4")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    stable = {"tokens_per_forward", "decode_ratio", "end_to_end_ratio", "draft_share"}
    assert stable <= report.keys()
    assert report["identical"] == report["clips"] == 1
    assert report["tokens_per_forward"] > 3
    assert report["acceptance_by_depth"][0] == 1.0


def test_only_the_oracle_sees_the_text(model: str, tmp_path: Path) -> None:
    """The history drafter would follow a hint; in a benchmark it must not get one."""
    manifest = tmp_path / "manifest.jsonl"
    manifest.write_text(json.dumps({"audio": str(CLIP), "lang": "en"}) + "\n")
    arguments = ["bench", "decode", "--model", model, "--manifest", manifest, "--json"]
    report = json.loads(run(*arguments, "--drafter", "history").stdout)
    (plain,) = [
        json.loads(run("transcribe", "--model", model, "--no-fallback", "--json", CLIP).stdout)
    ]
    assert report["tokens_per_forward"] == pytest.approx(plain["stats"]["tokens_per_forward"])


def test_models_and_doctor_print_json() -> None:
    names = [row["name"] for row in json.loads(run("models", "--json").stdout)]
    assert {"base", "tiny.en"} <= set(names)
    report = json.loads(run("doctor", "--json").stdout)
    assert report["dtype_auto"] in ("float32", "bfloat16")
    assert isinstance(report["ready"], bool)
