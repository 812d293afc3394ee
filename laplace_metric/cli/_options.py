"""Commands with their options, and messages of the library in the words of these options.

The texts below are the only place that knows an option: the parser, the help and the
words of errors follow from them, see ``_parser.add_option`` for their grammar.
The first line of a command is about it, the second is an example.

head='append'  ->  --head append          folds=300  ->  --cross-fit 300
"""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from functools import cache

from laplace_metric.cli._parser import CommandParser

MOST_SIDE = 8_192
"""Pixels a side that images are scaled to."""
MOST_PORT = 65_535

_KINDS = (
    "folder of images (DIR/<class>/*.png), .csv of texts or of paths of images, .npy, "
    ".npz, .safetensors"
)
_MODELS = "package.module:name"
_HALVES = "half calibrates, half is for evaluate and report"

# Options that commands share.

_DEVICE = "--device D: such as cuda or cpu; default: cpu\n"
_MODEL = f"--model NAME: {_MODELS}; none for embeddings\n{_DEVICE}"
_TRUST = "--trust-recipe: run the code of the model that {} names; else give --model\n"
_SAVED_MODEL = _MODEL + _TRUST.format("the file of the posterior")
_SEED = "--seed N>=0 = 0: of the holdout\n"
_INDEX = """\
index INDEX!: what index, or Index.save in Python, wrote
--posterior FILE: of an index that was saved without it
"""
_FITTED = f"""\
data DATA!: {_KINDS}
--posterior FILE!: what fit, or embedder.save in Python, wrote
{_SAVED_MODEL}"""
_ITEMS = """\
--data DATA as item_data: where the indexed items are, to show them; default: below the paths \
given here
"""
_ALLOW_FITTED = """\
--allow-fitted: use items of the fit, whose results are better than those of new items
"""
_VIEWS = """\
--group-column NAME: of a table: the rows of a group, such as the frames of a track, are views of \
one thing, which is one query
"""
_FOUND = """\
--precision P: answer or abstain: this share of answers is right, with 95 % confidence
--output FILE: all results, as .csv or .json
--picture FILE: a figure of the first queries, .png
"""
_IMAGES = f"""\
--size N<={MOST_SIDE}: scale images to N x N; default: as they are
--channels 1|3: grey or RGB; default: as the first image
--skip-unreadable: leave out images that cannot be read
"""
_READING = f"""\
[reading data]
{_IMAGES}\
--text-column NAME: of a table; default: text
--label-column NAME: of a table; default: label, if there is one
--id-column NAME: of a table; default: id, if there is one
--image-column NAME: of a table of images without texts; default: path or image
--labels FILE: of an .npy: .npy, or one a line
[]
"""
_RESULT = """\
--json FILE: the result for machines; - for stdout
--quiet: no progress, notes or results; errors only
--overwrite: replace outputs that exist
"""
_RUN = f"""\
--batch-size N = 64
{_RESULT}"""
_COMMON = f"""\
{_READING}\
{_RUN}"""
_MEASURED = f"""\
{_INDEX}\
data DATA!: labelled queries; of data of the fit or index, what --holdout kept apart
--open-set DATA: open-set queries: none has a match
{_ALLOW_FITTED}{_ITEMS}{_SAVED_MODEL}{_COMMON}"""

# Each command: about it, an example, its options.

FIT = f"""\
fit a posterior to the last layer of a trained embedder. Needs items with labels; interrupted, \
the same command goes on from where it was
photos --model my_model:embedder --holdout 0.4
data DATA!: {_KINDS}
{_MODEL}\
--head NAME: the layer that gets the posterior, by its name in the model, such as fc or \
backbone.fc; append (--head append): a new linear layer behind a model that ends without one; \
default: the last linear layer, or append for published models
--output PATH = posterior: file of the posterior
--structure auto|diag|kron|full = auto: of the curvature
--distance auto|arccos|euclidean = auto: arccos for a model and for vectors of length 1, else \
euclidean
--hessian auto|fixed|positives|full = auto: positives for vectors compared by euclidean, else fixed
--positivity absolute|clip = absolute: negative curvature counts by its size, or not
--margin X: negative pairs farther apart do not count; default: all count
--prior-precision X: of the isotropic Gaussian prior; default: the information of one observation
--temperature X: factor of the covariance; default: draws of new embeddings stay well \
inside of their class
--optimize-prior: choose it by the marginal likelihood
--checkpoint DIR: of an interrupted fit, kept; default: next to the output while fitting
--holdout SHARE: keep this share of DATA out of the fit, and index follows: {_HALVES}
{_SEED}{_COMMON}"""
EMBED = f"""\
write embeddings with their uncertainty to a file
photos --posterior posterior --trust-recipe --output photos.npz
{_FITTED}\
--output PATH!: .safetensors, .npz or .csv
{_COMMON}"""
INDEX = f"""\
build an index to search in, and calibrate what a match in it looks like. The file holds all \
that a search needs but the model
photos --posterior posterior --trust-recipe
{_FITTED}\
--output PATH = index: file of the index
--engine flat|ivf|hnsw = flat: flat is exact
--rank-by auto|mean|predictive|expected|shared = auto: predictive finds items by the expected \
inner product under uncertain weights; auto: where it finds more of the labelled items
--compact: for millions of items: store no head inputs
--calibrate DATA: labelled items that are not in the index
--holdout SHARE: keep this share of DATA out of the index: {_HALVES}; for other data than those \
of the fit, which has its own --holdout
{_SEED}\
--cross-fit N>=0: calibrate by cross-fitting in N parts, for all of the data of a fit without \
--holdout; 0: not. By default 5 up to 5,000 items, which are too few to hold any out
--open-set-fraction S: share of open-set queries to expect: as many calibrate that find all but \
their own class; others may be nearer
--group-column NAME: of a table: group of each item that calibrates, such as its video: items of a \
group find no other one of it, and groups are counted
--one-answer: with --group-column and --calibrate: the rows of a group are views of one thing, \
which is one query, as later for search --group-column
{_ALLOW_FITTED}{_COMMON}"""
SEARCH = f"""\
find the neighbours of queries, and how sure each is. With a calibrated index: the probability of \
a match, and which queries are unknown
index new -k 3 --output matches.csv --trust-recipe
{_INDEX}\
queries QUERIES: {_KINDS}, or one image
--text TEXT*: a query in place of QUERIES; may be repeated
-k K = 5: neighbours of each query
{_VIEWS}{_FOUND}\
--by-class: with --precision: of the answers with each label, not of all together
--coarser TABLE: with --precision: .csv or .tsv with a column label and columns of groups, from \
fine to coarse: a query whose label is not sure enough is answered with the finest group that is
{_ITEMS}{_SAVED_MODEL}{_COMMON}"""
EVALUATE = f"""\
measure how much the answers of an index can be trusted. Needs labelled queries
index photos --trust-recipe --json numbers.json
{_VIEWS}{_MEASURED}"""
REPORT = f"""\
write a web page that says how far to trust an index: a verdict, queries with their neighbours, \
figures, every number. It needs nothing from outside
index photos --trust-recipe
--output PATH = report.html: the page
--table FILE: every query in a .csv or .json, those to look at first on top: open-set queries that \
were let in, wrong answers, items whose label is likely another, what was not answered
--coarser TABLE: of groups of the labels, as for search: a table of what each level answers
{_MEASURED}"""
SERVE = f"""\
answer searches over HTTP, by uvicorn. Needs the extra laplace-metric[serve]
index --trust-recipe --precision 0.9
{_INDEX}\
--host ADDRESS = 127.0.0.1: to listen at; the default is this machine alone
--port N>=0<={MOST_PORT} = 8000: 0: any
--precision P: guarantee this where a request asks for no precision
--coarser TABLE: of groups of the labels, as for search: answers with a precision have a level
--api-key-file FILE: the key of requests; default: LAPLACE_METRIC_API_KEY of the environment
--insecure: listen without a key at a --host that others reach
--batch N = 16: most waiting queries in one call of the model
--max-waiting N = 64: requests that wait for the model; more get 503
--max-body MIB = 10: of a request
{_SAVED_MODEL}\
{_READING}\
--quiet: no notes; errors only
"""
DECIDE = f"""\
answer or abstain by the scores of any search. Learns a rule with a guarantee from judged hits, \
and applies it; needs no model and no items
scores.csv --precision 0.95
data TABLE!: a .csv or .tsv, one hit a row in any order: columns query, score, item (if there is \
one), and to learn a rule relevant (1, 0, true, false; -1 or an empty cell: not judged)
--precision P: learn: this share of the answers is right, at least
--recall R: learn: this share of the right first hits is answered, at least
--fmr F: learn: false match rate of the comparisons, at most
--fpir F: learn: queries without a match that are answered, at most
--confidence C = 0.95: of the guarantee
--kind similarity|distance|score|fused = similarity: of the scores
--cross-fit N>=0: parts, each tested by a fit to the others; 0: one half tests, proven; default: 5 \
of fewer than 1,000 queries
--query-column NAME = query
--score-column NAME = score
--item-column NAME: of what was found; default: item, if there is one
--relevant-column NAME = relevant
--group-column NAME: group of each query, such as its session or video: queries of a group depend \
on each other, and groups are counted
--by-class: learn: the precision of the answers with each label, that of the first hit
--label-column NAME = label: label of what was found, for --by-class
--of match|hits = match: the precision of the first hit of each query, or of all hits passed on
--apply RULE: use a rule that was learnt, on a table without relevant
--output FILE: rule.safetensors; of --apply answers.csv or .json
{_RESULT}"""
PAIRS = """\
search images by texts and texts by images. Of pairs that you have: fit, then search
search image-text --text 'a cat' --trust-recipe
"""
FIT_PAIRS = f"""\
train heads on pairs of images and texts, and index both, calibrated
pairs.csv --model my_model:images --text-model my_model:texts
data TABLE!: a table with the columns image (a path, seen from the table) and text; .csv or .tsv; \
any number of rows an image and a text
--model NAME!: of images: {_MODELS}
--text-model NAME!: of texts, named likewise
{_DEVICE}\
--output PATH = image-text: file of heads and indices
--objective NAME = prolip: prolip, prolip-regions, pcme++, siglip or clip; the last two learn no \
variances
--dim N>=2 = 64: of the embeddings
--epochs N = 30
--learning-rate X = 0.003
--holdout SHARE = 0.2: of images and of texts, kept out of the fit to calibrate
--seed N>=0 = 0: of training and holdout
--image-column NAME = image
--text-column NAME = text
{_IMAGES}{_RUN}"""
SEARCH_PAIRS = f"""\
find images by texts, and texts by images, and how sure each is
image-text --text cat --trust-recipe
file FILE!: what image-text fit wrote
--text TEXT*: find images; may be repeated
--image FILE*: find texts; may be repeated
-k K = 10: answers of each
{_FOUND}\
--model NAME: of images: {_MODELS}
--text-model NAME: of texts, named likewise; default: as for fit
{_DEVICE}{_TRUST.format("the file")}{_RUN}"""
DEMO = """\
answer or abstain on handwritten digits, and write the report. Runs fit, index, search and report \
as a user would, by commands that can be repeated; needs no download and takes well under a minute
--output my-demo
--output PATH = laplace-metric-demo: new folder for images, results and report.html
"""
TOP = """\
honest uncertainty for any embedder

--version: show the version, and stop
"""
COMMANDS = {
    "": (TOP, ""),
    "fit": (FIT, "cli._fit:fit"),
    "embed": (EMBED, "cli._embed:embed"),
    "index": (INDEX, "cli._index:index"),
    "search": (SEARCH, "cli._search:search"),
    "evaluate": (EVALUATE, "cli._evaluate:evaluate"),
    "report": (REPORT, "cli._report:report"),
    "serve": (SERVE, "serve:serve"),
    "decide": (DECIDE, "cli._decide:decide"),
    "image-text": (PAIRS, ""),
    "image-text fit": (FIT_PAIRS, "cli._image_text:fit_pairs"),
    "image-text search": (SEARCH_PAIRS, "cli._image_text:search_pairs"),
    "demo": (DEMO, "cli._demo:demo"),
}
"""By their words: the text, and ``module:name`` of what carries it out, "" for a group."""


def commands_in(group: str) -> dict[str, str]:
    """Return the texts of the commands of a group, or of the program (""), by their names."""
    names = ((name, name.rpartition(" ")) for name in COMMANDS if name)
    return {word: COMMANDS[name][0] for name, (before, _, word) in names if before == group}


def parser_of(name: str) -> CommandParser:
    """Return the parser of a command or a group."""
    return CommandParser(name, COMMANDS[name][0], commands_in(name))


# Messages of the library in the words of the command line.

_ALIASES = {"folds": "--cross-fit", "checkpoint_dir": "--checkpoint"}
"""Arguments of the library whose options are called otherwise."""
_VALUE = r"""'[^']*'|"[^"]*"|\.\.\.|[-+]?\d[\d_]*(?:\.\d+)?(?:e[-+]?\d+)?|\w+|"""


@cache
def option_names() -> dict[str, str]:
    """Return the name of a library's argument on the command line."""
    options = (option for name in COMMANDS if name for option in parser_of(name).options)
    return {o.dest: o.option_strings[0] for o in options if o.option_strings} | _ALIASES


def in_options(text: str) -> str:
    """Return a message whose arguments are written as options.

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


def command_text(options: Namespace) -> str:
    """Return the command that gives these options, without those that have their defaults.

    Examples
    --------
    >>> command_text(parser_of("search").parse(["index", "--text", "a cat", "-k", "3"]))
    "laplace-metric search index --text 'a cat' -k 3"
    """
    parser = parser_of(options.command)
    places, named = list[str](), list[str]()
    for action in parser.options:
        value = getattr(options, action.dest)
        if not action.option_strings:
            places += [] if value is None else [str(value)]
        elif action.nargs == 0:
            named += [action.option_strings[0]] if value else []
        elif value != parser.get_default(action.dest) and str(value) != str(action.default):
            for one in value if isinstance(value, list) else [value]:
                named += [action.option_strings[0], str(one)]
    return shlex.join([*parser.prog.split(), *places, *named])
