"""What each protocol asks, in words, and the metric that answers it first."""

from __future__ import annotations

from typing import NamedTuple


class Words(NamedTuple):
    """``main`` is the metric of the paired differences and of the cost plane."""

    title: str
    question: str
    main: str


WORDS = {
    "lam": Words(
        "Retrieval, calibration, strange inputs",
        "Does the uncertainty know which answers are wrong, is the confidence honest, and are "
        "inputs from elsewhere noticed? (Warburg et al. 2023)",
        "r_auroc",
    ),
    "pretrained": Words(
        "Published encoders as they come",
        "The same questions without any training: a linear layer that starts as the identity is "
        "all that methods are fitted on.",
        "r_auroc",
    ),
    "url": Words(
        "Classes that training never saw",
        "Does the uncertainty carry over to new classes, to crops, and to mixtures of old and new "
        "classes? (URL, Kirchhof et al. 2023)",
        "r_auroc",
    ),
    "fewshot": Words(
        "A few examples of the new classes",
        "What does training on with a few examples of new classes do for others, in retrieval "
        "and in uncertainty?",
        "r_auroc 5 shots",
    ),
    "human": Words(
        "Where people disagree",
        "Is the uncertainty high where many people gave an image different names?",
        "entropy rank",
    ),
    "corruption": Words(
        "Worse and worse pictures",
        "Does the uncertainty grow with the severity of noise, blur, weather and compression?",
        "severity mean",
    ),
}
RECOVERY = Words(
    "Posteriors that are known",
    "Data from a process whose posteriors are known: are their place and their width recovered?",
    "",
)


def words(protocol: str) -> Words:
    """Of a protocol; its bare name where nothing is said about it."""
    return WORDS.get(protocol, Words(protocol, "", "r_auroc"))
