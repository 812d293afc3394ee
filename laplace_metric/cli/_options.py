"""Commands with their options, and messages of the library in the words of these options.

head='append'  ->  --head append          folds=300  ->  --cross-fit 300
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from laplace_metric.cli._parser import (
    Command,
    Option,
    argument,
    choice,
    flag,
    grouped_under,
    integer,
    positive,
    share,
)

MOST_SIDE = 8_192
"""Pixels a side that images are scaled to."""

_KINDS = (
    "folder of images (DIR/<class>/*.png), .csv or .parquet of texts or of paths of images, .npy, "
    ".npz, .safetensors"
)
_MODELS = (
    "package.module:factory, timm:NAME, torchvision:NAME, open_clip:NAME/WEIGHTS, hf:NAME or "
    "sentence-transformers:NAME"
)
_HALVES = "half calibrates, half is for evaluate and report"
_MINILM = "sentence-transformers:all-MiniLM-L6-v2"


def _trust(place: str) -> Option:
    return flag(f"--trust-recipe: run the code of the model that {place} names; else give --model")


def _output(text: str, default: str | None = None) -> Option:
    path = None if default is None else Path(default)
    return Option(f"--output PATH: {text}", Path, path, required=path is None)


# Options that commands share.

DATA = argument(f"data DATA: {_KINDS}")
INDEX = (
    argument("index INDEX: what index, or Index.save in Python, wrote"),
    Option("--posterior DIR: of an index that was saved without it", Path),
)
DEVICE = Option("--device D: such as cuda or cpu; default: cpu")
MODEL = (Option(f"--model NAME: {_MODELS}; none for embeddings"), DEVICE)
SAVED_MODEL = (*MODEL, _trust("the posterior's recipe.json"))
CONFIGURED_MODEL = _trust("the file of --config")
POSTERIOR = Option(
    "--posterior DIR: what fit, or embedder.save in Python, wrote", Path, required=True
)
ITEMS = Option(
    "--data DATA: where the indexed items are, to show them; default: below the paths given here",
    Path,
    dest="item_data",
)
ALLOW_FITTED = flag(
    "--allow-fitted: use items of the fit, whose results are better than those of new items"
)
FOUND = (
    Option(
        "--precision P: answer or abstain: this share of answers is right, with 95 % confidence",
        share,
    ),
    Option("--output FILE: all results, as .csv, .json or .parquet", Path),
    Option("--picture FILE: a figure of the first queries, .png", Path),
)
SEED = Option("--seed N: of the holdout", integer(0), 0)
IMAGES = (
    Option("--size N: scale images to N x N; default: as they are", integer(1, MOST_SIDE)),
    Option("--channels {1,3}: grey or RGB; default: as the first image", int, choices=("1", "3")),
    flag("--skip-unreadable: leave out images that cannot be read"),
)
READING = grouped_under(
    "reading data",
    *IMAGES,
    Option("--text-column NAME: of a table; default: text"),
    Option("--label-column NAME: of a table; default: label, if there is one"),
    Option("--id-column NAME: of a table; default: id, if there is one"),
    Option("--image-column NAME: of a table of images without texts; default: path or image"),
    Option("--labels FILE: of an .npy: .npy, or one a line", Path),
)
CACHE = grouped_under(
    "features that commands share",
    Option(
        "--cache DIR: of what the model gave, up to 2 GiB; default: .laplace-metric-cache, next to "
        "the folder of the posterior or index",
        Path,
    ),
    flag("--no-cache: store nothing, and compute everything"),
)
REPORTING = (
    Option("--config FILE: a TOML file of options, such as the run.toml of an output folder", Path),
    Option("--batch-size N", integer(1), 64),
    Option("--json FILE: the result for machines; - for stdout"),
    flag("--quiet: no progress, notes or results; errors only"),
    flag("--overwrite: replace outputs that exist"),
)
COMMON = (*READING, *CACHE, *REPORTING)

# Options of each command.

FIT = (
    DATA,
    *MODEL,
    CONFIGURED_MODEL,
    Option(
        "--head NAME: the layer that gets the posterior, by its name in the model, such as fc or "
        "backbone.fc; append (--head append): a new linear layer behind a model that ends without "
        "one; default: the last linear layer, or append for published models"
    ),
    _output("folder of the posterior", "posterior"),
    choice("--structure", "of the curvature", "auto", "diag", "kron", "full"),
    choice("--distance", "", "arccos", "euclidean"),
    choice("--hessian", "", "fixed", "positives", "full"),
    choice("--positivity", "negative curvature counts by its size, or not", "absolute", "clip"),
    Option("--margin X: negative pairs farther apart do not count; default: all count", positive),
    Option("--prior-precision X", positive, 1.0),
    flag("--optimize-prior: choose it by the marginal likelihood"),
    Option(
        "--checkpoint DIR: of an interrupted fit, kept; default: in the output while fitting", Path
    ),
    Option(
        f"--holdout SHARE: keep this share of DATA out of the fit, and index follows: {_HALVES}",
        share,
    ),
    SEED,
    *COMMON,
)
EMBED = (DATA, POSTERIOR, *SAVED_MODEL, _output(".safetensors, .npz, .parquet or .csv"), *COMMON)
BUILD = (
    DATA,
    POSTERIOR,
    *SAVED_MODEL,
    _output("folder of the index", "index"),
    choice("--engine", "flat is exact", "flat", "ivf", "hnsw"),
    choice("--rank-by", "", "mean", "expected", "shared"),
    flag("--compact: for millions of items: store no head inputs"),
    Option("--calibrate DATA: labelled items that are not in the index", Path),
    Option(
        f"--holdout SHARE: keep this share of DATA out of the index: {_HALVES}; for other data "
        "than those of the fit, which has its own --holdout",
        share,
    ),
    SEED,
    Option(
        "--cross-fit N: calibrate by cross-fitting in N parts: for all of the data of a fit "
        "without --holdout, too few to hold any out",
        integer(2),
    ),
    Option(
        "--open-set-fraction S: share of open-set queries to expect: as many calibrate that find "
        "all but their own class; others may be nearer",
        share,
    ),
    ALLOW_FITTED,
    *COMMON,
)
SEARCH = (
    *INDEX,
    argument(f"queries QUERIES: {_KINDS}, or one image", required=False),
    Option("--text TEXT: a query in place of QUERIES; may be repeated", default=[], repeated=True),
    Option("-k K: neighbours of each query", integer(1), 5),
    *FOUND,
    ITEMS,
    *SAVED_MODEL,
    *COMMON,
)
EVALUATE = (
    *INDEX,
    argument("data DATA: labelled queries; of data of the fit or index, what --holdout kept apart"),
    Option("--open-set DATA: open-set queries: none has a match", Path),
    ALLOW_FITTED,
    ITEMS,
    *SAVED_MODEL,
    *COMMON,
)
SERVE = (
    *INDEX,
    Option("--host ADDRESS: to listen at; the default is this machine alone", str, "127.0.0.1"),
    Option("--port N: 0: any; default: 8000", integer(0), 8000),
    Option("--health-port N: of a thread for /healthz; default: the one behind --port", integer(0)),
    Option("--precision P: guarantee this where a request sets no precision or threshold", share),
    Option("--batch N: most waiting queries in one call of a quick model", integer(1), 16),
    Option("--max-body MIB: of a request; default: 10", positive, 10.0),
    Option(
        "--max-pixels N: of an image; default: 32,000,000, or 1,000,000 without --size", integer(1)
    ),
    Option("--max-waiting N: requests at once, more are sent away", integer(1), 64),
    ITEMS,
    Option("--max-connections N: of one client address, or of the proxy", integer(1), 128),
    Option("--api-key-file FILE: the key of requests; needed for a --host others reach", Path),
    flag("--insecure: listen at such a --host without a key"),
    *SAVED_MODEL,
    *grouped_under(
        "drift",
        Option("--reference DATA: queries to compare with; default: the calibration's", Path),
        Option("--window N: queries", integer(30), 500),
        Option("--false-alarms A: chance of an alarm, ever, without drift", share, 0.01),
    ),
    *READING,
    flag("--quiet: no notes; errors only"),
)
FIT_PAIRS = (
    argument(
        "data TABLE: a table with the columns image (a path, seen from the table) and text; .csv "
        "or .tsv; any number of rows an image and a text"
    ),
    Option(f"--model NAME: of images: {_MODELS}", required=True),
    Option("--text-model NAME: of texts, named likewise", default=_MINILM),
    DEVICE,
    CONFIGURED_MODEL,
    _output("folder of heads and indices", "image-text"),
    Option(
        "--objective NAME: prolip, prolip-regions, pcme++, siglip or clip; the last two learn no "
        "variances",
        default="prolip",
    ),
    Option("--dim N: of the embeddings", integer(2), 64),
    Option("--epochs N", integer(1), 30),
    Option("--learning-rate X", positive, 3e-3),
    Option("--holdout SHARE: of images and of texts, kept out of the fit to calibrate", share, 0.2),
    Option("--seed N: of training and holdout", integer(0), 0),
    Option("--image-column NAME", default="image"),
    Option("--text-column NAME", default="text"),
    *IMAGES,
    *REPORTING,
)
SEARCH_PAIRS = (
    argument("folder FOLDER: what image-text fit wrote"),
    Option("--text TEXT: find images; may be repeated", default=[], repeated=True),
    Option("--image FILE: find texts; may be repeated", Path, [], repeated=True),
    Option("-k K: answers of each", integer(1), 10),
    *FOUND,
    Option(f"--model NAME: of images: {_MODELS}"),
    Option("--text-model NAME: of texts, named likewise; default: as for fit"),
    DEVICE,
    _trust("the folder's pairs.json"),
    *REPORTING,
)
DECIDE = (
    argument(
        "data TABLE: a .csv or .tsv, one hit a row: columns query, score, item (if there is one), "
        "and to learn a rule relevant (1, 0, or -1: not judged)"
    ),
    Option("--precision P: learn: this share of the answers is right, at least", share),
    Option("--recall R: learn: this share of the right first hits is answered, at least", share),
    Option("--fmr F: learn: false match rate of the comparisons, at most", share),
    Option("--fpir F: learn: queries without a match that are answered, at most", share),
    Option("--confidence C: of the guarantee", share, 0.95),
    choice("--kind", "of the scores", "similarity", "distance", "score"),
    Option("--apply RULE: use a rule that was learnt, on a table without relevant", Path),
    Option("--output FILE: rule.json; of --apply decisions.csv, .json or .parquet", Path),
    Option("--json FILE: the result for machines; - for stdout"),
    flag("--quiet: no notes or results; errors only"),
    flag("--overwrite: replace outputs that exist"),
)
SHELL = Option("shell SHELL: bash or zsh", choices=("bash", "zsh"), required=True)
COMMANDS = {
    "fit": Command(
        "fit a posterior to the last layer of a trained embedder. Needs items with labels; "
        "interrupted, the same command goes on from where it was",
        "photos --model my_model:embedder --holdout 0.4",
        "_fit:fit",
        FIT,
    ),
    "embed": Command(
        "write embeddings with their uncertainty to a file. Interrupted, the same command goes on "
        "from where it was",
        "photos --posterior posterior --trust-recipe --output photos.npz",
        "_fit:embed",
        EMBED,
    ),
    "index": Command(
        "build an index to search in, and calibrate what a match in it looks like. The folder "
        "holds all that a search needs but the model",
        "photos --posterior posterior --trust-recipe",
        "_index:index",
        BUILD,
    ),
    "search": Command(
        "find the neighbours of queries, and how sure each is. With a calibrated index: the "
        "probability of a match, and which queries are unknown",
        "index new -k 3 --output matches.csv --trust-recipe",
        "_search:search",
        SEARCH,
    ),
    "evaluate": Command(
        "measure how much the answers of an index can be trusted. Needs labelled queries",
        "index photos --trust-recipe --json numbers.json",
        "_index:evaluate",
        EVALUATE,
    ),
    "report": Command(
        "write a web page that says how far to trust an index: a verdict, queries with their "
        "neighbours, figures, every number. It needs nothing from outside",
        "index photos --trust-recipe",
        "report._command:report",
        (_output("the page", "report.html"), *EVALUATE),
    ),
    "serve": Command(
        "answer searches over HTTP. Needs the extra laplace-metric[serve]",
        "index --trust-recipe --precision 0.9",
        "serve._command:serve",
        SERVE,
    ),
    "decide": Command(
        "answer or abstain by the scores of any search. Learns a rule with a guarantee from judged "
        "hits, and applies it; needs no model and no items",
        "scores.csv --precision 0.95",
        "_decide:decide",
        DECIDE,
    ),
    "image-text": Command(
        "search images by texts and texts by images. Of pairs that you have: fit, then search",
        "search image-text --text 'a cat' --trust-recipe",
    ),
    "image-text fit": Command(
        "train heads on pairs of images and texts, and index both, calibrated",
        "pairs.csv --model my_model:embedder",
        "_image_text:fit_pairs",
        FIT_PAIRS,
    ),
    "image-text search": Command(
        "find images by texts, and texts by images, and how sure each is",
        "image-text --text cat --trust-recipe",
        "_image_text:search_pairs",
        SEARCH_PAIRS,
    ),
    "demo": Command(
        "answer or abstain on handwritten digits, and write the report. Runs fit, index, search "
        "and report as a user would; needs no download and takes well under a minute",
        "--output demo.html",
        "_demo:demo",
        (_output("the report", "report.html"),),
    ),
    "completion": Command(
        "write a script that completes commands and options with the tab key. For ~/.bashrc or "
        "~/.zshrc",
        "bash",
        "_completion:completion",
        (SHELL,),
    ),
}
"""By their words; a group of commands, without a function, stands before its own."""


def commands_in(group: str) -> dict[str, Command]:
    """The commands of a group, or of the program (""), by the word that names each there."""
    names = ((name, name.rpartition(" ")) for name in COMMANDS)
    return {word: COMMANDS[name] for name, (before, _, word) in names if before == group}


# Messages of the library in the words of the command line.

_ALIASES = {"folds": "--cross-fit", "checkpoint_dir": "--checkpoint"}
"""Arguments of the library whose options are called otherwise."""
_VALUE = r"""'[^']*'|"[^"]*"|\.\.\.|[-+]?\d[\d_]*(?:\.\d+)?(?:e[-+]?\d+)?|\w+|"""


@cache
def option_names() -> dict[str, str]:
    """Return the name of a library's argument on the command line."""
    options = (option for command in COMMANDS.values() for option in command.options)
    return {option.key: option.name for option in options if not option.positional} | _ALIASES


def in_options(text: str) -> str:
    """A message whose arguments are written as options.

    Examples
    --------
    >>> in_options("pass head='append' for a new layer, or structure='diag' with k=3.")
    'pass --head append for a new layer, or --structure diag with -k 3.'
    >>> in_options("head=...: pass labels=, or compact=True")
    '--head NAME: pass --labels, or --compact'
    """
    known = "|".join(option_names())
    return re.sub(rf"(?<![\w./=-])({known})=({_VALUE})", _as_option, text)


def _as_option(found: re.Match[str]) -> str:
    name, value = option_names()[found[1]], found[2].strip("'\"")
    if value in ("", "True"):
        return name
    return f"{name} {'NAME' if value == '...' else value}"
