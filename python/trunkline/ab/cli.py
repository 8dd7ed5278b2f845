"""`trunkline ab`: arguments in, exit codes out, for a running gateway's trial and shadow."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from trunkline.command import (
    Failure,
    Misuse,
    Number,
    echo_table,
    failures,
    json_option,
    pass_admin,
)

if TYPE_CHECKING:
    from trunkline.admin import Admin

# Between two looks of `trunkline ab --watch`.
WATCH_S = 2.0


@click.group(invoke_without_command=True)
@pass_admin
@json_option
@click.option("--watch", is_flag=True, help="Print anew every 2 s, until no ramp is under way.")
def ab(admin: Admin, *, as_json: bool, watch: bool) -> None:
    """Compare the two arms of a running gateway's trial, and the policy in its shadow.

    Each figure has its interval of 95 %; docs/trials.md says how to read them. Exit code 1 if the ramp has stopped by
    itself. `trunkline serve` begins a trial with --trial-policy or --trial-pool, a shadow with --shadow-policy.
    --admin, --admin-token-file and --json may stand before a subcommand or after it.

    \b
    trunkline ab
    trunkline ab share 0.1
    trunkline ab ramp --stage-s 600
    trunkline ab --watch
    trunkline ab stop
    trunkline ab reset --admin http://10.0.0.9:8081
    trunkline ab --json
    """
    from .report import has_stopped, is_over  # noqa: PLC0415 (see trunkline.cli)

    with failures():
        found = admin.trial()
        if found["trial"] is None and found["shadow"] is None:
            raise Failure(
                f"{admin.url} has no trial and no shadow; start it with --trial-policy, --trial-pool or --shadow-policy"
            )
        _echo_trials(found, as_json=as_json)
        while watch and not is_over(found):
            time.sleep(WATCH_S)
            found = admin.trial()
            if not as_json:
                click.echo(f"\n{time.strftime('%H:%M:%S')}")
            _echo_trials(found, as_json=as_json)
    if has_stopped(found):
        raise SystemExit(1)


def _echo_trials(found: dict[str, Any], *, as_json: bool) -> None:
    from .report import shadow_table, trial_table, verdict  # noqa: PLC0415 (see trunkline.cli)

    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    if found["trial"] is not None:
        echo_table(*trial_table(found["trial"]))
        click.echo(verdict(found["trial"]))
    if found["trial"] is not None and found["shadow"] is not None:
        click.echo()
    if found["shadow"] is not None:
        echo_table(*shadow_table(found["shadow"]))


@ab.command("share")
@click.argument("share", type=Number(0, 1))
@pass_admin
@json_option
def ab_share(admin: Admin, share: float, *, as_json: bool) -> None:
    """Give arm b this share, 0 to 1, until it is changed."""
    with failures():
        _echo_trials(admin.change_trial("share", {"share": share}), as_json=as_json)


@ab.command("ramp")
@click.option("--stages", metavar="SHARES", help="Shares of arm b, joined by commas [default: 0.01,0.05,0.25,0.5,1].")
@click.option(
    "--settle-s",
    type=Number(0, 604800),
    help="Time at the beginning of a stage, for caches to warm up, whose TTFT does not count [default: 60].",
)
@click.option("--stage-s", type=Number(0, 604800), help="Shortest time of a stage after that [default: 300].")
@click.option(
    "--min-requests", type=click.IntRange(20, 10**9), help="Fewest requests of each arm in a stage [default: 200]."
)
@click.option(
    "--ttft-margin",
    type=Number(0, 10),
    help="By how much of arm a's p90 of TTFT arm b's may be longer [default: 0.1].",
)
@click.option(
    "--error-margin",
    type=Number(0, 1),
    help="By how much arm b's error rate may be above arm a's [default: 0.01].",
)
@pass_admin
@json_option
def ab_ramp(admin: Admin, /, *, stages: str | None, as_json: bool, **numbers: float | None) -> None:
    """Move traffic to arm b in stages; all goes back to arm a if b turns out worse by a margin.

    \b
    trunkline ab ramp
    trunkline ab ramp --stages 0.1,0.5,1 --stage-s 60 --ttft-margin 0.2
    """
    wanted: dict[str, Any] = {name: number for name, number in numbers.items() if number is not None}
    if stages is not None:
        try:
            wanted["stages"] = [float(share) for share in stages.split(",")]
        except ValueError as odd:
            raise Misuse(f"--stages {stages}: allowed are shares joined by commas, such as 0.01,0.1,1") from odd
    with failures():
        _echo_trials(admin.change_trial("ramp", wanted), as_json=as_json)


@ab.command("stop")
@pass_admin
@json_option
def ab_stop(admin: Admin, *, as_json: bool) -> None:
    """Take everything from arm b."""
    with failures():
        _echo_trials(admin.change_trial("stop"), as_json=as_json)


@ab.command("reset")
@pass_admin
@json_option
def ab_reset(admin: Admin, *, as_json: bool) -> None:
    """Begin the figures anew, and allow another ramp after one that stopped by itself."""
    with failures():
        _echo_trials(admin.change_trial("reset"), as_json=as_json)
