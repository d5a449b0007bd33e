"""The command `slipway train wakeword`: recordings into a trained model."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipway_export.commands.config_file import config_option
from slipway_export.commands.server_options import control_token_option, publisher, triton_option
from slipway_export.commands.sources import trained_family
from slipway_export.commands.terminal import Quiet, quiet_libraries, reporting
from slipway_export.spec import Precision
from slipway_serving.protocol.errors import InvalidRequest, SlipwayError
from slipway_serving.system.temporary_folders import TemporaryFolder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slipway_training.wakeword import Trained

train = typer.Typer(
    help="Train a model on recordings.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@train.command("wakeword")
def wakeword(
    name: Annotated[str, typer.Option(help="Id of the word: a-z, 0-9, _ and -.", metavar="ID")],
    positive: Annotated[Path, typer.Option(help="Folder of recordings, the word once in each.")],
    negative: Annotated[Path, typer.Option(help="Folder of recordings of anything but the word.")],
    backbone: Annotated[
        str, typer.Option(help="The backbone's checkpoint, not trained.", metavar="PRESET|DIR|HUB_ID")
    ],
    models: Annotated[Path, typer.Option(help="Folder of the trained models.")] = Path("trained"),
    config: Annotated[Path | None, config_option()] = None,
    wake_word: Annotated[
        str | None, typer.Option(help="Wake word as people say it; by default the id.")
    ] = None,
    max_false_accepts: Annotated[
        float, typer.Option(help="Share of other sounds that the threshold may accept, 0 to 1.")
    ] = 0.01,
    held_out: Annotated[
        float, typer.Option(help="Share of recordings that choose the threshold, above 0 to 0.5.")
    ] = 0.25,
    variations: Annotated[int, typer.Option(help="Noisy variations of each window, 0 or more.")] = 4,
    hidden: Annotated[
        list[int] | None,
        typer.Option(help="Size of a hidden layer, by default 256 and 128; may be repeated."),
    ] = None,
    attention: Annotated[bool, typer.Option("--attention", help="Head with self-attention.")] = False,
    se_block: Annotated[bool, typer.Option("--se-block", help="Head with squeeze-excitation.")] = False,
    tcn: Annotated[bool, typer.Option("--tcn", help="Head with temporal convolutions.")] = False,
    epochs: Annotated[int, typer.Option(help="Passes over the recordings at most, 1 or more.")] = 150,
    anneal: Annotated[
        bool, typer.Option("--anneal", help="Let the learning rate fall to nothing, and keep the last head.")
    ] = False,
    seed: Annotated[
        int, typer.Option(help="Seed of the split, the variations and the weights, 0 or more.")
    ] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace a trained model of that id.")] = False,
    repository: Annotated[
        Path | None,
        typer.Option(help="Triton model repository to place the word in; by default, it is not placed."),
    ] = None,
    precision: Annotated[Precision, typer.Option(help="Precision of the exported graph.")] = Precision.FP32,
    triton: Annotated[str | None, triton_option()] = None,
    control_token_file: Annotated[Path | None, control_token_option()] = None,
    quiet: Quiet = False,
) -> None:
    """Train a wake word's head, choose its threshold, export it, and print its status as JSON."""
    from rich.console import Console

    from slipway_export.families import family_named
    from slipway_export.options import ExportOptions
    from slipway_export.trained_models import Library, export_model
    from slipway_training.wakeword import TrainOptions
    from slipway_training.wakeword import train as run_training

    if triton is not None and repository is None:
        raise InvalidRequest(f"triton must be given with --repository, which it serves, got {triton} alone")
    options = TrainOptions(
        name=name,
        positive=positive,
        negative=negative,
        backbone=backbone,
        models=models,
        wake_word=wake_word,
        held_out=held_out,
        variations=variations,
        max_false_accepts=max_false_accepts,
        hidden_dims=tuple(hidden or TrainOptions.hidden_dims),
        use_attention=attention,
        use_se_block=se_block,
        use_tcn=tcn,
        epochs=epochs,
        anneal=anneal,
        seed=seed,
        force=force,
    )
    family, library = family_named("wakeword"), Library(models)
    progress = Console(file=sys.stderr, quiet=quiet)
    with quiet_libraries(), reporting(progress) as report, _repository(repository) as target:
        publish = publisher(triton, control_token_file, target)
        trained = run_training(family, options, report)
        if not quiet:
            _print_rates(trained)
        export = ExportOptions(checkpoint="", repository=target, precision=precision)
        try:
            export_model(trained_family(family), library, name, export, report, publish)
        except SlipwayError as error:
            typer.echo(json.dumps(asdict(library.status(name)), indent=2))
            fix = f"slipway export wakeword --model {name}"
            raise type(error)(
                f"{trained.folder} is trained, its export failed: {error}; try `{fix}`"
            ) from error
    typer.echo(json.dumps(asdict(library.status(name)), indent=2))


@contextmanager
def _repository(given: Path | None) -> Iterator[Path]:
    """Give the repository to export to: the user's, or one that is thrown away, for the graph alone."""
    if given is not None:
        yield given
        return
    with TemporaryFolder("slipway-training-") as folder:
        yield folder / "repository"


def _print_rates(trained: Trained) -> None:
    """Print the rates of some thresholds and of the chosen one."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    chosen = trained.calibration.chosen
    table = Table("threshold", "false accepts", "false rejects", "", box=box.SIMPLE)
    for rate in trained.calibration.rates:
        if rate == chosen or round(100 * rate.threshold) % 10 == 0:
            mark = "chosen" if rate == chosen else ""
            table.add_row(
                f"{rate.threshold:.2f}", f"{rate.false_accepts:.1%}", f"{rate.false_rejects:.1%}", mark
            )
    console = Console(stderr=True)
    console.print(
        f"Held-out windows, {trained.windows['held_out_positive']} with the word and"
        f" {trained.windows['held_out_negative']} without (calibration.csv has every threshold)"
    )
    console.print(table)
