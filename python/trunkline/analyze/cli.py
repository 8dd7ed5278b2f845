"""The command line of the analysis: arguments in, exit codes out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from trunkline.command import Drawing, Misuse, Number, failures, json_option
from trunkline.simulate.cli import policies_option, positive, seeds_option, worker_options

if TYPE_CHECKING:
    from pathlib import Path

_MIB = 1 << 20


@click.command("analyze")
@click.argument(
    "logs", nargs=-1, required=True, metavar="LOG...", type=click.Path(exists=True, dir_okay=False, allow_dash=True)
)
@click.option(
    "--workers",
    type=click.IntRange(1, 4096),
    multiple=True,
    help="Size of the fleet to forecast; several times for several [default: 7].",
)
@policies_option
@worker_options
@click.option("--rate", "rate_rps", type=positive, help="Requests per second [default: the log's times, else 10].")
@click.option(
    "--requests",
    type=click.IntRange(min=1),
    default=50_000,
    show_default=True,
    help="Requests that the forecast replays at most, the first ones.",
)
@seeds_option
@click.option("--no-forecast", is_flag=True, help="Only read; simulate nothing.")
@click.option(
    "--cache-tokens",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="N",
    help="Size of a cache whose ideal hit rate is wanted [default: one worker's, and all workers' together].",
)
@click.option("--bytes-per-token", type=Number(0.5, 32), help="Of text [default: the log's usage, else 4].")
@click.option(
    "--memory-mib",
    type=click.IntRange(16, 1 << 20),
    default=256,
    show_default=True,
    help="Memory for what is kept of the log; with more, larger logs are exact.",
)
@click.option("--top", type=click.IntRange(1, 1000), default=15, show_default=True, help="Prefixes to list.")
@click.option("--no-text", is_flag=True, help="Quote no prompts.")
@click.option("--html", "page", type=Drawing(), metavar="FILE", help="Also write a page with plots.")
@json_option
def analyze(
    *,
    logs: tuple[str, ...],
    workers: tuple[int, ...],
    policies: tuple[str, ...],
    rate_rps: float | None,
    requests: int,
    seeds: int,
    no_forecast: bool,
    cache_tokens: tuple[int, ...],
    bytes_per_token: float | None,
    memory_mib: int,
    top: int,
    no_text: bool,
    page: Path | None,
    as_json: bool,
    **worker: Any,  # noqa: ANN401 (click)
) -> None:
    """Read request logs and say whether prefix-aware routing would help, by how much, and which prompts are badly made.

    LOG is a file of requests in OpenAI's form as JSON lines (bodies, alone or under `body` or `request`) or what vLLM
    logs with --enable-log-requests at level DEBUG; plain or gzip, of any size; - is standard input. Lines that make no
    sense are counted and named. Ctrl-C shows what is known so far (exit code 130); a log without a request ends with 2.

    The report quotes the beginnings of prompts, which may be private: --no-text leaves them out.

    \b
    trunkline analyze requests.jsonl
    trunkline analyze day1.jsonl.gz day2.jsonl.gz --workers 4 --workers 8 --html report.html
    zcat *.gz | trunkline analyze - --profile llama-8b-h100 --no-text --json
    """
    from trunkline.simulate.request import RunRequest, profile_of  # noqa: PLC0415 (see trunkline.cli)
    from trunkline.simulate.sources import SourceError  # noqa: PLC0415

    from .report import as_dict, as_text  # noqa: PLC0415
    from .run import analyze as run  # noqa: PLC0415
    from .spec import ForecastOptions, Options  # noqa: PLC0415

    name = worker["profile"] or "llama-70b-8xh100"
    sizes = [] if no_forecast else list(workers or (7,))
    try:
        with failures():
            profile = RunRequest(traffic="", **worker).worker() or profile_of(name)
            caches = cache_tokens or (profile.kv_tokens, *(profile.kv_tokens * size for size in sizes))
            options = Options(
                memory_bytes=memory_mib * _MIB,
                cache_tokens=sorted(set(caches)),
                top=top,
                text=not no_text,
                bytes_per_token=bytes_per_token,
                forecast=ForecastOptions(
                    workers=sizes,
                    policies=list(policies or ("random", "kv_aware")),
                    profile=profile,
                    rate_rps=rate_rps,
                    requests=requests,
                    seeds=seeds,
                ),
            )
            findings = run(options, logs)
    except SourceError as error:
        raise Misuse(str(error)) from error
    click.echo(json.dumps(as_dict(findings, name), indent=2) if as_json else as_text(findings, name))
    if page is not None:
        from .page import write  # noqa: PLC0415 (see trunkline.cli)

        with failures():
            write(findings, name, page)
    if findings.partial:
        raise SystemExit(130)
