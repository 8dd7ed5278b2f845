"""The command line: arguments in, exit codes out. What a command does is elsewhere.

Exit codes: 0 done, 1 it failed while running, 2 it was told something it cannot do. What only one command needs is
imported by that command, because `trunkline serve` has 0.3 s from its start to its first answer.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
import msgspec

from ._core import __version__
from .ab.cli import ab
from .analyze.cli import analyze
from .command import Failure, Misuse
from .command import echo_table as _echo_table
from .command import failures as _failures
from .command import json_option as _json
from .command import pass_admin as _pass_admin
from .command import plain as _plain
from .config import MockWorkerSettings, ServeSettings, Settings, SidecarSettings, config_file
from .simulate.cli import simulate

if TYPE_CHECKING:
    from collections.abc import Callable

    from .admin import Admin
    from .bench.aws16 import Cell, Figures

_Command = TypeVar("_Command", bound="Callable[..., Any]")


def _settings_options(settings: type[Settings]) -> Callable[[_Command], _Command]:
    """Give a command a flag for each setting, and --config."""

    def decorate(command: _Command) -> _Command:
        for field in reversed([field for field in settings.fields() if not field.is_table]):
            flag = f"{field.flag}/--no-{field.flag[2:]}" if field.is_switch else field.flag
            text = field.help
            if not field.is_switch:
                text += f" Allowed: {field.allowed}."
            kind: dict[str, Any] = {"metavar": field.metavar, "multiple": field.is_list}
            if field.is_switch:
                kind = {"is_flag": True}
            command = click.option(flag, field.name, default=None, help=text, **kind)(command)
        path = click.Path(path_type=Path, dir_okay=False)
        return click.option("--config", type=path, help="File with settings, TOML or YAML; flags win.")(command)

    return decorate


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    """Leave out the flags that nobody gave."""
    return {key: value for key, value in flags.items() if value not in (None, ())}


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="trunkline")
def cli() -> None:
    """Prefix-aware routing for LLM inference.

    \b
    trunkline serve --worker http://10.0.0.1:8000 --worker http://10.0.0.2:8000
    trunkline demo
    """


@cli.command()
@_settings_options(ServeSettings)
def serve(config: Path | None, **flags: Any) -> NoReturn:  # noqa: ANN401 (checked by the settings)
    """Run the gateway in front of workers.

    Every setting is also read from the environment (TRUNKLINE_MEMORY_BUDGET) and from the file that --config or
    TRUNKLINE_CONFIG names (memory_budget). SIGTERM and Ctrl-C drain: nothing new, what runs is finished. SIGHUP, or a
    change of one of the files, puts new workers, certificates, keys and tokens in force without dropping a request.

    \b
    trunkline serve --worker http://10.0.0.1:8000 --worker http://10.0.0.2:8000
    trunkline serve --host 0.0.0.0 --port 80 --config trunkline.toml
    TRUNKLINE_WORKERS=http://a:8000,http://b:8000 trunkline serve --policy prefix_aware
    """
    from .server import serve as run  # noqa: PLC0415 (see the module)

    with _failures():

        def load() -> ServeSettings:
            return ServeSettings.load(flags=_given(flags), file=config)[0]

        raise SystemExit(run(load(), again=load, config_file=config_file(config)))


@cli.command()
@_settings_options(ServeSettings)
@_json
def config(config: Path | None, *, as_json: bool, **flags: Any) -> None:  # noqa: ANN401 (checked by the settings)
    """Show the settings that `serve` would use, and where each comes from.

    \b
    trunkline config --config trunkline.toml
    trunkline config --worker http://10.0.0.1:8000 --json
    """
    with _failures():
        settings, sources = ServeSettings.load(flags=_given(flags), file=config)
    shown = {key: msgspec.to_builtins(getattr(settings, key)) for key in sources}
    if as_json:
        click.echo(json.dumps({key: {"value": shown[key], "source": sources[key]} for key in shown}, indent=2))
        return
    rows = [(key, sources[key], _plain(value)) for key, value in shown.items()]
    _echo_table(("key", "source", "value"), rows)


@cli.command("mock-worker")
@_settings_options(MockWorkerSettings)
def mock_worker(config: Path | None, **flags: Any) -> NoReturn:  # noqa: ANN401 (checked by the settings)
    """Run a simulated worker: OpenAI endpoints, a prefix cache, vLLM's metrics; no GPU.

    \b
    trunkline mock-worker --port 8000
    trunkline mock-worker --port 8001 --time-scale 0.1 --kv-tokens 100000
    """
    from .server import serve_mock_worker  # noqa: PLC0415 (see the module)

    with _failures():
        # The environment configures the gateway; a mock worker may well be started from the same shell.
        settings, _ = MockWorkerSettings.load(flags=_given(flags), file=config, environment={})
        raise SystemExit(serve_mock_worker(settings))


@cli.command()
@_settings_options(SidecarSettings)
def sidecar(config: Path | None, **flags: Any) -> NoReturn:  # noqa: ANN401 (checked by the settings)
    """Run a decision service on a Unix socket: one router for many processes, which use trunkline.SidecarRouter.

    \b
    trunkline sidecar --socket /run/trunkline.sock --worker http://10.0.0.1:8000 --worker http://10.0.0.2:8000
    """
    from .server import serve_sidecar  # noqa: PLC0415 (see the module)

    with _failures():
        # The environment configures the gateway, whose workers and policy need not be these.
        settings, _ = SidecarSettings.load(flags=_given(flags), file=config, environment={})
        raise SystemExit(serve_sidecar(settings))


@cli.command()
@click.option("--seed", type=int, default=1, show_default=True, help="Of the workload.")
@click.option("--requests", type=click.IntRange(min=50), help="Requests per policy [default: what fits 90 s].")
@click.option("--quick", is_flag=True, help="Fewer requests: 25 s per policy.")
@click.option("--check", is_flag=True, help="Exit 1 if prefix-aware routing misses its bars.")
@click.option("--keep", is_flag=True, help="Keep workers and gateway running until Ctrl-C.")
@_json
def demo(*, seed: int, requests: int | None, quick: bool, check: bool, keep: bool, as_json: bool) -> NoReturn:
    """Replay a chatbot's traffic on simulated workers, under random and under kv_aware, and compare.

    \b
    trunkline demo
    trunkline demo --quick --check --json
    """
    try:
        from .demo.run import DemoOptions, run_demo  # noqa: PLC0415 (see the module)
    except ImportError as missing:
        raise Misuse(f"{missing}; the demo needs: pip install 'trunkline[demo]'") from missing
    options = DemoOptions(seed=seed, requests=requests, quick=quick, json=as_json, check=check, keep=keep)
    raise SystemExit(run_demo(options))


@cli.group()
def bench() -> None:
    """Measure on this machine, beside the floor that it allows."""


@bench.command("core")
@click.option("--blocks", type=click.IntRange(1_000, 20_000_000), default=1_000_000, show_default=True)
@click.option("--workers", type=click.IntRange(1, 4096), default=64, show_default=True)
@click.option("--rounds", type=click.IntRange(1, 100), default=7, show_default=True, help="Medians are taken of these.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--peers", is_flag=True, help="Measure other libraries beside it; exit 1 if one is not installed.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Also write the JSON to this file.")
@_json
def bench_core(*, peers: bool, output: Path | None, as_json: bool, **numbers: int) -> None:
    """Measure look-ups, decisions and insertions from Python on a full index, in CPU time of the thread.

    \b
    trunkline bench core
    trunkline bench core --blocks 100000 --workers 8 --json
    trunkline bench core --peers --output result.json
    """
    try:
        from .bench.command import run_core  # noqa: PLC0415 (see the module)
    except ImportError as missing:
        raise Misuse(f"{missing}; this bench needs: pip install 'trunkline[bench]'") from missing
    report = run_core(with_peers=peers, **numbers)
    found = json.dumps(report.as_dict(), indent=2)
    click.echo(found if as_json else report.as_text())
    if output is not None:
        with _failures():
            output.write_text(found + "\n", encoding="utf-8")
    if report.missing:
        raise Failure(f"not installed: {', '.join(report.missing)}; `make bench-peers` installs them")


@bench.command("policy")
@click.option("--quick", is_flag=True, help="Leave out the line over all scenarios and all rules.")
@click.option(
    "--traces",
    "traces_in",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Folder with the public traces: mooncake_conversation*, mooncake_synthetic*, agentic_coding_sessions*, "
    ".jsonl or .jsonl.gz. Lines that need one are not run without.",
)
@_json
def bench_policy(*, quick: bool, traces_in: Path | None, as_json: bool) -> None:
    """Hold the router's policy to the pass lines of its study, in simulated fleets; exit 1 if one is missed.

    \b
    trunkline bench policy --quick
    trunkline bench policy --traces ~/traces --json
    """
    from .bench.policy import bench_policy as run  # noqa: PLC0415 (see the module)
    from .simulate.runs import stop_on_interrupt  # noqa: PLC0415 (see the module)

    with _failures(), stop_on_interrupt() as stopped:
        result = run(traces_in=traces_in, quick=quick, stopped=stopped)
    click.echo(json.dumps(result.as_dict(), indent=2) if as_json else result.as_text())
    if stopped.is_set():
        raise SystemExit(130)
    if result.missed:
        raise Failure(f"{result.missed} of {len(result.verdicts)} lines missed")


cli.add_command(simulate)
cli.add_command(analyze)
cli.add_command(ab)


@bench.command("aws16")
@click.option("--quick", is_flag=True, help="A sixth of the requests, one seed; live, a fifth.")
@click.option("--live", is_flag=True, help="Also through the gateway, at a small scale: six minutes, 90 s if quick.")
@_json
def bench_aws16(*, quick: bool, live: bool, as_json: bool) -> None:
    """Run the sixteen cells of AWS's benchmark in simulated fleets, beside its figures; exit 1 if a bar is missed.

    \b
    trunkline bench aws16
    trunkline bench aws16 --live
    trunkline bench aws16 --quick --json
    """
    from .bench.aws16 import bench_aws16 as run  # noqa: PLC0415 (see the module)
    from .simulate.runs import stop_on_interrupt  # noqa: PLC0415 (see the module)

    with _failures(), stop_on_interrupt() as stopped:
        result = run(quick=quick, stopped=stopped)
    if live and not stopped.is_set():
        try:
            _aws16_live(result.live, quick=quick)
        except KeyboardInterrupt:
            stopped.set()
    click.echo(json.dumps(result.as_dict(), indent=2) if as_json else result.as_text())
    if stopped.is_set():
        raise SystemExit(130)
    if result.missed:
        raise Failure(f"{result.missed} of {result.judged} bars missed")


def _aws16_live(found: dict[Cell, Figures], *, quick: bool) -> None:
    try:
        from .bench import aws16_live  # noqa: PLC0415 (loads what the other commands do not need)
        from .demo.fleet import FleetError  # noqa: PLC0415 (likewise)
    except ImportError as missing:
        raise Misuse(f"{missing}; --live needs: pip install 'trunkline[demo]'") from missing
    try:
        found.update(aws16_live.run_live(quick=quick))
    except (aws16_live.LiveError, FleetError) as fault:
        raise Failure(str(fault)) from fault


@bench.command("exact")
@click.option(
    "--rounds", type=click.IntRange(1, 1000), default=15, show_default=True, help="Medians are taken of these."
)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Also write the JSON to this file.")
@_json
def bench_exact(*, rounds: int, seed: int, output: Path | None, as_json: bool) -> None:
    """Measure what matching a chat with workers' events costs, beside tokenizing it.

    \b
    trunkline bench exact
    trunkline bench exact --rounds 50 --json
    """
    from .bench import exact  # noqa: PLC0415 (loads what the other commands do not need)

    try:
        found = exact.run(rounds=rounds, seed=seed, progress=lambda line: click.echo(line, err=True))
    except ImportError as missing:
        raise Misuse(f"{missing}; this bench needs: pip install tokenizers tiktoken") from missing
    click.echo(json.dumps(found, indent=2) if as_json else exact.table(found))
    if output is not None:
        with _failures():
            output.write_text(json.dumps({"kind": "exact", **found}, indent=2) + "\n", encoding="utf-8")


@cli.group(invoke_without_command=True)
@_pass_admin
@_json
def workers(admin: Admin, *, as_json: bool) -> None:
    """List or change the workers of a running gateway.

    --admin, --admin-token-file and --json may stand before a subcommand or after it.

    \b
    trunkline workers
    trunkline workers --admin http://10.0.0.9:8081 --json
    trunkline workers add http://10.0.0.3:8000
    trunkline workers drain http://10.0.0.1:8000 --admin http://10.0.0.9:8081
    trunkline workers remove http://10.0.0.1:8000
    """
    with _failures():
        found = admin.workers()
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    columns = ["id", "url", "engine", "healthy", "draining", "in_flight", "queued_tokens", "cached_blocks", "decisions"]
    if any(worker["pool"] is not None for worker in found):
        columns.append("pool")
    _echo_table(columns, [[_plain(worker[column]) for column in columns] for worker in found])


@workers.command("add")
@click.argument("url")
@_pass_admin
@_json
def workers_add(admin: Admin, url: str, *, as_json: bool) -> None:
    """Add a worker by its URL."""
    with _failures():
        answer = admin.add(url)
    click.echo(json.dumps(answer, indent=2) if as_json else f"added {url}")


@workers.command("remove")
@click.argument("url")
@_pass_admin
@_json
def workers_remove(admin: Admin, url: str, *, as_json: bool) -> None:
    """Remove a worker by its URL; requests that run there are finished."""
    with _failures():
        answer = admin.remove(url)
    click.echo(json.dumps(answer, indent=2) if as_json else f"removed {url}")


@workers.command("drain")
@click.argument("worker")
@_pass_admin
@_json
def workers_drain(admin: Admin, worker: str, *, as_json: bool) -> None:
    """Send a worker (its URL or id) nothing new; it finishes what it has."""
    with _failures():
        answer = admin.drain(worker)
    click.echo(json.dumps(answer, indent=2) if as_json else f"draining {worker}")


@cli.command()
@click.argument("prompt")
@click.option("--system", metavar="TEXT", help="System message before it.")
@click.option("--model", help="Model of the request; what one model has cached is of no use to another, or to none.")
@click.option("--completion", is_flag=True, help="Treat PROMPT as a completion's prompt, not as a chat message.")
@_pass_admin
@_json
def explain(
    admin: Admin, prompt: str, *, system: str | None, model: str | None, completion: bool, as_json: bool
) -> None:
    """Ask a running gateway where it would send PROMPT, a user's message, now, and why.

    Model and system message belong to what is looked up: without those of your requests nothing of them is found. POST
    /admin/explain takes a whole body.

    \b
    trunkline explain "What is a trunk line?" --model llama --system "You are a helpful assistant."
    trunkline explain --json --model llama --completion "Once upon a time"
    """
    body: dict[str, Any] = {"model": model} if model else {}
    path = "/v1/completions" if completion else "/v1/chat/completions"
    if completion and system is not None:
        raise Misuse("--completion has no --system: put it at the beginning of PROMPT")
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": prompt})
    body |= {"prompt": prompt} if completion else {"messages": messages}
    with _failures():
        found = admin.explain(path, body)
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    candidates = sorted(found.pop("candidates", []), key=lambda candidate: candidate["cost"])
    click.echo("\n".join(f"{key}: {_plain(value)}" for key, value in found.items()))
    first = ("worker", "cost", "matched_tokens")
    columns = [*first, *(column for column in candidates[0] if column not in first)] if candidates else []
    _echo_table(columns, [[_plain(candidate.get(column)) for column in columns] for candidate in candidates])
    if not model and not any(candidate["matched_tokens"] for candidate in candidates):
        click.echo("Nothing of it is found. Requests that name a model are found with --model only.", err=True)


@cli.group()
def key() -> None:
    """Make API keys for the clients of a gateway.

    \b
    trunkline key new --name acme --requests-per-minute 600
    """


_WORD = re.compile(r"[A-Za-z0-9._:@/-]{1,128}")


def _word(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Check what becomes a word of a line."""
    if value is not None and not _WORD.fullmatch(value):
        raise click.BadParameter("allowed are 1 to 128 letters, digits and . _ : @ / -")
    return value


@key.command("new")
@click.option("--name", required=True, callback=_word, help="Of the client, as metrics call it.")
@click.option("--tenant", callback=_word, help="Whose prefixes it shares [default: its name].")
@click.option("--requests-per-minute", type=click.IntRange(1, 2**32 - 1), metavar="N", help="Limit [default: none].")
@click.option("--tokens-per-minute", type=click.IntRange(1, 2**32 - 1), metavar="N", help="Limit [default: none].")
@_json
def key_new(*, as_json: bool, **words: Any) -> None:  # noqa: ANN401 (checked by click)
    """Print a new token, once, and the line that admits it, for the file that --api-keys-file names.

    \b
    trunkline key new --name acme --requests-per-minute 600
    trunkline key new --name acme-batch --tenant acme --tokens-per-minute 1000000 --json
    """
    from .keys import new_key  # noqa: PLC0415 (see the module)

    token, line = new_key(**words)
    if as_json:
        click.echo(json.dumps({"token": token, "line": line}, indent=2))
        return
    click.echo(
        f"token, for the client; it is kept nowhere:\n  {token}\nline, for the gateway's file of keys:\n  {line}"
    )


def main() -> None:
    """Entry point of the command `trunkline`."""
    cli(prog_name="trunkline")
