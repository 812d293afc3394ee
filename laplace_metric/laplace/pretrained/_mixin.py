"""``save_pretrained`` and ``from_pretrained``, as users of hubs know them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from laplace_metric._utils.files import INDEX, settled_together
from laplace_metric._utils.validation import as_path
from laplace_metric.laplace.after_fit import Saved
from laplace_metric.laplace.pretrained._card import Numbers
from laplace_metric.laplace.pretrained._folder import CONFIG, network_of, save_folder

if TYPE_CHECKING:
    from typing_extensions import Self


class Pretrained(Saved):
    """Folders with the weights of the model and a card, beside those of ``save``."""

    def save_pretrained(
        self,
        folder: str | Path,
        *,
        weights: bool = True,
        base_model: str | None = None,
        license: str | None = None,
        numbers: Numbers | None = None,
    ) -> None:
        """Write a folder that a hub can hold: posterior, weights, ``config.json``, a model card.

        All of it is safetensors, JSON and Markdown, written as ``save`` writes: whole or not at
        all. What ``save`` writes is part of it, so that ``load`` and the command line
        (``--posterior``) read it too. ``huggingface_hub.upload_folder`` pushes it.

        Parameters
        ----------
        folder : path
        weights : bool
            Write the weights of the model as well; False for one that others have published.
        base_model : str or None
            Name of that one, or of the one that this model began as; for the card and messages.
        license : str or None
            Of the folder, such as "apache-2.0"; None: the card says "unknown".
        numbers : IndexReport, mapping of name to number, or None
            What was measured, for the card (``index.evaluate(queries, labels)``).

        Raises
        ------
        WeightsChangedError
            If the head no longer has the weights of the fit.
        InputError
            For a state of the model that is no tensor, and numbers of another kind.
        WriteError
            If the folder cannot be written; what was there before is kept.

        Notes
        -----
        A ``README.md`` that somebody has changed is left as it is.

        Examples
        --------
        >>> import tempfile, torch
        >>> from laplace_metric import LaplaceEmbedder
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> x, y = torch.randn(20, 4), torch.arange(20) % 2
        >>> embedder = LaplaceEmbedder(model).fit(x, y, progress=False)
        >>> fresh = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     embedder.save_pretrained(folder, license="apache-2.0", numbers={"recall@1": 0.9})
        ...     loaded = LaplaceEmbedder.from_pretrained(folder, fresh)
        >>> bool((loaded(x).variance == embedder(x).variance).all())
        True
        """
        fitted = self._fitted_to_these_weights(values=True)
        about = {"base_model": base_model, "license": license}
        path = as_path("folder", folder)
        save_folder(path, self.model, self.settings, fitted, about, numbers, weights=weights)

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        model: nn.Module | Callable[[], nn.Module] | None = None,
        *,
        revision: str | None = None,
    ) -> Self:
        """Read what ``save_pretrained`` wrote, from a folder or a hub.

        Parameters
        ----------
        source : path or "owner/name"
            A folder; else a repository of the Hugging Face hub (package huggingface_hub), which
            is downloaded once and then read from the cache of this machine.
        model : nn.Module, a function without arguments that makes one, or None
            The network, whose weights need not be those of the folder: then a copy of it gets
            them, and it stays as it is. None: a posterior of ``from_embeddings``.
        revision : str or None
            Branch, tag or commit of the repository.

        Raises
        ------
        FileFormatError
            If the folder is not ours, damaged, newer, or of another network.
        InputError
            Without the model that the posterior needs, or a repository that cannot be read.
        MissingPackageError
            For a repository without the package huggingface_hub.
        """
        from laplace_metric.laplace.pretrained._hub import local_folder

        folder = local_folder(source, revision)

        def load() -> Any:
            return cls.load(folder, network_of(folder, source, model))

        return settled_together([folder / INDEX, folder / CONFIG.index], load)
