"""headstart models and headstart package."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from headstart.cli import options as o


def models(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show the card of this one.")] = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """List the bases that come with headstart, or show the card of one."""
    from headstart.errors import RunError, nearest
    from headstart.pretrained import FOLDERS, check_base, describe_base, shipped_bases

    found = shipped_bases()
    if name is not None:
        if name not in found:
            hint = nearest(name, found) if found else "none come with this version"
            raise RunError(f"no base is called {name!r}", hint=hint)
        check_base(found[name])
        if as_json:
            print(
                json.dumps(
                    {**describe_base(found[name]), "bytes": _size(found[name])}, ensure_ascii=False, indent=2
                )
            )
        else:
            print((found[name] / "card.md").read_text("utf-8"), end="")
        return
    rows, faults = [], []
    for path in found.values():
        try:
            rows.append({**describe_base(path), "bytes": _size(path)})
        except RunError as error:
            faults.append(error)
    for fault in faults:  # the others are listed all the same
        print(f"warning: {fault}", file=sys.stderr)
    if as_json:
        print(json.dumps(rows, ensure_ascii=False, indent=2))
        return
    if not rows:
        print("no bases come with this version of headstart")
        print("make one: headstart pretrain --recipe recipes/en-small.toml --data DATA --out RUN")
        print(f"a base packed with `headstart package` is found in the folder that {FOLDERS} names")
        return
    from headstart.reports.formatting import format_benchmark

    for row in rows:
        print(
            f"{row['name']}: {row['language'] or 'language not stated'}, {row['parameters']:,} parameters,"
            f" {row['bytes'] / 2**20:.1f} MiB; {row['title']}"
        )
        for score in row["scores"]:
            print(f"  {format_benchmark(score)}")
    print("use one by its name: headstart finetune NAME DATA --out RUN; its card: headstart models NAME")
    translators = [row["name"] for row in rows if row["objective"] == "translate"]
    if translators:
        print(f"translators translate as they are: headstart translate {translators[0]} FILE")


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir() if file.is_file())


def package(
    run: Annotated[str, typer.Argument(help="A finished run's folder.")],
    name: Annotated[str, typer.Option("--name", help="What the base is called, such as fr-small.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="The folder of bases; DIR/NAME is written.")
    ],
    measure: Annotated[
        str | None,
        typer.Option(
            "--measure",
            metavar="DATA",
            help="What the loss of storing is measured on; the run's own held-out texts unless told.",
        ),
    ] = None,
    facts: Annotated[
        Path | None,
        typer.Option("--facts", metavar="FILE", help="A TOML file for the card: licences, scores, limits."),
    ] = None,
    form: Annotated[str, typer.Option("--form", help="int8, bfloat16 or float32.")] = "int8",
    shard_mib: Annotated[
        float, typer.Option("--shard-mib", min=0.01, help="MiB that a file holds at most.")
    ] = 12,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Pack RUN as a base that travels: 8 bits a weight, card and checksums; tell what the storing cost."""
    from headstart.cli.listener import print_json
    from headstart.workflows.pack import pack as write

    result = write(run, name, out, form=form, shard_mib=shard_mib, measure=measure, facts=facts)
    if as_json:
        print_json(result)
        return
    print(
        f"{result.name} in {result.path}: {result.parameters:,} parameters, {result.weight_bytes / 2**20:.2f} MiB of "
        f"weights, {result.total_bytes / 2**20:.2f} MiB in all"
    )
    told = ", ".join(
        f"{key} {value:.5f} before, {result.after[key]:.5f} as stored" for key, value in result.before.items()
    )
    print(
        f"weights are off by {result.weight_error:.2%} of their size; on {result.measured_on}: {told or 'no score'}"
    )
    use = "translate {} FILE" if "bleu" in result.before else "finetune {} DATA --out RUN"
    print(f"use it: HEADSTART_BASES={out} headstart {use.format(result.name)}")
