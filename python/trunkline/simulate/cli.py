"""The command line of the simulator: arguments in, exit codes out."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trunkline.command import Drawing, Misuse, Number, failures, json_option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_Command = TypeVar("_Command", bound="Callable[..., Any]")

positive = Number(min=0, min_open=True)
_count = click.IntRange(min=1)


class _DefaultGroup(click.Group):
    """A group of which one command need not be said."""

    default = "run"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Say it where no command is said."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [self.default, *args]
        return super().parse_args(ctx, args)


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """Turn errors into messages and exit codes, also those of traffic, profiles and pages that are none."""
    from .fit import FitError  # noqa: PLC0415 (see trunkline.cli)
    from .sources import SourceError  # noqa: PLC0415 (see trunkline.cli)

    try:
        with failures():
            yield
    except (FitError, SourceError) as error:
        raise Misuse(str(error)) from error


class _Numbers(click.ParamType[Any]):
    """Numbers with commas (or other separators) between them."""

    name = "list"

    def __init__(self, separator: str = ",", count: int | None = None, *, whole: bool = False) -> None:
        self._separator, self._count, self._kind = separator, count, int if whole else float

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Return them as a tuple."""
        if isinstance(value, tuple):
            return value
        try:
            found = tuple(self._kind(part) for part in value.split(self._separator))
        except ValueError:
            self.fail(f"{value!r} is no list of numbers with {self._separator!r} between them", param, ctx)
        if self._count not in (None, len(found)):
            self.fail(f"{value!r} has {len(found)} numbers, not {self._count}", param, ctx)
        return found


def _setting(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """Read KEY=VALUE; a value is JSON if it can be."""
    settings = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals:
            raise click.BadParameter(f"{value!r} is not KEY=VALUE")
        try:
            settings[key] = json.loads(text)
        except (ValueError, RecursionError):
            settings[key] = text
    return settings


def _options(*options: Any) -> Callable[[_Command], _Command]:  # noqa: ANN401 (click)
    """Put several options on a command, in their order."""

    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


worker_options = _options(
    click.option(
        "--profile",
        metavar="NAME|FILE",
        help="Worker: llama-70b-8xh100, llama-8b-h100, study-30k, or a file that `simulate fit` wrote "
        "[default: the scenario's, else llama-70b-8xh100].",
    ),
    click.option("--kv-tokens", type=click.IntRange(min=128), help="Tokens that fit its KV cache."),
    click.option("--host-tokens", type=click.IntRange(min=0), help="Tokens that fit its tier in host memory."),
    click.option("--prefill-tokens-per-s", type=positive, help="Uncached prompt tokens that it computes per second."),
    click.option("--step-ms", type=positive, help="Its decode step at batch 1."),
    click.option("--max-sequences", type=_count, help="Sequences that run at once."),
    click.option("--step-token-budget", type=_count, help="Tokens computed per step."),
    click.option(
        "--preemption/--no-preemption",
        default=None,
        help="Whether answers take room as they grow and sequences are pre-empted, or room is reserved "
        "[default: reserved].",
    ),
    click.option("--gpus", type=_count, help="GPUs of a worker, for the cost."),
)
policies_option = click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help="Several times for several: kv_aware, prefix_aware, least_outstanding, round_robin, random of the router; "
    "sagemaker, chwbl, cache_aware, llm_d, dynamo, preble, lmetric, e1, e1_lean, ect, ect2 as models of others "
    "[default: random and kv_aware].",
)
seeds_option = click.option("--seeds", type=click.IntRange(1, 1000), default=3, show_default=True, help="Runs of each.")
_price = click.option("--gpu-hour-price", type=positive, metavar="MONEY", help="Price of a GPU for an hour.")


@click.group("simulate", cls=_DefaultGroup, no_args_is_help=True)
def simulate() -> None:
    """Ask what a routing policy would do with some traffic on some workers. Needs no GPU.

    \b
    trunkline simulate aws-long
    trunkline simulate agents --policy kv_aware --policy cache_aware --workers 16 --rate 80
    trunkline simulate chat --load 0.6 --load 0.9 --load 1.1 --gpu-hour-price 2.5 --plot chat.html
    trunkline simulate requests.jsonl.gz --profile llama-8b-h100 --workers 4 --json
    trunkline simulate fit http://10.0.0.1:8000/metrics > worker.json
    trunkline simulate scale --sizes 4,7,5

    `trunkline simulate TRAFFIC` is short for `trunkline simulate run TRAFFIC`.
    """


@simulate.command("run")
@click.argument("traffic")
@policies_option
@click.option("--workers", type=click.IntRange(1, 4096), help="Workers [default: 7].")
@click.option("--speeds", type=_Numbers(), metavar="LIST", help="Speed of the first workers, like 0.5,1,0.4.")
@click.option("--routers", type=click.IntRange(1, 64), help="Routers in front of them [default: 1].")
@click.option("--gossip-ms", type=Number(min=0), help="How late they hear of each other [default: never].")
@click.option("--events/--no-events", default=False, help="Whether kv_aware gets KV events [default: its own view].")
@click.option(
    "--event-delay-ms",
    type=Number(min=0),
    default=20.0,
    show_default=True,
    help="How late KV events are, with --events and for the models of others that use them.",
)
@click.option(
    "--poll-ms",
    type=Number(min=0),
    default=50.0,
    show_default=True,
    help="Age of polled metrics at most, for llm_d.",
)
@click.option(
    "--prefix-length",
    type=click.IntRange(1024, 65_536),
    help="Characters of a prompt that prefix_aware hashes, 4 for a token [default: 4096].",
)
@click.option(
    "--concurrency-threshold",
    type=click.IntRange(1, 1024),
    help="Requests on a worker at which prefix_aware spills [default: 1.5 times the mean].",
)
@click.option("--clients", type=_count, help="A closed loop of so many clients instead of arrivals.")
@click.option(
    "--lose",
    "losses",
    type=_Numbers(":", 2),
    multiple=True,
    metavar="DOWN:UP",
    help="Seconds at which the last worker dies and comes back.",
)
@click.option(
    "--scale-at",
    "scale",
    type=_Numbers(":", 2),
    multiple=True,
    metavar="SECOND:WORKERS",
    help="Change the number of workers under way.",
)
@worker_options
@click.option("--rate", "rate_rps", type=positive, help="Requests per second [default: the traffic's own].")
@click.option("--requests", type=_count, help="Requests [default: the traffic's own].")
@click.option(
    "--load", "loads", type=positive, multiple=True, help="Multiplies the rate; several times for a sweep [default: 1]."
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    callback=_setting,
    metavar="KEY=VALUE",
    help="Parameter of the generator or reader, such as system_tokens=6000.",
)
@click.option(
    "--format", "kind", type=click.Choice(["mooncake", "agentic", "log"]), help="Of a file [default: found out]."
)
@click.option(
    "--traces",
    "traces_in",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Folder with the traces that scenarios replay.",
)
@seeds_option
@_price
@click.option(
    "--plot",
    "plots",
    type=Drawing(),
    multiple=True,
    metavar="FILE",
    help="Draw into this file: an HTML page, or a picture if it ends with .png.",
)
@json_option
def simulate_run(*, as_json: bool, plots: tuple[Path, ...], **asked: Any) -> None:  # noqa: ANN401 (click)
    """Run TRAFFIC under each policy, with several seeds, and compare.

    TRAFFIC is a generator (aws-long, aws-short, tenants, chat, header, agents, bursts, spike), a scenario of the policy
    study (aws5@.95, long@40, ...: a name, @, and a load below 2 or requests per second), or a file: Mooncake's traces,
    sessions of agents, OpenAI requests as JSON lines, a log of vLLM with --enable-log-requests; plain or .gz. Ctrl-C
    shows what is known so far.

    \b
    trunkline simulate aws-long --policy random --policy prefix_aware --policy kv_aware
    trunkline simulate tenants --set tenants=1000 --set system_tokens=6000 --load 0.5 --load 1
    trunkline simulate requests.jsonl --requests 10000 --workers 12 --gpu-hour-price 2.5
    """
    from .report import as_dict, as_text  # noqa: PLC0415 (see trunkline.cli)
    from .request import RunRequest, run_request  # noqa: PLC0415

    with _failures():
        comparison = run_request(RunRequest(**asked))
    if not comparison.cells:
        if comparison.stopped:
            raise SystemExit(130)
        raise Misuse("no request was answered: a prompt and its answer must fit a worker's cache")
    click.echo(json.dumps(as_dict(comparison), indent=2) if as_json else as_text(comparison))
    if plots:
        from .plot import draw  # noqa: PLC0415 (see trunkline.cli)

        with failures():
            for path in plots:
                try:
                    draw(comparison, path)
                except ImportError as missing:
                    raise Misuse(f"{path}: {missing}; pictures need: pip install 'trunkline[plot]'") from missing
    if comparison.stopped:
        raise SystemExit(130)


@simulate.command("fit")
@click.argument("page")
@click.option("--since", metavar="PAGE", help="An earlier page of the same worker: only what came after it counts.")
@click.option(
    "--profile",
    default="llama-70b-8xh100",
    show_default=True,
    metavar="NAME|FILE",
    help="Where the constants come from that a page does not tell.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the profile with what each constant comes from.")
def simulate_fit(page: str, *, since: str | None, profile: str, as_json: bool) -> None:
    """Read a worker's constants off PAGE, its vLLM metrics: a file, a URL, or - for standard input. Prints a profile.

    \b
    trunkline simulate fit http://10.0.0.1:8000/metrics > worker.json
    trunkline simulate chat --profile worker.json
    """
    from .fit import fit, read_page  # noqa: PLC0415 (see trunkline.cli)
    from .request import profile_of  # noqa: PLC0415

    with _failures():
        fitted = fit(read_page(page), since=None if since is None else read_page(since), base=profile_of(profile))
    if not as_json:
        for line in fitted.explained():
            click.echo(line, err=True)
    click.echo(json.dumps(fitted.as_dict() if as_json else fitted.profile_dict(), indent=2))


@simulate.command("scale")
@policies_option
@click.option(
    "--sizes",
    type=_Numbers(",", 3, whole=True),
    default=(4, 7, 5),
    show_default="4,7,5",
    metavar="A,B,C",
    help="Workers at the start, after a third of the run, after two thirds.",
)
@click.option(
    "--traffic", type=click.Choice(["chat", "header"]), multiple=True, default=["chat", "header"], show_default=True
)
@click.option("--profile", metavar="NAME|FILE", help="Worker [default: llama-70b-8xh100].")
@seeds_option
@json_option
def simulate_scale(
    *,
    policies: tuple[str, ...],
    sizes: tuple[int, int, int],
    traffic: tuple[str, ...],
    profile: str | None,
    seeds: int,
    as_json: bool,
) -> None:
    """Change the number of workers under way: which prefixes move, what becomes of hit rate and P99.

    \b
    trunkline simulate scale
    trunkline simulate scale --sizes 4,8,4 --policy kv_aware --policy prefix_aware
    """
    from .report import scale_as_dict, scale_as_text  # noqa: PLC0415 (see trunkline.cli)
    from .request import profile_of  # noqa: PLC0415
    from .runs import stop_on_interrupt  # noqa: PLC0415
    from .scale import run_scale  # noqa: PLC0415

    if min(sizes) < 1:
        raise Misuse(f"sizes = {','.join(map(str, sizes))}: at least one worker each")
    with _failures(), stop_on_interrupt() as stopped:
        found = run_scale(
            policies or ("random", "kv_aware"),
            chatbots=traffic,
            sizes=sizes,
            seeds=range(1, seeds + 1),
            profile=None if profile is None else profile_of(profile),
            stopped=stopped,
        )
    click.echo(json.dumps(scale_as_dict(found), indent=2) if as_json else scale_as_text(found))
    if stopped.is_set():
        raise SystemExit(130)
