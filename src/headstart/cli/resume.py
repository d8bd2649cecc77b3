"""headstart resume."""

from pathlib import Path
from typing import Annotated

import typer

from headstart.cli import options as o


def resume(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="The folder of a run that stopped.")],
    nproc: o.Nproc = None,
    nodes: o.Nodes = 1,
    meet: o.Meet = None,
    max_restarts: o.MaxRestarts = 0,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Go on with a run that stopped, as if it never had.

    With --nproc it goes on in as many processes, whatever their number was before.
    """
    if o.launched(context, nproc, nodes, meet, max_restarts):
        return
    from headstart.cli import compare, finetune, pretrain, tune
    from headstart.cli.listener import Listener, print_json
    from headstart.results import Comparison
    from headstart.workflows.finetune import Finetuned
    from headstart.workflows.finetune_seq2seq import FinishedTranslator
    from headstart.workflows.resume import resume as go_on
    from headstart.workflows.tune import Tuned

    with Listener(quiet or as_json or not o.speaks()) as listener:
        result = go_on(run, listener)
    if not o.speaks():
        return
    if result is None:
        print('{"finished": true}' if as_json else f"{run} is finished: there is nothing to resume")
    elif as_json:
        print_json(result)
    elif isinstance(result, Comparison):
        compare.show(result, run)
    elif isinstance(result, Finetuned | FinishedTranslator):
        finetune.show(result)
    elif isinstance(result, Tuned):
        tune.show(result)
    else:
        pretrain.show(result)
