"""Options of each command, and the function that carries it out, as ``module:name``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from laplace_metric._utils.version import __version__
from laplace_metric.cli._parser import CONFIG, MOST_SIDE, Parser, integer, positive, share


def parser() -> Parser:
    """Build the parser of the command line, with a parser for each command."""
    top = Parser(prog="laplace-metric", description="Honest uncertainty for any embedder.")
    top.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    _add_commands(top, COMMANDS, "")
    return top


def _add_commands(top: Parser, known: Commands, room: str) -> None:
    commands = top.add_subparsers(title="commands", metavar="COMMAND")
    for name, (function, description, add_options) in known.items():
        sentences = f"{description[0].upper()}{description[1:]}."
        example = f"example:\n  {EXAMPLES[f'{room} {name}'.strip()]}"
        about: dict[str, Any] = {"help": description.split(".")[0], "description": sentences}
        command = commands.add_parser(name, epilog=example, **about)
        if function:
            command.set_defaults(function=f"laplace_metric.cli.{function}")
        add_options(command)


DATA = (
    "folder of images (DIR/<class>/*.png), .csv or .parquet of texts or of paths of images, .npy, "
    ".npz, .safetensors"
)
QUERIES = "labelled queries; of the data of the fit or index, those that --holdout kept apart"
MODEL = (
    "package.module:factory, timm:NAME, torchvision:NAME, open_clip:NAME/WEIGHTS, hf:NAME or "
    "sentence-transformers:NAME; "
)
HEAD = (
    "the layer that gets the posterior, by its name in the model, such as fc or backbone.fc; "
    "append (--head append): a new linear layer behind a model that ends without one; default: the "
    "last linear layer, or append for published models"
)
CONFIG_TRUST = "run the code of the model that the file of --config names; else give --model"
SIZE = "scale images to N x N; default: as they are"
HALVES = "half calibrates, half is for evaluate and report"
DECIDE = "answer or abstain: this share of the answers is right, with 95 %% confidence"
ALLOW = "use items that were in the fit, whose results are better than those of new items"


def _fit(fit: Parser) -> None:
    add = fit.add_argument
    add("data", type=Path, metavar="DATA", help=DATA)
    _model(fit)
    add("--trust-recipe", action="store_true", help=CONFIG_TRUST)
    add("--head", metavar="NAME", help=HEAD)
    _output(fit, "folder of the posterior", Path("posterior"))
    structures = ("auto", "diag", "kron", "full")
    add("--structure", default="auto", choices=structures, help="of the curvature; default: auto")
    add("--distance", default="arccos", choices=("arccos", "euclidean"), help="default: arccos")
    add("--hessian", default="fixed", choices=("fixed", "positives", "full"), help="default: fixed")
    how = "negative curvature counts by its size, or not at all; default: absolute"
    add("--positivity", default="absolute", choices=("absolute", "clip"), help=how)
    far = "negative pairs farther apart than this do not count; default: all count"
    add("--margin", type=positive, metavar="X", help=far)
    add("--prior-precision", type=positive, default=1.0, metavar="X", help="default: 1")
    add("--optimize-prior", action="store_true", help="choose it by the marginal likelihood")
    where = "what an interrupted fit goes on from, kept; default: inside the output while fitting"
    add("--checkpoint", type=Path, metavar="DIR", help=where)
    _holdout(fit, f"keep this share of DATA out of the fit, and index follows: {HALVES}")
    _common(fit)


def _embed(embed: Parser) -> None:
    embed.add_argument("data", type=Path, metavar="DATA", help=DATA)
    _posterior(embed)
    _output(embed, ".safetensors, .npz, .parquet or .csv")
    _common(embed)


def _index(index: Parser) -> None:
    add = index.add_argument
    add("data", type=Path, metavar="DATA", help=DATA)
    _posterior(index)
    _output(index, "folder of the index", Path("index"))
    add("--engine", default="flat", choices=("flat", "ivf", "hnsw"), help="default: flat, exact")
    add("--rank-by", default="mean", choices=("mean", "expected", "shared"), help="default: mean")
    add("--compact", action="store_true", help="for millions of items: keep no head inputs")
    add("--calibrate", type=Path, metavar="DATA", help="labelled items that are not in the index")
    why = "for other data than those of the fit, which has its own --holdout"
    _holdout(index, f"keep this share of DATA out of the index: {HALVES}; {why}")
    crossed = (
        "calibrate by cross-fitting in N parts: for all of the data of a fit without --holdout"
    )
    add("--cross-fit", type=integer(2), metavar="N", help=f"{crossed}, too few to hold any out")
    like = "open-set queries to expect: as many calibrate that find all but their own class"
    add(
        "--open-set-fraction",
        type=share,
        metavar="S",
        help=f"share of {like}; others may be nearer",
    )
    add("--allow-fitted", action="store_true", help=ALLOW)
    _common(index)


def _search(search: Parser) -> None:
    add = search.add_argument
    _index_folder(search)
    what = f"{DATA}, or one image"
    search.in_place["--text"] = add("queries", type=Path, metavar="QUERIES", help=what)
    asked = "a query in place of QUERIES; may be repeated"
    add("--text", action="append", default=[], metavar="TEXT", help=asked)
    add("-k", type=integer(1), default=5, metavar="K", help="neighbours of each query; default: 5")
    add("--precision", type=share, metavar="P", help=DECIDE)
    add("--output", type=Path, metavar="FILE", help="all results, as .csv, .json or .parquet")
    add("--picture", type=Path, metavar="FILE", help="a figure of the first queries, .png")
    _items(search)
    _saved_model(search)
    _common(search)


def _evaluate(evaluate: Parser) -> None:
    add = evaluate.add_argument
    _index_folder(evaluate)
    add("data", type=Path, metavar="DATA", help=QUERIES)
    add("--open-set", type=Path, metavar="DATA", help="open-set queries: none has a match")
    add("--allow-fitted", action="store_true", help=ALLOW)
    _items(evaluate)
    _saved_model(evaluate)
    _common(evaluate)


def _report(report: Parser) -> None:
    _output(report, "the page", Path("report.html"))
    _evaluate(report)


def _serve(serve: Parser) -> None:
    add = serve.add_argument
    _index_folder(serve)
    only_here = "default: 127.0.0.1, this machine alone"
    add("--host", default="127.0.0.1", metavar="ADDRESS", help=f"to listen at; {only_here}")
    add("--port", type=integer(0), default=8000, metavar="N", help="0: any; default: 8000")
    alive = "answers /healthz, by a thread of its own; default: the port behind --port"
    add("--health-port", type=integer(0), metavar="N", help=alive)
    told = "of the answers, where a request says neither precision nor threshold"
    add("--precision", type=share, metavar="P", help=f"promise this precision {told}")
    together = "most waiting queries in one call of a quick model; default: 16; 1: each alone"
    add("--batch", type=integer(1), default=16, metavar="N", help=together)
    add("--max-body", type=positive, default=10.0, metavar="MIB", help="of a request; default: 10")
    pixels = "default: 32,000,000, or 1,000,000 where images are not scaled"
    add("--max-pixels", type=integer(1), metavar="N", help=f"of an image; {pixels}")
    waiting = "requests at once, more are sent away; default: 64"
    add("--max-waiting", type=integer(1), default=64, metavar="N", help=waiting)
    _items(serve)
    connections = "of one client address, or of the proxy; default: 128"
    add("--max-connections", type=integer(1), default=128, metavar="N", help=connections)
    key = "a file with the key that requests must send; needed for a --host that others reach"
    add("--api-key-file", type=Path, metavar="FILE", help=key)
    add("--insecure", action="store_true", help="listen at such a --host without a key")
    _saved_model(serve)
    group = serve.add_argument_group("drift").add_argument
    reference = "held-out queries to compare with; default: those that calibrated the index"
    group("--reference", type=Path, metavar="DATA", help=reference)
    group("--window", type=integer(30), default=500, metavar="N", help="queries; default: 500")
    ever = "chance of an alarm, ever, without drift; default: 0.01"
    group("--false-alarms", type=share, default=0.01, metavar="A", help=ever)
    _reading(serve)
    add("--quiet", action="store_true", help="no notes; errors only")


def _demo(demo: Parser) -> None:
    page = Path("report.html")
    output = f"the report; default: {page}"
    demo.add_argument("--output", type=Path, default=page, metavar="FILE", help=output)


def _image_text(command: Parser) -> None:
    _add_commands(command, IMAGE_TEXT, "image-text")


def _completion(completion: Parser) -> None:
    shells = ("bash", "zsh")
    completion.add_argument("shell", choices=shells, metavar="SHELL", help=" or ".join(shells))


def _fit_pairs(fit: Parser) -> None:
    add = fit.add_argument
    what = "a table with the columns image (a path, seen from the table) and text; .csv or .tsv"
    add("data", type=Path, metavar="TABLE", help=f"{what}; any number of rows an image and a text")
    _towers(fit, required=True)
    add("--trust-recipe", action="store_true", help=CONFIG_TRUST)
    add("--output", "-o", type=Path, default=Path("image-text"), metavar="PATH",
        help="folder of heads and indices; default: image-text")  # fmt: skip
    losses = "prolip, prolip-regions, pcme++, siglip or clip; the last two learn no variances"
    add("--objective", default="prolip", metavar="NAME", help=f"{losses}; default: prolip")
    add("--dim", type=integer(2), default=64, metavar="N", help="of the embeddings; default: 64")
    add("--epochs", type=integer(1), default=30, metavar="N", help="default: 30")
    rate = "default: 0.003"
    add("--learning-rate", type=positive, default=3e-3, metavar="X", help=rate)
    kept = "of the images and of the texts that is kept out of the fit and calibrates; default: 0.2"
    add("--holdout", type=share, default=0.2, metavar="SHARE", help=f"share {kept}")
    add("--seed", type=integer(0), default=0, metavar="N", help="of training and holdout")
    add("--image-column", default="image", metavar="NAME", help="default: image")
    add("--text-column", default="text", metavar="NAME", help="default: text")
    add("--size", type=integer(1, MOST_SIDE), metavar="N", help=SIZE)
    add("--channels", type=int, choices=(1, 3), help="grey or RGB; default: as the first image")
    add("--skip-unreadable", action="store_true", help="leave out images that cannot be read")
    _reported(fit)


def _search_pairs(search: Parser) -> None:
    add = search.add_argument
    add("folder", type=Path, metavar="FOLDER", help="what image-text fit wrote")
    add("--text", action="append", default=[], metavar="TEXT", help="find images; may be repeated")
    what = "find texts; may be repeated"
    add("--image", action="append", default=[], type=Path, metavar="FILE", help=what)
    add("-k", type=integer(1), default=10, metavar="K", help="answers of each; default: 10")
    add("--precision", type=share, metavar="P", help=DECIDE)
    add("--output", type=Path, metavar="FILE", help="all results, as .csv, .json or .parquet")
    add("--picture", type=Path, metavar="FILE", help="a figure of the first queries, .png")
    _towers(search, required=False)
    trust = "run the code of the models that the folder's pairs.json names; else name them"
    add("--trust-recipe", action="store_true", help=trust)
    _reported(search)


def _towers(command: Parser, *, required: bool) -> None:
    add = command.add_argument
    add("--model", required=required, metavar="NAME", help=f"of images: {MODEL[:-2]}")
    default = "sentence-transformers:all-MiniLM-L6-v2"
    texts = f"default: {default}" if required else "as for fit"
    add("--text-model", default=default if required else None, metavar="NAME",
        help=f"of texts, named likewise; {texts}")  # fmt: skip
    add("--device", metavar="D", help="such as cuda or cpu; default: cpu")


def _holdout(command: Parser, description: str) -> None:
    command.add_argument("--holdout", type=share, metavar="SHARE", help=description)
    seed = "of the holdout; default: 0"
    command.add_argument("--seed", type=integer(0), default=0, metavar="N", help=seed)


def _model(command: Parser) -> None:
    command.add_argument("--model", metavar="NAME", help=f"{MODEL}none for embeddings")
    command.add_argument("--device", metavar="D", help="such as cuda or cpu; default: cpu")


def _saved_model(command: Parser) -> None:
    _model(command)
    trust = "run the code of the model that the posterior's recipe.json names; else give --model"
    command.add_argument("--trust-recipe", action="store_true", help=trust)


def _index_folder(command: Parser) -> None:
    add = command.add_argument
    add("index", type=Path, metavar="INDEX", help="what index, or Index.save in Python, wrote")
    add("--posterior", type=Path, metavar="DIR", help="of an index that was saved without it")


def _items(command: Parser) -> None:
    where = "the data that were indexed, to show items from; default: below the paths given here"
    command.add_argument("--data", type=Path, metavar="DATA", dest="item_data", help=where)


def _posterior(command: Parser) -> None:
    add = command.add_argument
    add(
        "--posterior",
        type=Path,
        required=True,
        metavar="DIR",
        help="what fit, or embedder.save in Python, wrote",
    )
    _saved_model(command)


def _output(command: Parser, what: str, default: Path | None = None) -> None:
    options: dict[str, Any] = {"type": Path, "default": default, "required": default is None}
    description = what if default is None else f"{what}; default: {default}"
    command.add_argument("--output", metavar="PATH", help=description, **options)


def _common(command: Parser) -> None:
    _reading(command)
    _kept(command)
    _reported(command)


def _kept(command: Parser) -> None:
    add = command.add_argument_group("features that commands share").add_argument
    where = "of what the model gave, up to 2 GiB; default: .laplace-metric-cache, beside the folder"
    add("--cache", type=Path, metavar="DIR", help=f"{where} of the posterior or index")
    add("--no-cache", action="store_true", help="keep nothing, and compute everything")


def _reading(command: Parser) -> None:
    add = command.add_argument_group("reading data").add_argument
    add("--size", type=integer(1, MOST_SIDE), metavar="N", help=SIZE)
    add("--channels", type=int, choices=(1, 3), help="grey or RGB; default: as the first image")
    add("--skip-unreadable", action="store_true", help="leave out images that cannot be read")
    add("--text-column", metavar="NAME", help="of a table; default: text")
    add("--label-column", metavar="NAME", help="of a table; default: label, if there is one")
    add("--id-column", metavar="NAME", help="of a table; default: id, if there is one")
    paths = "of a table of images; default: path or image, where there is no text"
    add("--image-column", metavar="NAME", help=paths)
    add("--labels", type=Path, metavar="FILE", help="of an .npy: .npy, or one a line")


def _reported(command: Parser) -> None:
    add = command.add_argument
    where = "a TOML file that sets options, such as the run.toml of an output folder"
    add(CONFIG, type=Path, metavar="FILE", help=where)
    add("--batch-size", type=integer(1), default=64, metavar="N", help="default: 64")
    add("--json", metavar="FILE", help="the result for machines; - for stdout")
    add("--quiet", action="store_true", help="no progress, notes or results; errors only")
    add("--overwrite", action="store_true", help="replace outputs that exist")


Commands = dict[str, tuple[str, str, Callable[[Parser], None]]]
"""Of each: its function (none if commands lie below it), what it does, what adds its options."""
IMAGE_TEXT: Commands = {
    "fit": (
        "_image_text_commands:fit_pairs",
        "train heads on pairs of images and texts, and index both, calibrated",
        _fit_pairs,
    ),
    "search": (
        "_image_text_commands:search_pairs",
        "find images by texts, and texts by images, and how sure each is",
        _search_pairs,
    ),
}
COMMANDS: Commands = {
    "fit": (
        "_fit:fit",
        "fit a posterior to the last layer of a trained embedder. Needs items with labels; "
        "interrupted, the same command goes on from where it was",
        _fit,
    ),
    "embed": (
        "_fit:embed",
        "write embeddings with their uncertainty to a file. Interrupted, the same command goes on "
        "from where it was",
        _embed,
    ),
    "index": (
        "_index:index",
        "build an index to search in, and calibrate what a match in it looks like. The folder "
        "holds all that a search needs but the model",
        _index,
    ),
    "search": (
        "_search:search",
        "find the neighbours of queries, and how sure each is. With a calibrated index: the "
        "probability of a match, and which queries are unknown",
        _search,
    ),
    "evaluate": (
        "_index:evaluate",
        "measure how much the answers of an index can be trusted. Needs labelled queries",
        _evaluate,
    ),
    "report": (
        "report._command:report",
        "write a web page that says how far to trust an index: a verdict, queries with their "
        "neighbours, figures, every number. It needs nothing from outside",
        _report,
    ),
    "serve": (
        "serve._command:serve",
        "answer searches over HTTP. Needs the extra laplace-metric[serve]",
        _serve,
    ),
    "image-text": (
        "",
        "search images by texts and texts by images. Of pairs that you have: fit, then search",
        _image_text,
    ),
    "demo": (
        "_demo:demo",
        "answer or abstain on handwritten digits, and write the report. Runs fit, index, search "
        "and report as a user would; needs no download and takes well under a minute",
        _demo,
    ),
    "completion": (
        "_completion:completion",
        "write a script that completes commands and options with the tab key. For ~/.bashrc or "
        "~/.zshrc",
        _completion,
    ),
}
EXAMPLES = {
    "fit": "laplace-metric fit photos --model my_model:embedder --holdout 0.4",
    "embed": "laplace-metric embed photos --posterior posterior --trust-recipe --output photos.npz",
    "index": "laplace-metric index photos --posterior posterior --trust-recipe",
    "search": "laplace-metric search index new -k 3 --output matches.csv --trust-recipe",
    "evaluate": "laplace-metric evaluate index photos --trust-recipe --json numbers.json",
    "report": "laplace-metric report index photos --trust-recipe",
    "serve": "laplace-metric serve index --trust-recipe --precision 0.9",
    "image-text": "laplace-metric image-text search image-text --text 'a cat' --trust-recipe",
    "image-text fit": "laplace-metric image-text fit pairs.csv --model my_model:embedder",
    "image-text search": "laplace-metric image-text search image-text --text cat --trust-recipe",
    "demo": "laplace-metric demo --output demo.html",
    "completion": "laplace-metric completion bash",
}
"""What the help of each command ends with."""
